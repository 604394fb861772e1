"""Sources: systems with ordered records, one folder each."""
