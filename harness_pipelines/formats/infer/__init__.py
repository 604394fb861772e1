"""Infer a table's spec from sampled records."""
