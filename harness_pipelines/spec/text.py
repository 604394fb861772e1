"""Text that Postgres or UTF-8 cannot hold."""

from __future__ import annotations


def unstorable(text: str) -> str | None:
    """Say why neither Postgres nor UTF-8 can hold *text*; None when they can."""
    if "\x00" in text:
        return f"U+0000 at character {text.index(chr(0)) + 1}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"half of a surrogate pair (U+{ord(text[error.start]):04X}) at character {error.start + 1}"
    return None
