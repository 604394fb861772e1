"""Digests of lake files at writing, for comparison at reading.

Parquet has a checksum for each page, but none for what says where the pages are and how they are read. JSON and Avro
have none at all. So the ledger keeps the length of each file and a digest: of a metadata file, manifest list or
manifest as a whole, of a data file from the end of its last page on. Every process that opens a file compares it.

A file is noted before it is published. One without a note was written before there were any, or by another engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from harness_pipelines.drivers.file_notes import KNOWN
from harness_pipelines.protocol.lake.file_digests import Digest
from harness_pipelines.spec.locations import normal

if TYPE_CHECKING:
    from harness_pipelines.drivers.postgres import Database


class Digests:
    """The notes of one ledger. Thread-safe; a database is opened when it is first asked."""

    def __init__(
        self, readers: Callable[[], Database], writers: Callable[[], Database], *, warehouse: str | None
    ) -> None:
        self._readers, self._writers = readers, writers
        self.warehouse = None if warehouse is None else normal(warehouse)
        self._written: list[tuple[str, Digest]] = []
        self._lock = Lock()

    def add(self, path: str, digest: Digest) -> None:
        """Remember what was written to *path* until the next `flush`."""
        with self._lock:
            self._written.append((normal(path), digest))

    def flush(self) -> None:
        """Note in the ledger what was added. It is done before the files are published."""
        with self._lock:
            written, self._written = self._written, []
        if not written:
            return
        columns = {
            "paths": [path for path, _ in written],
            "bytes": [digest.length for _, digest in written],
            "tails": [digest.tail for _, digest in written],
            "digests": [digest.value for _, digest in written],
        }
        self._writers().run("digests/note", columns)
        KNOWN.keep(dict(written))

    def ask(self, paths: Sequence[str]) -> dict[str, Digest]:
        """The ledger's notes of *paths*."""
        found = self._readers().rows("digests/of", {"paths": list(paths)})
        return {row["path"]: Digest(row["bytes"], row["tail"], bytes(row["digest"])) for row in found}
