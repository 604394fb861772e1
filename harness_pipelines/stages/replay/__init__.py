"""Rows made again: from quarantine, from the log, for a damaged file."""
