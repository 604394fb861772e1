"""Source, buffer, lake and ledger in memory: the reference that the contract tests compare the real ones with."""
