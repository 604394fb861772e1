"""The status page: `harness status` and `harness layout` in a browser, refreshed automatically.

The page only reads; it never changes a table, the ledger or the lake.
"""

from harness_pipelines.cli.page.server import serving

__all__ = ["serving"]
