"""Running stages: the worker, its claims and its pauses."""
