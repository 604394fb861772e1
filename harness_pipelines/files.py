"""Files that a user names: read whole, up to a limit, and never waited for.

A FIFO without a writer has no end of waiting, a device no end at all, and a file of gigabytes none that memory holds.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from pathlib import Path

SECRET_BYTES_MAX = 2**20  #: of passwords, URLs, keys, certificates and tokens
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip
_GIVEN = re.compile(r"/dev/stdin|/dev/fd/\d+|/proc/self/fd/\d+")  #: what a shell hands over, such as `<(command)`


class Unreadable(Exception):
    """Why a file is no text; the name of the file belongs before it."""


def read_bytes(path: str | Path, bytes_max: int) -> bytes:
    """What the regular file *path* has, or a pipe that the shell handed over. Raises: Unreadable."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
        is_given = kind == stat.S_IFIFO and _GIVEN.fullmatch(str(path)) is not None
        if kind != stat.S_IFREG and not is_given:
            raise Unreadable(f"cannot be read: it is {_KINDS.get(kind, 'no file')}; name a file")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if is_given else os.O_NONBLOCK))
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_size > bytes_max or len(found := file.read(bytes_max + 1)) > bytes_max:
                raise Unreadable(f"is larger than {bytes_max:,} bytes")
    except (OSError, ValueError) as error:  # a path with U+0000 is a ValueError
        raise Unreadable(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return found


def read_text(path: str | Path, bytes_max: int, *, encoding: str = "UTF-8") -> str:
    """The same as text. Raises: Unreadable."""
    found = read_bytes(path, bytes_max)
    try:
        return found.decode(encoding)
    except UnicodeDecodeError as error:
        line = found.count(b"\n", 0, error.start) + 1
        why = f"{error.reason} at byte {error.start}, in line {line}"
        if found.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            why = "it begins as UTF-16 does"
        raise Unreadable(f"is not {encoding}: {why}; save it as {encoding}") from error


def endless(path: str | Path) -> str | None:
    """Why a library that opens *path* would wait or read without end; None: it may, or will say itself what is wrong.

    Folders are let through: some libraries take one of certificates.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    kind = stat.S_IFMT(found.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        return f"cannot be read: it is {_KINDS.get(kind, 'no file')}; name a file"
    return f"is larger than {SECRET_BYTES_MAX:,} bytes" if found.st_size > SECRET_BYTES_MAX else None
