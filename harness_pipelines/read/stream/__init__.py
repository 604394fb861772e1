"""Endless reads: records in order, changelogs, corrections."""
