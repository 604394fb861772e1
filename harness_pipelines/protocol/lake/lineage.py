"""The question of lineage, and what is known of a record's place before any file is opened."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from harness_pipelines.errors import UsageError
from harness_pipelines.protocol.bounds import Bounds, OffsetRange
from harness_pipelines.spec.locations import local_path, normal

Place = Literal["batch", "stream", "buffer", "kafka", "quarantine"]  #: the tier that has the record
_NUMBER = re.compile(r"[0-9]{1,18}")  #: this many digits fit Postgres's integers
_COORDINATE = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class FileAsked:
    """A file of a view, by its path or by the end of it."""

    path: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    def fits(self, path: str) -> bool:
        """Return whether it selects *path*, as a manifest spells it."""
        asked, found = (local_path(normal(spelled)) or spelled for spelled in (self.path, path))
        return found == asked or found.endswith("/" + asked.removeprefix("/"))


@dataclass(frozen=True, slots=True)
class MoveAsked:
    """A move by its number."""

    move_id: int


@dataclass(frozen=True, slots=True)
class RecordAsked:
    """A record by its coordinate."""

    partition: int
    offset: int


Asked = FileAsked | MoveAsked | RecordAsked


def asked_of(what: str) -> Asked:
    """Which of the three *what* is, by how it is written. Raises: UsageError."""
    said = what.strip()
    if _NUMBER.fullmatch(said):
        return MoveAsked(int(said))
    if coordinate := _COORDINATE.fullmatch(said):
        return RecordAsked(int(coordinate[1]), int(coordinate[2]))
    asked = FileAsked(said)
    if re.fullmatch(r"[^:\s]+\.[A-Za-z]+", asked.name):
        return asked
    raise UsageError(
        f"{what!r} is no data file (its name has an ending, such as .parquet), no number of a move, and no record, "
        "which is written PARTITION:OFFSET"
    )


def place_of(bounds: Bounds, offset: int, *, has_batch: bool, has_buffer: bool) -> Place:
    """Which tier answers for *offset*, which is not below the start."""
    if has_batch and offset < bounds.batch_hi:
        return "batch"
    if offset < bounds.stream_hi:
        return "stream"
    return "buffer" if has_buffer and offset < bounds.buffer_hi else "kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMade:
    """How a file of a view came to be."""

    version: int | None  #: that it came with; None: the ledger does not know
    ranges: tuple[OffsetRange, ...]  #: of its move; none: the move took rows of the view itself, whichever


def may_hold(made: FileMade, asked: RecordAsked, *, since: int | None, keyed: bool) -> bool:
    """Return whether a file of the batch view whose hull of offsets has the record may hold it.

    *since* is the version that brought the record to the view, if known. Older files do not have
    it, and what a merge added to an append table are the rows of its ranges; a merge of a keyed table may
    rewrite others.
    """
    if made.version is not None and since is not None and made.version < since:
        return False
    return keyed or not made.ranges or covering(made.ranges, asked)


def covering(ranges: Iterable[OffsetRange], asked: RecordAsked) -> bool:
    """Return whether one of *ranges* has the record."""
    return any(r.partition == asked.partition and r.low <= asked.offset < r.high for r in ranges)
