"""The stores as the stateful tests drive them: one table over a rig, and all that can be seen of it.

A side acts as the stages do (the same reads before the same commits), and can lose the answer of a COMMIT.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from unittest.mock import patch
from urllib.parse import urlparse

import adbc_driver_manager
import psycopg
import pyarrow as pa

from harness_pipelines import faults
from harness_pipelines.buffers.postgres.reader import BufferReader
from harness_pipelines.drivers import files
from harness_pipelines.drivers.postgres import Connection, SegmentMissing
from harness_pipelines.errors import OutcomeUnknown
from harness_pipelines.lakes.iceberg.reads import IcebergReads
from harness_pipelines.ledgers.postgres.boundary import CommitLost
from harness_pipelines.ledgers.postgres.retention import Upkeep
from harness_pipelines.ports.buffer import BufferWriter
from harness_pipelines.ports.decoded import DecodedRange
from harness_pipelines.ports.errors import BaseGone, LakeFileMissing
from harness_pipelines.ports.lake import Staged
from harness_pipelines.ports.ledger import Boundary, RefusedRecord, Segment, Swap, TableRow, new_lease
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.segments import may_hold
from harness_pipelines.protocol.versions import Version
from harness_pipelines.read.plan import make_plan
from harness_pipelines.read.union import read_arrow
from harness_pipelines_tests.contract.stores_rig import Files, MemoryRig, RealRig, StoresRig, agrees, rows_at
from harness_pipelines_tests.contract.truth import RETENTION, Rows, TrueLog
from harness_pipelines_tests.memory.lake import MemoryFile, MemoryStaged

WRITERS_MAX = 4  #: connections of the latest holders that are kept open
KEPT, UNDONE = "kept", "undone"  #: what became of a COMMIT whose answer was lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What can be seen of a table from outside, with names and ids left out: equal on equal stores."""

    positions: Mapping[int, tuple[int, int, int]]  #: start, stream_hi, buffer_hi
    trim_floor: Mapping[int, int]
    versions: Sequence[tuple[int, Mapping[int, int], Mapping[int, int]]]  #: retained: number, stream_hi, buffer_hi
    moves: Sequence[tuple[Any, ...]]  #: tier moves, oldest first: lo, hi, state, attempt, rows
    segments: Mapping[int, tuple[str, Mapping[int, int] | None]]  #: by number: state, max_hi
    buffered: Mapping[int, Rows]  #: by number of the segment
    refused: set[tuple[int, int]]
    files: Counter[tuple[int, int, int]]  #: of the head: partition, lowest, highest offset
    outbox: Sequence[tuple[int, str]]


class Side:
    """What both kinds share."""

    def __init__(self, rig: StoresRig) -> None:
        self.rig = rig
        self._writers: dict[int, BufferWriter] = {}
        self._table: TableRow

    def begin(self, *, partitions: int, start: int) -> None:
        """Make the table; the rig's clock moves for it alone."""
        self.rig.made.clear()
        self._table = self.rig.table(partitions=partitions, start=start, files=True, retention=RETENTION)

    @property
    def table(self) -> TableRow:
        """The table as it is now."""
        return self.rig.again(self._table)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    # -- ingest ---------------------------------------------------------------------------------------------

    def poll(self, log: Mapping[int, TrueLog], low: Mapping[int, int], high: Mapping[int, int]) -> Any:
        """Records of the log, decoded, with the segment they are meant for."""
        segment = self.rig.segments.open_segment(self._table)
        return segment, [_decoded(self._table, p, low[p], high[p], log[p]) for p in sorted(low)]

    def commit(self, unit: tuple[Segment, list[DecodedRange]], claim: Claim, *, lost: str | None) -> int:
        """The ingest commit; *lost* is what becomes of it when its answer is lost. Raises: OutcomeUnknown, then."""
        writer = self._writers.get(claim.epoch)
        if writer is None:
            writer = self._writers[claim.epoch] = self.rig.writer(self._table, claim)
            if len(self._writers) > WRITERS_MAX:
                self._writers.pop(min(self._writers)).close()
        with self.losing_ingest(writer, lost):
            return writer.commit(*unit, confirm=agrees)

    # -- moves ----------------------------------------------------------------------------------------------

    def plan(self, claim: Claim, lo: Mapping[int, int], hi: Mapping[int, int]) -> Move:
        return self.rig.plan(self._table, claim, lo, hi)

    def stage(self, move: Move) -> Any:
        """What the move finds in the segments goes to the attempt's branch, as tier does it. Raises: BaseGone."""
        table, buffered = self.table, self.rig.buffered(self._table)
        needed = [s for s in self.rig.segments.all(table) if s.state != "retired" and may_hold(s.max_hi, move.lo)]
        files = {
            r.partition: sorted(
                o for s in needed for p, o in buffered[s.name].elements() if p == r.partition and r.low <= o < r.high
            )
            for r in move.ranges
        }
        files = {p: offsets for p, offsets in files.items() if offsets}
        if not files:
            return self.nothing_staged()
        base = next((v for v in self.rig.ledger.versions(table) if v.version == move.base_version), None)
        if base is None:
            raise BaseGone(f"version {move.base_version} is not retained")
        self.rig.lake.make_branch(table, move, base.stream)
        self.rig.stage_files(table, move.branch, files, move=(move.move_id, move.attempt))
        return self.rig.lake.staged(table, move, rows=sum(map(len, files.values())))

    def publish(self, move: Move, staged: Any, claim: Claim, *, lost: str | None) -> Version:
        table = self.table
        boundary = Boundary(claim=claim, move=move, rows=staged.rows, bytes=staged.bytes)

        def build(base: str) -> Swap:
            return self.rig.lake.build_append(table, move, staged, base=base, keep=table.spec.retention.snapshots)

        with self.losing_publish(lost):
            return self.rig.ledger.publish(table, boundary, build)

    def drop_dead_branches(self, alive: set[str]) -> None:
        dead = sorted(self.rig.shape(self._table)[1] - alive)
        assert self.dead_branches(dead) == dead
        assert self.rig.lake.drop_branches(self.table, dead)

    # -- reading --------------------------------------------------------------------------------------------

    def look(self, *, at: int | None, lease: timedelta) -> ReadPlan:
        stores: Any = SimpleNamespace(leases=self.rig.leases)
        return make_plan(stores, self.table, at=at, tail=False, holder="stateful", lease=lease, lease_id=new_lease())

    def read(self, plan: ReadPlan, *, lease: timedelta) -> Rows:
        """The rows of a plan, returned only if its lease lived until all were read."""
        rows = self.rows(plan)
        self.rig.leases.renew(plan.lease_id, lease=lease)
        return rows

    def shown(self, plan: ReadPlan) -> Any:
        """A plan without what only one store can know."""
        ranges = [(part.low, part.high) for part in plan.lake]
        buffer = plan.buffer and ([_number(s.name) for s in plan.buffer.segments], plan.buffer.low, plan.buffer.high)
        return plan.version, plan.bounds, ranges, buffer

    # -- expire ---------------------------------------------------------------------------------------------

    def trim(self, claim: Claim, *, dry_run: bool) -> Any:
        found = self.rig.upkeep.trim(self.table, claim, dry_run=dry_run)
        return found.floor, [s.seq for s in found.retire], found.retained_from

    def drop_retired(self, *, retired_for: timedelta) -> list[int]:
        return [_number(name) for name in self.rig.upkeep.drop_retired(self.table, retired_for=retired_for)]

    # -- what is there --------------------------------------------------------------------------------------

    def seen(self) -> Seen:
        table, ledger = self.table, self.rig.ledger
        moves = ledger.moves(table, stage=Stage.TIER, limit=1000)
        segments = self.rig.segments.all(table)
        positions = ledger.positions(table)
        return Seen(
            positions={p.partition: (p.bounds.start, p.bounds.stream_hi, p.bounds.buffer_hi) for p in positions},
            trim_floor={p.partition: p.trim_floor for p in positions},
            versions=[(v.version, v.stream_hi, v.buffer_hi) for v in ledger.versions(table)],
            moves=[(m["lo"], m["hi"], m["state"], m["attempt"], m["rows"]) for m in reversed(moves)],
            segments={s.seq: (s.state, s.max_hi) for s in segments},
            buffered={_number(name): rows for name, rows in self.rig.buffered(table).items()},
            refused=self.rig.refused(table),
            files=self.rig.live(table, ledger.head(table).stream.metadata),
            outbox=self.rig.outbox(table),
        )

    # -- what a side has to know ----------------------------------------------------------------------------

    cheap = True  #: every lease and version can be read after every step

    def nothing_staged(self) -> Any:
        raise AssertionError

    def dead_branches(self, expected: list[str]) -> list[str]:
        """What the store takes for branches of dead attempts; *expected* if it does not judge."""
        return expected

    def losing_ingest(self, writer: BufferWriter, lost: str | None) -> Any:
        raise AssertionError

    def losing_publish(self, lost: str | None) -> Any:
        raise AssertionError

    def rows(self, plan: ReadPlan) -> Rows:
        raise AssertionError

    def delete_files(self, claim: Claim) -> None:
        """Delete the files that an earlier run condemned and that still nothing reaches; memory has none."""

    def condemn_files(self) -> None:
        """Mark the files that nothing reaches now."""

    def missing(self, metadata: str) -> list[str]:
        """Files that *metadata* needs and that are not there."""
        return []

    def pass_time(self, by: timedelta) -> None:
        self.rig.pass_time(by)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOfRows(MemoryFile):
    """A file that can be read."""

    offsets: tuple[int, ...]


class ReadableMemoryRig(MemoryRig):
    """The reference with files that can be read."""

    def stage_files(self, table: TableRow, branch: str, files: Files, *, move: tuple[int, int] | None) -> None:
        made = [
            FileOfRows(partition=p, low=min(at), high=max(at), rows=len(at), offsets=tuple(at))
            for p, at in files.items()
        ]
        self._lake.append_to(table, branch, made, move=move)


class MemorySide(Side):
    """Over the reference."""

    rig: ReadableMemoryRig

    def __init__(self) -> None:
        super().__init__(ReadableMemoryRig())

    def nothing_staged(self) -> MemoryStaged:
        return MemoryStaged(files=(), rows=0)

    @contextmanager
    def losing_ingest(self, writer: BufferWriter, lost: str | None) -> Iterator[None]:
        before = self.rig.state.books
        yield
        if lost == UNDONE:
            self.rig.state.books = before
        if lost is not None:
            raise OutcomeUnknown("the answer was lost")

    @contextmanager
    def losing_publish(self, lost: str | None) -> Iterator[None]:
        before = self.rig.state.books
        yield
        if lost == UNDONE:
            self.rig.state.books = before
            raise CommitLost("the ledger shows that it did not take effect")

    def rows(self, plan: ReadPlan) -> Rows:
        found: Rows = Counter()
        for part in plan.lake:
            for file in self.rig.state.views[part.metadata].main.files:
                assert isinstance(file, FileOfRows)
                found.update((file.partition, o) for o in file.offsets if _within(part, file.partition, o))
        if plan.buffer is not None:
            for segment in plan.buffer.segments:
                if segment.name not in self.rig.state.books.segment_rows:
                    raise SegmentMissing(f"segment {segment.name} is gone")
                for rows in self.rig.state.books.segment_rows[segment.name]:
                    pairs = zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True)
                    found.update((p, o) for p, o in pairs if _within(plan.buffer, p, o))
        return found


class RealSide(Side):
    """Over Postgres and Iceberg files."""

    rig: RealRig
    cheap = False

    def __init__(self, rig: RealRig) -> None:
        super().__init__(rig)
        self.upkeep = Upkeep(rig.database, rig.catalog, rig.ownership, files)
        self.buffer_reader, self.lake_reads = BufferReader(rig.dsn), IcebergReads()

    def close(self) -> None:
        super().close()
        self.buffer_reader.close()

    def nothing_staged(self) -> Staged:
        return Staged(files=(), rows=0, bytes=0)

    def dead_branches(self, expected: list[str]) -> list[str]:
        return self.upkeep.dead_branches(self.table)

    @contextmanager
    def losing_ingest(self, writer: Any, lost: str | None) -> Iterator[None]:
        if lost is None:
            yield
            return
        sessions = writer._sessions
        take = sessions.take
        try:
            with mock.patch.object(sessions, "take", lambda: _LossyConnection(take(), lost)):
                yield
        finally:
            sessions.end_idle()  # where it did not come to the COMMIT

    @contextmanager
    def losing_publish(self, lost: str | None) -> Iterator[None]:
        if lost is None:
            yield
            return
        commit = psycopg.Connection.commit
        armed: list[Any] = []

        def once(connection: Connection) -> None:
            armed.pop().stop()
            commit(connection) if lost == KEPT else connection.rollback()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        def arm() -> None:
            armed.append(patch.object(Connection, "commit", once))
            armed[-1].start()

        faults.arm("tier.in_transaction", arm)
        try:
            yield
        finally:
            faults.disarm()
            assert not armed

    def rows(self, plan: ReadPlan) -> Rows:
        for part in plan.lake:  # what is read again is remembered by its name: see that it is still there
            if missing := self.missing(part.metadata):
                raise LakeFileMissing(f"{plan.table}, version {plan.version}: {missing}")
        table = read_arrow(plan, self, columns=["id"], coordinates=True, check_lease=lambda: None).rows
        found = zip(*(table[name].to_pylist() for name in ("_kafka_partition", "_kafka_offset", "id")), strict=True)
        rows: Rows = Counter()
        for partition, offset, value in found:
            assert value == offset, "a row with the coordinates of another one"
            rows[partition, offset] += 1
        return rows

    def delete_files(self, claim: Claim) -> None:
        self.upkeep.delete_ripe(self.table, claim)

    def condemn_files(self) -> None:
        self.upkeep.condemn(self.table)

    def missing(self, metadata: str) -> list[str]:
        if not _path(metadata).exists():
            return [metadata]
        view = self.rig.catalog.at((self._table.spec.namespace, self._table.tiered_view), metadata)
        head = view.metadata.current_snapshot()
        assert head is not None
        needed = [head.manifest_list]
        for manifest in head.manifests(view.io):
            entries = manifest.fetch_manifest_entry(view.io, discard_deleted=True)
            needed += [manifest.manifest_path, *(entry.data_file.file_path for entry in entries)]
        return [path for path in needed if not _path(path).exists()]

    def pass_time(self, by: timedelta) -> None:
        super().pass_time(by)
        key = {"by": by, "table_id": self._table.table_id}
        self.rig.ask("UPDATE harness.condemned_files SET since = since - %(by)s WHERE table_id = %(table_id)s", key)
        view = self.rig.catalog.at(
            (self._table.spec.namespace, self._table.tiered_view),
            self.rig.ledger.pointer(self._table, "stream"),
        )
        for file in _path(view.location()).rglob("*"):
            at = file.stat().st_mtime - by.total_seconds()
            os.utime(file, (at, at))


class _LossyConnection:
    """A connection that ends while it waits for the answer of its COMMIT."""

    def __init__(self, connection: Any, lost: str) -> None:
        self._connection = connection
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        act: Callable[[], None] = self._connection.commit if self._lost == KEPT else self._connection.rollback
        act()
        raise adbc_driver_manager.OperationalError(
            "no COMMIT: server closed the connection", status_code=adbc_driver_manager.AdbcStatusCode.IO
        )


def _decoded(table: TableRow, partition: int, low: int, high: int, log: TrueLog) -> DecodedRange:
    refused = [
        RefusedRecord(partition=partition, offset=o, reason="malformed", detail="no JSON", key=None, value=b"{")
        for o in log.offsets("bad", low, high)
    ]
    rows: pa.Table = rows_at(partition, log.offsets("good", low, high), table.spec)
    return DecodedRange(partition=partition, low=low, high=high, rows=rows, refused=refused, leader_epoch=None)


def _within(part: Any, partition: int, offset: int) -> bool:
    return bool(partition in part.low and part.low[partition] <= offset < part.high[partition])


def _number(segment: str) -> int:
    return int(segment.rsplit("_", 1)[1])


def _path(location: str) -> Path:
    return Path(urlparse(location).path)
