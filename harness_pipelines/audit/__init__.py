"""Proof that a table is complete: every record of the log in exactly one tier, with the content it was sent with."""
