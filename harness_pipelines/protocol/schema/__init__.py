"""Rules of columns: accepted changes, and rows of one schema in another."""
