"""What people ask stages for: recall, recluster."""
