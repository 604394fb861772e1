"""Ingest: records of the log become rows of the buffer."""
