"""Columns of decoded values as Arrow arrays."""
