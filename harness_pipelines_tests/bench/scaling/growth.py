"""What a table costs as its history and its files grow: each act at three lengths of history and numbers of files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from datetime import timedelta

import psycopg
from pyiceberg.manifest import DataFile

import harness_pipelines as hp
from harness_pipelines.lakes.iceberg.read.scan import staged_file
from harness_pipelines.ports.lake import Staged
from harness_pipelines.ports.ledger import MoveDraft
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.read.clustering import layout_of
from harness_pipelines.show.status import KafkaEnds, look
from harness_pipelines.stages.otree import otree
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines_tests.bench.base import Figure, Run, timed
from harness_pipelines_tests.bench.layout_publish import Publishes, claimed
from harness_pipelines_tests.bench.records import PARTITIONS, produce_backlog
from harness_pipelines_tests.bench.scaling.backlog import without_spark
from harness_pipelines_tests.planted import plant

HISTORIES, QUICK_HISTORIES = (100, 2_000, 20_000), (100, 500, 2_000)  #: steps, see `harness_pipelines_tests.planted`
FILES, QUICK_FILES = (1_000, 10_000, 100_000), (100, 1_000, 4_000)  #: of each view
GAP = timedelta(minutes=1)  #: all steps are younger than what is folded
ROWS = 4_000  #: that are really moved first
LEAST, ROUNDS_S = 4, 120.0  #: rounds of a slow machine
GROWTH_MAX = 1.3
ACTS = ("publish", "look", "status", "expire", "otree_look")
#: All versions have the files of the one that was really published; and all that is tiered is merged.
_REAL_FILES = (
    "SET LOCAL session_replication_role = replica",
    """
    UPDATE harness.versions v
    SET stream_metadata = h.stream_metadata, stream_snapshot = h.stream_snapshot,
        batch_metadata = h.batch_metadata, batch_snapshot = h.batch_snapshot,
        bounds = (SELECT jsonb_object_agg(p.key, p.value || jsonb_build_object('batch_hi', p.value -> 'stream_hi'))
                  FROM jsonb_each(v.bounds) p)
    FROM harness.versions h
    WHERE h.table_id = %(t)s AND h.version = %(head)s AND v.table_id = h.table_id AND v.version > h.version
    """,
    "UPDATE harness.lake_positions SET batch_hi = stream_hi WHERE table_id = %(t)s",
    "DELETE FROM harness.view_folders WHERE table_id = %(t)s AND folder = 'file:///planted/t'",
)
_UNCOUNTED = "DELETE FROM harness.rows_brought WHERE table_id = %s"  #: what is planted counts for all
_CHANGED = ("moves", "versions", "outbox", "checkpoints", "rows_brought")


def measure(run: Run) -> Sequence[Figure]:
    """Seconds of each act at the longest history and the most files, to those at the shortest and the fewest.

    `otree_look` is the first look after a merge: while nothing changes, a worker does not look at the files.
    """
    topic = run.topic()
    produce_backlog(run.harness.settings, topic, count=ROWS)
    histories, files = (QUICK_HISTORIES, QUICK_FILES) if run.quick else (HISTORIES, FILES)
    with without_spark(run) as there:
        took = {
            "steps": _took(there, "steps", {count: _of_history(there, topic, count) for count in histories}),
            "files": _took(there, "files", {count: _of_files(there, topic, count) for count in files}),
        }
    for what, found in took.items():
        for count, acts in found.items():
            for act, seconds in acts.items():
                run.note(f"growth.{count}_{what}.{act}", 1000 * seconds, "ms")
    return [_growth(what, act, found) for what, found in took.items() for act in ACTS]


def _growth(what: str, act: str, found: Mapping[int, Mapping[str, float]]) -> Figure:
    value = found[max(found)][act] / found[min(found)][act]
    return Figure(figure=f"growth.{what}.{act}", value=value, unit="x", goal=GROWTH_MAX, sense="<=")


def _took(run: Run, what: str, tables: Mapping[int, hp.Table]) -> Mapping[int, Mapping[str, float]]:
    """Median seconds of each act. The tables take turns, so that what else the machine does slows all of them."""
    with ExitStack() as opened:
        acts = {count: Acts(run, table, opened) for count, table in tables.items()}
        rounds: list[Mapping[int, Mapping[str, float]]] = []
        until = time.monotonic() + ROUNDS_S
        while len(rounds) <= run.size(11, 5) and (len(rounds) < LEAST or time.monotonic() < until):
            run.say(f"growth: {what}, round {len(rounds)}")
            rounds.append({count: one.once() for count, one in acts.items()})
    return {count: {act: statistics.median(one[count][act] for one in rounds[1:]) for act in ACTS} for count in tables}


def _of_history(run: Run, topic: str, steps: int) -> hp.Table:
    run.say(f"growth: {steps:,} steps of history")
    table = _moved(run, topic)
    stores, head = run.harness.stores, run.harness.stores.ledger.head(table.row)
    with stores.owner.transaction() as connection:
        connection.execute(_UNCOUNTED, [table.row.table_id])
        plant(connection, table.row.table_id, steps=steps, gap=GAP, rows=ROWS, partitions=PARTITIONS)
        for statement in _REAL_FILES:
            connection.execute(statement, {"t": table.row.table_id, "head": head.version})
    _as_autovacuum(stores.owner_dsn)
    return table


def _of_files(run: Run, topic: str, files: int) -> hp.Table:
    run.say(f"growth: {files:,} files in each view")
    table = _moved(run, topic)
    with claimed(table, Stage.TIER) as tier, claimed(table, Stage.OTREE) as merge:
        Publishes(table, tier).of_files(files // PARTITIONS)
        Merges(table, merge).merge(files, clustered=True)
    return table


def _moved(run: Run, topic: str) -> hp.Table:
    """A new table with some real files in both views."""
    table = run.table(topic, buffer="none", views="both", layout={"columns": ["customer"], "regions": 4})
    run.work(table)
    assert sum(p.bounds.batch_hi for p in table.positions()) == ROWS
    return table


def _as_autovacuum(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in _CHANGED:
            connection.execute(f"VACUUM ANALYZE harness.{name}")


class Acts:
    """What a worker and a person do with one table again and again."""

    def __init__(self, run: Run, table: hp.Table, opened: ExitStack) -> None:
        self._harness, self._table, self._ends = run.harness, table, KafkaEnds(run.harness)
        self._expire = opened.enter_context(claimed(table, Stage.EXPIRE))
        self._tiers = Publishes(table, opened.enter_context(claimed(table, Stage.TIER)))
        self._merges = Merges(table, opened.enter_context(claimed(table, Stage.OTREE)))

    def once(self) -> Mapping[str, float]:
        """Seconds of each."""
        stores, row = self._harness.stores, self._table.row
        took = {
            "look": timed(lambda: stores.watch.pulses([row.table_id])),
            "status": timed(lambda: look(self._harness, self._table, self._ends)),
            "expire": timed(lambda: expire_once(stores, row, self._expire, look=False)),
        }
        [took["publish"]] = self._tiers.times(1)
        self._merges.merge(1)
        return {**took, "otree_look": timed(lambda: otree.trigger(stores, row))}


class Merges:
    """Moves of otree, with files that are described as those of the batch view are."""

    def __init__(self, table: hp.Table, claim: Claim) -> None:
        self._table, self._claim = table, claim
        head = table.harness.stores.ledger.head(table.row)
        assert head.batch is not None
        view = table.harness.stores.lake.load(table.row, head.batch.metadata, view="batch")
        snapshot = view.metadata.current_snapshot()
        assert snapshot is not None
        self._templates: list[DataFile] = [
            entry.data_file
            for manifest in snapshot.manifests(view.io)
            for entry in manifest.fetch_manifest_entry(view.io)
        ]

    def merge(self, files: int, *, clustered: bool = False) -> None:
        """Publish *files* for all that the stream view has more; *clustered*: as by a move that wrote whole regions."""
        stores, row = self._table.harness.stores, self._table.row
        head = stores.ledger.head(row)
        move = stores.ledger.plan_move(
            self._claim,
            MoveDraft(
                stage=Stage.OTREE,
                shard=0,
                lo={p: bounds.batch_hi for p, bounds in head.bounds.items()},
                hi={p: bounds.stream_hi for p, bounds in head.bounds.items()},
                base_version=head.version,
                schema_version=row.schema_version,
                trigger="rows",
            ),
        )
        assert head.batch is not None
        stores.lake.make_branch(row, move, head.batch)
        attempt = otree.Attempt(staged=self._described(move.move_id, files))
        if clustered:
            layout = layout_of(stores, row, head)
            assert layout is not None
            attempt = otree.Attempt(staged=attempt.staged, layout=layout, fresh=tuple(layout.tree.paths()))
        otree.publish(stores, row, self._claim, move, attempt)

    def _described(self, move_id: int, count: int) -> Staged:
        files = tuple(self._file(move_id, number) for number in range(count))
        size = sum(file.file_size_in_bytes for file in files)
        found = tuple(staged_file(file, low=0, high=2**63 - 1) for file in files)
        return Staged(files=found, rows=sum(file.stored for file in found), bytes=size, written=files)

    def _file(self, move_id: int, number: int) -> DataFile:
        file = copy(self._templates[number % len(self._templates)])
        file._data = list(file._data)
        file[1] = f"{file.file_path.rpartition('/')[0]}/{move_id:08}-{number}.parquet"
        return file
