"""Rules of reads: cuts, plans, streams."""
