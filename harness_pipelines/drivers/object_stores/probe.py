"""Trying out a warehouse: everything that the harness asks of a store.

The files lie in a folder of the warehouse that no table has, and are removed at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from harness_pipelines.drivers.files import listed, opened, remove_empty, remove_folders
from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines.drivers.object_stores.bucket import cut_off_uploads, keeps_deleted
from harness_pipelines.drivers.object_stores.clients import bucket_of, objects
from harness_pipelines.drivers.object_stores.deletion import delete
from harness_pipelines.drivers.object_stores.marks import (
    StoreUnfit,
    check_conditions,
    create_mark,
    read_mark,
    replace_mark,
)
from harness_pipelines.drivers.object_stores.troubles import store_errors
from harness_pipelines.spec.locations import local_path

FOLDER = ".harness-doctor"
ODD_NAME = "a b=c%2F+ü.parquet"  #: as partition values make them; stores and clients encode it differently
UPLOAD_AGE = timedelta(days=2)  #: longer than any write takes
CONTENT = b"written by harness doctor"


class StoreProbe:
    """The questions to one warehouse, to be asked in their order. Each raises StoreRefused or OSError."""

    def __init__(self, warehouse: str) -> None:
        self.warehouse = warehouse.rstrip("/")
        self.is_local = local_path(warehouse) is not None
        self.folder = f"{self.warehouse}/{FOLDER}/{uuid4().hex}"
        self._mark, self._file = f"{self.folder}/mark", f"{self.folder}/{ODD_NAME}"

    def is_there(self) -> bool:
        """Return whether the warehouse is there; an object store has no folders, so any bucket counts."""
        path = local_path(self.warehouse)
        return path is None or Path(path).is_dir()

    def write(self) -> None:
        """Write a file as data files are written, and a mark that was not there."""
        system, path = opened(self._file)
        if self.is_local:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        with system.open_output_stream(path) as stream:
            stream.write(CONTENT)
        if not create_mark(self._mark, CONTENT):
            raise StoreUnfit(f"the store of {self.warehouse} says that {self._mark} is there, which nobody has written")

    def refuses_conditions(self) -> None:
        """A second creation is refused, and a replacement by a tag that the object has not. Raises: StoreUnfit."""
        if create_mark(self._mark, b"another"):
            raise StoreUnfit(
                f"the store of {self.warehouse} creates an object twice: it ignores If-None-Match. Two ledgers "
                "could own this warehouse"
            )
        check_conditions(self._mark, CONTENT)

    def replaces(self) -> None:
        """A process that has read an object may replace it, by its tag. Raises: StoreUnfit."""
        seen = read_mark(self._mark)
        if seen is None or not replace_mark(self._mark, b"replaced", seen=seen):
            raise StoreUnfit(
                f"the store of {self.warehouse} does not replace {self._mark} by the tag that it was read with"
            )

    def read(self) -> None:
        """Both clients read what was written. Raises: StoreUnfit."""
        system, path = opened(self._file)
        with system.open_input_stream(path) as stream:
            content = stream.read()
        seen = read_mark(self._mark)
        if content != CONTENT or seen is None or seen.content != b"replaced":
            raise StoreUnfit(f"the store of {self.warehouse} returns other bytes than were written to {self.folder}")

    def lists(self) -> None:
        """A listing has both files, by the names that they were given. Raises: StoreUnfit."""
        found = {file.path for file in listed(self.folder)}
        if missing := {self._mark, self._file} - found:
            has = ", ".join(sorted(found)) or "nothing"
            raise StoreUnfit(f"a listing of {self.folder} lacks {', '.join(sorted(missing))} and has {has}")

    def deletes(self) -> None:
        """Both are deleted by one call, and no listing has them. Raises: StoreUnfit."""
        delete([self._mark, self._file])
        if left := [file.path for file in listed(self.folder)]:
            raise StoreUnfit(f"the store of {self.warehouse} still lists {', '.join(left)} after it deleted them")

    def clock_ahead_s(self) -> float | None:
        """How far the store's clock is ahead of this machine's, to a second; None for a local folder."""
        if self.is_local:
            return None
        import obstore

        store, key = objects(self._mark)
        with store_errors(self._mark):
            before = time.time()
            obstore.put(store, key, CONTENT, use_multipart=False)
            after = time.time()
            at = obstore.head(store, key)["last_modified"].timestamp()
        if before - 1 <= at <= after + 1:  # it has whole seconds
            return 0.0
        return at - (before + after) / 2

    def keeps_deleted(self) -> bool | None:
        """Return whether the bucket keeps what is overwritten and deleted; None: these credentials may not ask."""
        return keeps_deleted(self.warehouse)

    def cut_off_uploads(self) -> int | None:
        """Uploads to the warehouse that began days ago and never ended; None: these credentials may not ask."""
        return cut_off_uploads(self.warehouse, before=datetime.now(UTC) - UPLOAD_AGE)

    def regions(self) -> tuple[str | None, str | None]:
        """The region that the settings name, and that which AWS says the bucket is in; None: not set, not asked."""
        s3, (bucket, _) = BOUND.of(self.warehouse), bucket_of(self.warehouse)
        if self.is_local or s3.endpoint is not None:
            return s3.region, None
        from pyarrow.fs import resolve_s3_region

        return s3.region, str(resolve_s3_region(bucket))

    def clean(self) -> None:
        """Remove what a question that failed has left."""
        delete([self._mark, self._file])
        remove_folders(self.folder)
        remove_empty(f"{self.warehouse}/{FOLDER}")  # unless another probe is at work in it


@contextmanager
def probing(warehouse: str) -> Iterator[StoreProbe]:
    """A probe whose files are removed at the end, as far as the store lets it."""
    probe = StoreProbe(warehouse)
    try:
        yield probe
    finally:
        with suppress(Exception):  # what kept a question from its answer keeps this too, and was named
            probe.clean()
