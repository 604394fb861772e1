"""How to talk to one system, without knowing tables."""
