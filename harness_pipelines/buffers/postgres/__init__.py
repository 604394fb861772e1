"""The buffer in PostgreSQL: segments, rows, overlays."""
