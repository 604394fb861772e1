"""Engines: they execute scans and write files, one folder each."""
