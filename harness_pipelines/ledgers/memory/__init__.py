"""The reference ledger in memory, for contract tests and models."""
