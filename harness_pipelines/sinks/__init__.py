"""Sinks: receivers of a table's events."""
