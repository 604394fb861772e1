"""What expire costs a table with the retained versions of a day: CPU, and how long readers wait for the trim lock."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson
from psycopg.types.json import Jsonb

import harness_pipelines as hp
from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.locations import local_path
from harness_pipelines.stages.table.expire import expire_once, look_every_s
from harness_pipelines_tests.bench.base import Figure, Run, cpu_seconds
from harness_pipelines_tests.bench.layout_publish import Publishes, claimed
from harness_pipelines_tests.bench.records import PARTITIONS, produce_backlog
from harness_pipelines_tests.bench.scaling.backlog import without_spark

VERSIONS, QUICK_VERSIONS = 8_640, 400  #: a tier move each ten seconds for a day
FILES, QUICK_FILES = 10_000, 1_000
GAP_S, RUN_EVERY_S = 10.0, 60.0  #: between two versions, and between two runs of expire
RUNS = 10
ROWS = 400
CPU_GOAL_S, LOCK_GOAL_MS = 0.1, 20.0
_VERSION = """
INSERT INTO harness.versions
    (table_id, version, stream_metadata, stream_snapshot, schema_version, bounds, committed_at)
VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp() - make_interval(secs => %s))
"""
_POINTER = "UPDATE iceberg_tables SET metadata_location = %s WHERE metadata_location = %s"
_POSITIONS = (
    "UPDATE harness.ingest_positions SET buffer_hi = buffer_hi + %s WHERE table_id = %s",
    "UPDATE harness.lake_positions SET stream_hi = stream_hi + %s WHERE table_id = %s",
)


def measure(run: Run) -> Sequence[Figure]:
    """Ten runs as a worker has them, six new versions before each. One of them lists the files of the table.

    CPU is that of this process and of Postgres.
    """
    versions, files = run.size(VERSIONS, QUICK_VERSIONS), run.size(FILES, QUICK_FILES)
    with without_spark(run) as there:
        run.say(f"expire: {versions:,} retained versions and {files:,} files")
        history = History.of(there, files=files)
        history.add(versions, apart_s=GAP_S)
        locks = Locks(there.harness.stores.database)
        there.harness.stores.upkeep.database = cast("Database", locks)
        with claimed(history.table, Stage.EXPIRE) as claim:
            run.say("expire: the first run, which reads all of it")
            run.note("expire.cpu_first", _once(there, history.table, claim, looks=True), "CPU s")
            locks.held_s.clear()
            costs = list(_runs(there, history, claim))
    for name, kind in (("listing", True), ("not_listing", False)):
        run.note(f"expire.cpu_{name}", statistics.mean(s for listed, s in costs if listed is kind), "CPU s")
    run.note("expire.lock_p50", 1000 * statistics.median(locks.held_s), "ms")
    mean = statistics.mean(seconds for _, seconds in costs)
    return [
        Figure(figure="expire.cpu", value=mean, unit="CPU s", goal=CPU_GOAL_S, sense="<="),
        Figure(figure="expire.lock_max", value=1000 * max(locks.held_s), unit="ms", goal=LOCK_GOAL_MS, sense="<="),
    ]


def _runs(run: Run, history: History, claim: Claim) -> Iterator[tuple[bool, float]]:
    """Whether each run listed the files, and its CPU seconds."""
    every = round(look_every_s(history.table.row) / RUN_EVERY_S)
    for number in range(1, RUNS + 1):
        run.say(f"expire: run {number} of {RUNS}")
        history.add(round(RUN_EVERY_S / GAP_S), apart_s=0.0)
        looks = number % every == 0
        yield looks, _once(run, history.table, claim, looks=looks)


def _once(run: Run, table: hp.Table, claim: Claim, *, looks: bool) -> float:
    before = _cpu_s(run)
    done = expire_once(run.harness.stores, table.row, claim, look=looks)
    assert not done.deleted and not done.condemned, "all files are needed"
    return _cpu_s(run) - before


def _cpu_s(run: Run) -> float:
    found = cpu_seconds(run.harness)
    return found["harness"] + found["postgres"]


@dataclass
class Locks:
    """A database that notes how long each transaction had the trim lock, from the statement's answer to the commit."""

    database: Database
    held_s: list[float] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)

    @contextmanager
    def transaction(self, *, table: str | None = None) -> Iterator[Connection]:
        with self.database.transaction(table=table) as connection:
            noting = Noting(connection)
            yield cast("Connection", noting)
        if noting.taken_at is not None:
            self.held_s.append(time.perf_counter() - noting.taken_at)


@dataclass
class Noting:
    """A session that notes when it took the trim lock."""

    connection: Connection
    taken_at: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def execute(self, statement: Any, *given: Any, **more: Any) -> Any:
        done = self.connection.execute(statement, *given, **more)
        if statement == sql("reads/take_trim_lock"):
            self.taken_at = time.perf_counter()
        return done


@dataclass
class History:
    """A table whose versions each have their own metadata file and manifest list, as moves of tier leave them."""

    table: hp.Table
    head: Version
    base: Mapping[str, Any]  #: the metadata of the one that was really published
    snapshot: Mapping[str, Any]
    manifest_list: bytes
    folder: Path
    pointer: str
    added: int = 0
    recent: list[Mapping[str, Any]] = field(default_factory=list)  #: snapshots that the newest metadata names

    @classmethod
    def of(cls, run: Run, *, files: int) -> History:
        """One version with *files* files, which are there, and empty."""
        topic = run.topic()
        produce_backlog(run.harness.settings, topic, count=ROWS)
        table = run.table(topic, buffer="none", views="stream")
        run.work(table)
        with claimed(table, Stage.TIER) as claim:
            for file in Publishes(table, claim).of_files(files // PARTITIONS).files:
                _local(file.path).touch()
        head = run.harness.stores.ledger.head(table.row)
        metadata = _local(head.stream.metadata)
        base = orjson.loads(metadata.read_bytes())
        [snapshot] = [one for one in base["snapshots"] if one["snapshot-id"] == head.stream.snapshot]
        return cls(
            table=table,
            head=head,
            base=base,
            snapshot={name: value for name, value in snapshot.items() if name != "parent-snapshot-id"},
            manifest_list=_local(snapshot["manifest-list"]).read_bytes(),
            folder=metadata.parent,
            pointer=head.stream.metadata,
        )

    def add(self, count: int, *, apart_s: float) -> None:
        """Publish *count* versions; the last one is of this moment, and they are *apart_s* from each other."""
        stores, table_id = self.table.harness.stores, self.table.row.table_id
        whole = (
            count - self.table.spec.retention.snapshots
        )  #: older ones are read once, for the newest of their snapshots
        rows = [
            self._version(age_s=(count - 1 - number) * apart_s, snapshots=None if number >= whole else 1)
            for number in range(count)
        ]
        with stores.owner.transaction() as connection:
            with connection.cursor() as cursor:
                cursor.executemany(_VERSION, rows)
            connection.execute(_POINTER, [rows[-1][2], self.pointer])
            for statement in _POSITIONS:
                connection.execute(statement, [count, table_id])
            connection.execute("ANALYZE harness.versions")
        self.pointer = rows[-1][2]

    def _version(self, *, age_s: float, snapshots: int | None) -> tuple[Any, ...]:
        """The row of the next version, whose metadata names its newest *snapshots*, or as many as the table keeps."""
        self.added += 1
        number = self.head.version + self.added
        snapshot, listed = 10**15 + number, self.folder / f"snap-{uuid.uuid4()}.avro"
        listed.write_bytes(self.manifest_list)
        sequence = self.base["last-sequence-number"] + self.added
        named = {"snapshot-id": snapshot, "manifest-list": listed.as_uri(), "sequence-number": sequence}
        self.recent = [*self.recent, {**self.snapshot, **named}][-self.table.spec.retention.snapshots :]
        metadata = self.folder / f"{number:05}-{uuid.uuid4()}.metadata.json"
        changed = {
            "snapshots": self.recent if snapshots is None else self.recent[-snapshots:],
            "current-snapshot-id": snapshot,
            "refs": {"main": {"snapshot-id": snapshot, "type": "branch"}},
            "snapshot-log": [],
            "metadata-log": [],
            "last-sequence-number": sequence,
        }
        metadata.write_bytes(orjson.dumps({**self.base, **changed}))
        bounds = {
            str(p): {"start": b.start, "batch_hi": b.batch_hi}
            | {"stream_hi": b.stream_hi + self.added, "buffer_hi": b.buffer_hi + self.added}
            for p, b in self.head.bounds.items()
        }
        row = self.table.row
        return row.table_id, number, metadata.as_uri(), snapshot, row.schema_version, Jsonb(bounds), age_s


def _local(location: str) -> Path:
    found = local_path(location)
    assert found is not None, f"{location}: this bench needs a lake on this machine"
    return Path(found)
