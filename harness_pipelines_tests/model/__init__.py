"""The protocol, model-checked: every interleaving of small cases, run through the functions that the stages call."""
