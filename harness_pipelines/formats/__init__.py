"""Bytes of one record to a typed row or a refusal."""
