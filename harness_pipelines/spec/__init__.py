"""What a user writes: table specs, types, settings. No I/O but reading the file that is named."""
