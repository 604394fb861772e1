"""Contracts: which decoded rows break which check."""
