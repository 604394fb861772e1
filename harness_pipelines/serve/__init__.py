"""The catalog that engines read tables by: Iceberg's REST protocol over cuts, read-only (decision 0057).

This room and the status page are the only ones that know starlette and uvicorn. What it answers with it gets by the
protocol `Catalog` in `values`, so that it is tested without a ledger and without a lake.
"""
