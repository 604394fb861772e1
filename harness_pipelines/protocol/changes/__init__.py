"""Changes below the bounds: corrections and reverts."""
