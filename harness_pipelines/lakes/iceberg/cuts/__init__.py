"""Cuts: what a read plan reads, written down as one snapshot of Iceberg beside the views."""
