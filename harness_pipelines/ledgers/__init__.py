"""Ledgers: they record which tier answers for which record."""
