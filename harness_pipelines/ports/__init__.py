"""Ports: the protocols and plain values through which flows use the outside."""
