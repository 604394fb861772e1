"""Audits: every record of the log is in exactly one tier, with its original content."""
