"""Numbers that are given once, and what tells two histories apart."""
