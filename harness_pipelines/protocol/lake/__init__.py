"""Rules about files, histories and lineage of the lake."""
