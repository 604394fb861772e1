"""JSON objects as rows."""
