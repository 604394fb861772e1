"""What the lake's own metadata says, without the ledger."""
