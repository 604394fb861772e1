"""Reports about a table: layout, lineage, storage, and what a read opens."""
