"""Ports of what serves the tables to engines: cuts, and the tokens by which engines log in."""
