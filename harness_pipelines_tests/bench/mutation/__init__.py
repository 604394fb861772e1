"""Mutation of the ledger's SQL: what is broken in a statement, the tests that run it, and what nobody can notice."""
