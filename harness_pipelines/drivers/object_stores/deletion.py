"""Deleting files: many of an object store by one request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from harness_pipelines.drivers.object_stores.clients import objects
from harness_pipelines.drivers.object_stores.troubles import store_errors
from harness_pipelines.spec.locations import local_path

AT_ONCE = 1000  #: what one request deletes at most, of any store
One = TypeVar("One")


def batches(found: Sequence[One], paths: Sequence[str]) -> Iterator[Sequence[One]]:
    """*found*, whose files are *paths*, in parts that are deleted together: one by one in a local folder."""
    is_local = any(local_path(path) is not None for path in paths)
    rest = iter(found)
    while part := list(islice(rest, 1 if is_local else AT_ONCE)):
        yield part


def delete(paths: Iterable[str]) -> None:
    """Delete files; those that are not there any more are no error. Folders stay.

    Raises: OSError, StoreRefused when not all of them could be: which are left, a listing says.
    """
    stored: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        if (local := local_path(path)) is not None:
            Path(local).unlink(missing_ok=True)
        else:
            stored[path.partition("://")[2].partition("/")[0]].append(path)
    for of_bucket in stored.values():
        import obstore

        store, _ = objects(of_bucket[0])
        for start in range(0, len(of_bucket), AT_ONCE):
            part = of_bucket[start : start + AT_ONCE]
            with store_errors(part[0]):
                obstore.delete(store, [objects(path)[1] for path in part])
