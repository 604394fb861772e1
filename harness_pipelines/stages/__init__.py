"""One module per stage, each read top to bottom as plan -> stage -> publish."""
