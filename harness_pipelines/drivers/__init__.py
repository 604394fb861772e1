"""Drivers: access to one system, without knowledge of tables."""
