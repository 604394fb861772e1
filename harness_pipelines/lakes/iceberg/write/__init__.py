"""Snapshots that a boundary commit publishes."""
