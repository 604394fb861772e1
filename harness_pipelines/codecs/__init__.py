"""Bytes of a record's value to typed rows, or to a reason why not."""
