"""Inspect the lake's metadata without the ledger."""
