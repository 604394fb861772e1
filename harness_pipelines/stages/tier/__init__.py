"""Tier: buffered rows become files of the stream view."""
