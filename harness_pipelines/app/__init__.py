"""The composition root: opens the systems in the settings and passes them to flows."""
