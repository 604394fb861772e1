"""The catalog that engines read tables by: Iceberg's REST protocol over cuts, read-only (decision 0057).

People see the status page of the same process in a browser (`page/`). This room is the only one that knows starlette
and uvicorn. What it answers with it gets by the protocols `Catalog` in `values` and `StatusFacts` in `page.routes`, so
that it is tested without a ledger and without a lake.
"""
