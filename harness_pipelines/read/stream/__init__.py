"""Reads without an end: records in order, changelogs, corrections."""
