"""The bench of `harness serve`: loads, freshness, queries, bytes and Flight SQL."""
