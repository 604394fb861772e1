"""Read-only views of the ledger for monitoring."""
