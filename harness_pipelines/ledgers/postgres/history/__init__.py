"""Unique numbers, and detecting that two histories differ."""
