"""Specs that are proposed from records are those that a person would write."""
