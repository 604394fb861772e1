"""Text output and pictures of the commands."""
