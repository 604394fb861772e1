"""Who is sent news of a table."""
