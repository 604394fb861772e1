"""Sections of a table's spec, each with its rules."""
