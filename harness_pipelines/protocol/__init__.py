"""Pure rules of the harness: no I/O, no clock, no randomness. Every store and every stage calls these."""
