"""Dagster definitions; no rule about data lives here."""
