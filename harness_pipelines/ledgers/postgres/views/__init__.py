"""What the ledger shows to those who watch; nothing here decides anything."""
