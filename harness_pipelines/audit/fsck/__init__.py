"""fsck: check every invariant that can be checked on a live table; it changes nothing."""
