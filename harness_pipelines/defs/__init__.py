"""Dagster definitions; no rule about data lives here."""

from harness_pipelines.defs.warm import quiet
from harness_pipelines.extras import needs

quiet()
with needs("dagster", "A code location of Dagster"):
    from harness_pipelines.defs.component import Table as Table
