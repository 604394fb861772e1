"""Pure rules of the region tree: no I/O, no clock, no randomness. Stages say what to do with what these find."""
