"""What computes: one folder per engine."""
