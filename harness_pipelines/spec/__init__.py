"""User input: table specs, types, settings. The only I/O is reading the spec file."""
