"""Tier: move buffered rows into files of the stream view."""
