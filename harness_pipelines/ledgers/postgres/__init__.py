"""The ledger in PostgreSQL: each module is a group of statements that change it."""
