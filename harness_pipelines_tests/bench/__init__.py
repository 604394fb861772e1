"""Measurements. Each module of this folder that has `FIGURES` is a bench for `harness bench NAME`."""
