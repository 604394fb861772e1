"""The status page: `harness status` and `harness layout` in a browser, refreshed automatically, beside the catalog.

The page only reads; it never changes a table, the ledger or the lake. On the loopback it has no login, as every user of
the machine reaches it. Elsewhere a person logs in with a token, and sees the tables that the token is for.
"""
