"""Ingest: move records of the log into the buffer."""
