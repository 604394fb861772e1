"""Commands that show a table's rows and where they are."""
