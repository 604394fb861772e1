"""fsck: every invariant that can be seen in a live table; nothing is changed."""
