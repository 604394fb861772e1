"""Catalogs that the views are published in, beside the one that the ledger keeps."""
