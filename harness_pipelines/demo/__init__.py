"""`harness demo`: move real records through all tiers and prove the result."""
