"""The normal form of file and folder paths in the warehouse; paths are compared and stored in it.

The same local file has many spellings: Java writes ``file:/x``, PyIceberg ``file:///x``, and Java takes ``//`` and
``/./`` out where PyIceberg keeps them. So no two paths are compared, and none is a key, but in their normal form. What
another engine has to find as text (the data file that a delete file names) stays as it is written in the manifest.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from harness_pipelines.errors import UsageError
from harness_pipelines.spec.object_stores import check_scheme

_LOCAL = re.compile(r"(?i)file:(?://localhost(?=/|$))?/*(?=(.*))", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_READ_DIFFERENTLY = re.compile(r"[%?#\\\x00-\x1f\x7f]")  #: by Java, PyIceberg and Arrow


def local_path(location: str) -> str | None:
    """The path on this machine that *location* is, as it is written; ``None`` for one of an object store.

    No character of it stands for another: ``%20`` is three characters, as it is to Iceberg.
    """
    if location.startswith("/"):
        return location
    found = _LOCAL.match(location)
    return None if found is None else f"/{found[1]}"


def normal(location: str) -> str:
    """The one spelling of a file or folder that all its spellings have; in an object store each spelling is its own."""
    path = local_path(location)
    return location if path is None else f"file://{_plain(path)}"


def is_below(location: str, folder: str) -> bool:
    """Return whether *location* lies below *folder*; both are in their normal form."""
    return location.startswith(f"{folder.rstrip('/')}/")


def folder_of(metadata: str) -> str:
    """The folder of the view that a metadata file belongs to, in its normal form."""
    return normal(metadata).rsplit("/metadata/", 1)[0]


def warehouse_location(text: str) -> str:
    """The warehouse that a user's *text* names, spelled so that every engine finds the same folder by it.

    Raises: UsageError for what engines read differently.
    """
    if (odd := _READ_DIFFERENTLY.search(text)) is not None:
        raise UsageError(
            f"HARNESS_WAREHOUSE {text!r} has {odd[0]!r}, with which engines find different folders: some decode or cut "
            "it, some do not. Nothing was done. Write the folder's name as on the disk, with its spaces and umlauts; a "
            "folder whose name has this character cannot be a warehouse"
        )
    if (path := local_path(text)) is None and not _SCHEME.match(text):
        path = str(Path(text).expanduser().absolute())
    if path is None:
        check_scheme(text)
        scheme, _, rest = text.partition("://")
        bucket, _, key = rest.partition("/")
        if not rest or not bucket:
            raise UsageError(f"HARNESS_WAREHOUSE {text!r}: expected a folder, as /lake, or a URI, as s3://bucket/lake")
        return f"{scheme}://{bucket}{_plain(f'/{key}')}".rstrip("/")
    if re.match(r"(?i)file://(?!localhost(/|$))[^/]", text):
        raise UsageError(
            f"HARNESS_WAREHOUSE {text!r} names another machine; expected file:///folder or the folder itself"
        )
    if (plain := _plain(path)) == "/":
        raise UsageError(f"HARNESS_WAREHOUSE {text!r} is the root folder; expected a folder below it")
    return f"file://{plain}"


def _plain(path: str) -> str:
    """An absolute path without ``//``, ``.``, ``..`` and a slash at its end."""
    return posixpath.normpath("/" + path.lstrip("/"))
