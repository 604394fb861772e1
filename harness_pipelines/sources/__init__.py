"""Systems that have records in order, a folder for each."""
