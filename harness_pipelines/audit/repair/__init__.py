"""Reconcile: a ledger, a lake or a claim that a crash, a restore or a loss left behind continues."""
