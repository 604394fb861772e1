"""`harness serve` as a process over the real services."""
