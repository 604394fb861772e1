"""Deleting files: many of an object store by one request."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from harness_pipelines.drivers.object_stores.bucket import delete_odd
from harness_pipelines.drivers.object_stores.clients import objects
from harness_pipelines.drivers.object_stores.troubles import StoreRefused, store_errors
from harness_pipelines.spec.locations import local_path

AT_ONCE = 1000  #: what one request deletes at most, of any store
PARTLY = "DeleteObjects request failed for key"  #: how obstore names a file that a store's answer says has stayed
#: A key that obstore does not take: with an empty part, with `.` or `..` as a part, or with a control character.
_ODD = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f]")
One = TypeVar("One")


def batches(found: Sequence[One], paths: Sequence[str]) -> Iterator[Sequence[One]]:
    """*found*, whose files are *paths*, in parts that are deleted together: one by one in a local folder."""
    is_local = any(local_path(path) is not None for path in paths)
    rest = iter(found)
    while part := list(islice(rest, 1 if is_local else AT_ONCE)):
        yield part


class SomeLeft(OSError):
    """The store did what it was asked to, but for some of the files."""


def delete(paths: Iterable[str]) -> None:
    """Delete files; a file that is already gone is no error. Folders stay.

    A file that the store keeps, as one under a legal hold, holds no other file up.
    Raises: SomeLeft at the end, when some were kept: which, a listing says; StoreRefused, OSError.
    """
    stored: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        if (local := local_path(path)) is not None:
            Path(local).unlink(missing_ok=True)
        else:
            stored[path.partition("://")[2].partition("/")[0]].append(path)
    kept: list[SomeLeft] = []
    for of_bucket in stored.values():
        for start in range(0, len(of_bucket), AT_ONCE):
            try:
                _delete(of_bucket[start : start + AT_ONCE])
            except SomeLeft as error:
                kept.append(error)
    if kept:
        raise kept[0]


def _delete(paths: Sequence[str]) -> None:
    """By one request, but for odd keys. Raises: SomeLeft, StoreRefused, OSError."""
    import obstore

    store, _ = objects(paths[0])
    keys = {path: objects(path)[1] for path in paths}
    try:
        with store_errors(paths[0]):
            if plain := [key for key in keys.values() if not _ODD.search(key)]:
                obstore.delete(store, plain)
    except (OSError, StoreRefused) as error:
        if PARTLY in str(error):
            raise SomeLeft(str(error)) from error
        raise
    for path, key in keys.items():
        if _ODD.search(key):
            try:
                delete_odd(path)
            except (OSError, StoreRefused) as error:
                raise SomeLeft(str(error)) from error
