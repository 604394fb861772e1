"""The ledger in PostgreSQL; each module is a group of related statements."""
