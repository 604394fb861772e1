"""Requests of operators for stages: recall, recluster."""
