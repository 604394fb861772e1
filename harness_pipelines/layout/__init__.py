"""Pure rules of the region tree: no I/O, no clock, no randomness. Stages act on their results."""
