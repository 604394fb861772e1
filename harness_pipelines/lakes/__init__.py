"""Lake formats, a folder for each."""
