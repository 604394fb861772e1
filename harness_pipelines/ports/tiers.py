"""Ports for leases, segments, the ingest commit, trimming and the lake's views.

The adapters for Postgres and Iceberg and those in `memory` implement them; the contract tests run over both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from harness_pipelines.ports.ledger import Beginning, IngestPosition, ReadState, Segment, Swap, TableRow
from harness_pipelines.ports.upkeep import TrimDecision
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.reads import At
from harness_pipelines.protocol.versions import Version, View, ViewName
from harness_pipelines.spec.table import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.ports.decoded import DecodedRange, RowsUnfit

Files = TypeVar("Files")


class ReadLeases(Protocol):
    """Leases and read states for readers: lease first, then read the state."""

    def look(
        self, table: TableRow, *, holder: str, lease: timedelta, at: At | None = None, lease_id: str | None = None
    ) -> ReadState: ...
    def renew(self, lease_id: str, *, lease: timedelta) -> datetime: ...
    def end(self, lease_id: str) -> None: ...
    def finish(self, lease_id: str) -> None: ...


class BufferSegments(Protocol):
    """Opening and closing segments, and the positions of ingest."""

    def all(self, table: TableRow) -> list[Segment]: ...
    def positions(self, table: TableRow) -> dict[int, IngestPosition]: ...
    def open_segment(self, table: TableRow) -> Segment: ...
    def index(self, table: TableRow, segment: Segment) -> None: ...
    def rotate(self, table: TableRow) -> None: ...
    def refused(self, table: TableRow, partition: int, low: int, high: int) -> Sequence[int]: ...
    def beginning(self, table: TableRow, *, limit: int) -> Beginning: ...


class SizedSegments(BufferSegments, Protocol):
    """Segments that take space."""

    def sizes(self, table: TableRow) -> list[Mapping[str, Any]]: ...


class BufferWriter(Protocol):
    """The ingest commit."""

    def commit(self, segment: Segment, ranges: Sequence[DecodedRange], *, confirm: Callable[[], None]) -> int: ...
    def trouble(self, segment: Segment, rows_: pa.Table) -> RowsUnfit | None: ...
    def close(self) -> None: ...


class Trimmer(Protocol):
    """Retiring segments, and dropping them in a later run."""

    def trim(self, table: TableRow, claim: Claim, *, dry_run: bool = False) -> TrimDecision: ...
    def drop_retired(self, table: TableRow, *, retired_for: timedelta) -> list[str]: ...


class LakeViews(Protocol[Files]):
    """Creating views and branches, checking and publishing appends; *Files* is the staged output of one attempt."""

    def make_views(
        self, spec: TableSpec, fields: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[ViewName, View], list[Mapping[str, Any]]]: ...
    def make_branch(self, table: TableRow, move: Move, base: View) -> str: ...
    def staged(self, table: TableRow, move: Move, *, rows: int) -> Files: ...
    def build_append(self, table: TableRow, move: Move, staged: Files, *, base: str, keep: int) -> Swap: ...
    def build_revert(
        self, table: TableRow, move_id: int, name: ViewName, *, base: str, head: Version, target: Version, keep: int
    ) -> Swap: ...
    def build_replace(
        self, table: TableRow, move: Move, staged: Files, *, removed: Mapping[str, str | None], base: str, keep: int
    ) -> Swap: ...
    def drop_branches(self, table: TableRow, dead: Sequence[str], *, view: ViewName = "stream") -> bool: ...
