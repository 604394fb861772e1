"""Reads: from a leased cut to rows."""
