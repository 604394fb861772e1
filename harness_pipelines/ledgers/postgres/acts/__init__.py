"""Boundary commits that people ask for, beside the moves of stages; each in the frame of `boundary.py`."""
