"""Rows and file bounds of a pinned view."""
