"""Rules of columns: which changes are taken, and how rows of one schema look in another."""
