"""Dagster definitions; no rule about data lives here."""

from harness_pipelines.defs.component import Table as Table
