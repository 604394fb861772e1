"""Commands that show what is in a table, and where."""
