"""The status page: what `harness status` and `harness layout` tell, in a browser, and it keeps itself up to date.

It only reads: nothing here changes a table, the ledger or the lake.
"""

from harness_pipelines.cli.page.server import serving

__all__ = ["serving"]
