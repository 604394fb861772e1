"""Acts on a table as a whole: apply, evolve, expire, revert."""
