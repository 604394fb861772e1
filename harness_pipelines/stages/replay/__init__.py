"""Replays: rows from quarantine, from the log, or for a damaged file."""
