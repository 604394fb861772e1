"""Results of reading the files of a view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GONE = "there is no such file"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is missing or cannot be parsed."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSeen:
    """One snapshot in a metadata file."""

    snapshot: int
    parent: int | None
    sequence: int
    manifest_list: str
    summary: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSeen:
    """One metadata file."""

    snapshot: int | None  #: of main
    snapshots: Mapping[int, SnapshotSeen]
    properties: Mapping[str, str]
    offset_id: int | None  #: field id of `_kafka_offset`; None: the view has no such column
    operation_id: int | None = None  #: of `_op`

    @property
    def head(self) -> SnapshotSeen | None:
        return None if self.snapshot is None else self.snapshots.get(self.snapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSeen:
    """One live file in a manifest."""

    path: str
    added: int | None  #: sequence number of the snapshot that added it; a rewrite never keeps it
    bytes: int
    rows: int
    partition: int | None  #: Kafka's; None: not partitioned as the harness does
    low: int | None  #: lowest and highest offset, both included; None: the writer kept no bounds
    high: int | None
    operations: tuple[str, str] | None = None  #: least and greatest `_op`; None: the writer kept no bounds
    deletes: str | None = None  #: what kind of delete file it is: position, equality; None: data
    deletes_of: str | None = None  #: the one data file that a position delete file speaks of
