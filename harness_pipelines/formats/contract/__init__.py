"""Contracts: find the decoded rows that break a check."""
