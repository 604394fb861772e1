"""Reconcile: repair a ledger, a lake or claims after a crash, a restore or a loss."""
