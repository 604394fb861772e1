"""Mutable buffers in front of the lake, one folder per system."""
