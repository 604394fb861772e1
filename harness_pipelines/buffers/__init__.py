"""Mutable buffers in front of the lake, a folder for each system."""
