"""What runs stages: the worker, its claims, its pauses."""
