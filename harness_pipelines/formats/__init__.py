"""Bytes of one record to typed rows, or to a reason why not."""
