"""What a stage is given to do before and after a worker dies in it, and how one sees that it was done.

A drill works on several tables at once: one worker for all of them costs little more than a worker for one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
from pyarrow import parquet

import harness_pipelines as hp
from harness_pipelines.errors import HarnessError
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.lakes.iceberg.write.quarantine import RawBytes
from harness_pipelines.ports.upkeep import BytesMoved
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake import wide
from harness_pipelines.protocol.lake.compaction import FILES_MIN
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import Primitive
from harness_pipelines.stages import compact
from harness_pipelines.stages.replay.damaged_file import repair_file
from harness_pipelines.stages.run import reading
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests import lake_files
from harness_pipelines_tests.catalog_server import CatalogServer
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST, OTREE, TIER, ByHand, TableRig

COMPACT, EXPIRE, MIRROR = frozenset({Stage.COMPACT}), frozenset({Stage.EXPIRE}), frozenset({Stage.MIRROR})
Rigs = Sequence[TableRig]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """How one stage is exercised.

    *prepare* gives the stage work that reaches every point of it; *more* is what arrives while it is down. A table is
    *caught_up* when workers of *stages* have left nothing of either.
    """

    stages: frozenset[Stage]
    prepare: Callable[[Rigs], None]
    more: Callable[[Rigs], None]
    caught_up: Callable[[TableRig], bool]
    by_hand: ByHand | None = None  #: what dies in place of a worker, for a stage that a person asks for
    until_idle: bool = True  #: or the worker ends by the clock
    damages: bool = False  #: versions of before keep a damaged file, and so may the newest until it is repaired
    spec: Mapping[str, Any] = field(default_factory=dict)


def work(rigs: Rigs, stages: frozenset[Stage]) -> None:
    """One worker for all *rigs*, until nothing is left to move."""
    options = WorkerOptions(stages=stages, until_idle=True)
    Worker(rigs[0].stores, [rig.table.row for rig in rigs], options).run()


def _produce(rigs: Rigs, count: int) -> None:
    for rig in rigs:
        rig.produce(count)


def _buffer(rigs: Rigs, count: int) -> None:
    _produce(rigs, count)
    if rigs[0].table.spec.buffer != "none":
        with mock.patch.object(reading, "INGEST_UNITS_MAX", 1):  # a thread costs more here than the few records do
            work(rigs, INGEST)


def _in_the_lake(rig: TableRig) -> bool:
    acked = rig.kafka.acked(rig.topic)
    return all(stream_hi == len(acked[p]) for p, (stream_hi, _) in rig.status().items())


# -- otree --------------------------------------------------------------------------------------------------


def _tier(rigs: Rigs, count: int) -> None:
    _buffer(rigs, count)
    work(rigs, TIER)


def _merged_once(rigs: Rigs) -> None:
    """A batch view with a tree, and rows of the stream view that it lacks."""
    _tier(rigs, 20)
    work(rigs, OTREE)
    _tier(rigs, 20)


def _in_the_batch_view(rig: TableRig) -> bool:
    acked = rig.kafka.acked(rig.topic)
    return all(p.bounds.batch_hi == len(acked[p.partition]) for p in rig.table.positions())


# -- compact ------------------------------------------------------------------------------------------------


def _small_files(rigs: Rigs) -> None:
    """As many files per partition as are worth putting together: from a buffer tier writes one per task."""
    if rigs[0].table.spec.buffer == "none":
        for _ in range(FILES_MIN):
            _tier(rigs, 5)
        return
    with mock.patch.object(wide, "TASK_OFFSETS_MAX", 5):
        _tier(rigs, 5 * FILES_MIN)


def _compacted(rig: TableRig) -> bool:
    return not compact.due(rig.stores, rig.table.row, rig.stores.ledger.head(rig.table.row))


# -- mirror -------------------------------------------------------------------------------------------------


@cache
def _catalog() -> CatalogServer:
    """A foreign catalog for all drills; it ends with the process."""
    return CatalogServer(Path(tempfile.mkdtemp(prefix="lakehouse-"))).start()


class _InACatalog(Mapping[str, Any]):
    """Words of a spec with a catalog, whose server is started by whoever asks for them first."""

    def __getitem__(self, word: str) -> Any:
        return [{"name": "lakehouse", "type": "rest", "uri": _catalog().uri, "namespace": "scratch"}]

    def __iter__(self) -> Iterator[str]:
        return iter(("catalogs",))

    def __len__(self) -> int:
        return 1


def _mirrored(rig: TableRig) -> bool:
    return all(lag.version == lag.head for lag in rig.stores.mirrors.lags([rig.name]))


# -- expire -------------------------------------------------------------------------------------------------

_LEFT = """
    SELECT (SELECT count(*) FROM harness.segments WHERE table_id = %(table_id)s
            AND (state = 'closed' OR retired_at < clock_timestamp() - interval '1 hour'))
         + (SELECT count(*) FROM harness.condemned_files
            WHERE table_id = %(table_id)s AND since < clock_timestamp() - interval '1 hour')
         + (SELECT (coalesce(sum(bytes), 0) > 1048576)::int FROM harness.quarantine_in_postgres
            WHERE table_id = %(table_id)s)
         + (SELECT greatest(count(*) - 60, 0) FROM harness.moves WHERE table_id = %(table_id)s
            AND stage = 'ingest' AND committed_at < clock_timestamp() - interval '30 days')
"""
#: Old moves of ingest that took nothing, more than expire leaves.
_OLD = """
    INSERT INTO harness.moves (table_id, stage, shard, lo, hi, schema_version, state, epoch, trigger, rows,
                               committed_at)
    SELECT %(table_id)s, 'ingest', 0, '{}', '{}', 1, 'COMMITTED', 0, 'log', 0, clock_timestamp() - interval '40 days'
    FROM generate_series(1, 200)
"""
_AGE = (
    _OLD,
    "UPDATE harness.segments SET retired_at = retired_at - interval '1 day' WHERE table_id = %(table_id)s",
    "UPDATE harness.condemned_files SET since = since - interval '1 day' WHERE table_id = %(table_id)s",
    "DELETE FROM harness.reach WHERE table_id = %(table_id)s",  # so that there are versions to read
)


def _superseded(rigs: Rigs) -> None:
    """Give expire something of each kind: a segment to drop, files to delete, a segment to retire, bytes to move.

    The first run of expire decides, the clock of its decisions is put back by a day, and the second run is the drill.
    """
    for rig in rigs:
        for _ in range(2):  # together more than stays in Postgres
            rig.produce_misfit(b"!" * 600_000)
    _buffer(rigs, 20)
    buffered = rigs[0].table.spec.buffer != "none"
    if buffered:
        _rotate(rigs)
    work(rigs, TIER)
    _expire_until_condemned(rigs)
    if buffered:
        _rotate(rigs)
    for rig in rigs:
        for statement in _AGE:
            _as_owner(rig, statement)
        assert not _trimmed(rig), "there is nothing for expire to do"


def _rotate(rigs: Rigs) -> None:
    for rig in rigs:
        rig.stores.segments.rotate(rig.table.row)


def _expire_until_condemned(rigs: Rigs) -> None:
    """Run expire until it has condemned files and, where there is a buffer, retired the segment of each table."""
    claims = {rig.name: (rig, rig.claim(Stage.EXPIRE)) for rig in rigs}

    def decided(rig: TableRig, claim: Claim) -> bool:
        condemned = expire_once(rig.stores, rig.table.row, claim).condemned
        return bool(condemned) and all(s.state != "closed" for s in rig.stores.segments.all(rig.table.row))

    def all_decided() -> bool:  # one after the other: the tables' versions come of age meanwhile
        for name in [name for name, (rig, claim) in claims.items() if decided(rig, claim)]:
            rig, claim = claims.pop(name)
            rig.stores.ledger.release(claim)
        return not claims

    with mock.patch.object(RawBytes, "move", return_value=BytesMoved()):  # that is left for the drill
        wait_until(all_decided, "expire has retired the segments and condemned files")


def _trimmed(rig: TableRig) -> bool:
    return _as_owner(rig, _LEFT) == 0


def _as_owner(rig: TableRig, statement: str) -> int:
    """Run *statement* as nobody of the harness may; returns its count, if it has one."""
    assert rig.harness.settings.dsn is not None
    with closing(psycopg.connect(rig.harness.settings.dsn, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode(), {"table_id": rig.table.row.table_id})
        row = cursor.fetchone() if cursor.description else None
        return int(row[0]) if row else 0


# -- revert -------------------------------------------------------------------------------------------------

EARLIER = 2


def _moved_twice(rigs: Rigs) -> None:
    for _ in range(2):
        _buffer(rigs, 10)
        work(rigs, TIER)


def revert(harness: hp.Harness, tables: Sequence[str]) -> None:
    """Go back to the first version that holds rows. Who asked is told why when it did not happen."""
    for name in tables:
        with suppress(HarnessError):
            revert_table(harness.stores, harness.table(name).row, to=EARLIER)


# -- replay -------------------------------------------------------------------------------------------------

REFUSED = b'{"id":%d,"n":7,"s":"refused","more":1}'  #: by a table that takes no unknown fields


def _refused_before(rigs: Rigs) -> None:
    """Records are held that the table's spec takes now, and the lake has passed them."""
    _produce(rigs, 5)
    for rig in rigs:
        for partition in (0, 1):
            rig.kafka.produce(rig.topic, partition, [REFUSED % (100_000 + partition)])
    _buffer(rigs, 5)
    work(rigs, TIER)
    for rig in rigs:
        rig.harness.apply(rig.table.spec.model_copy(update={"unknown_fields": "ignore"}))


def replay(harness: hp.Harness, tables: Sequence[str]) -> None:
    """Put back what is held. Who asked is told why when it did not happen."""
    for name in tables:
        with suppress(HarnessError):
            harness.table(name).replay()


def _replayed_again(rigs: Rigs) -> None:
    """Whoever asked repeats it, until a transaction that nobody ends has ended by the timeouts."""

    def none_held(rig: TableRig) -> bool:
        replay(rig.harness, [rig.name])
        return not rig.quarantine()

    for rig in rigs:
        wait_until(lambda rig=rig: none_held(rig), f"the records of {rig.name} are put back")  # type: ignore[misc]
    _buffer(rigs, 5)


# -- evolve -------------------------------------------------------------------------------------------------

MORE = ColumnChanges(add=(Column(name="more", type=Primitive("string")),), rename=(("s", "said"),))


def evolve(harness: hp.Harness, tables: Sequence[str]) -> None:
    """Change the columns. Who asked is told why when it did not happen, or has happened already."""
    for name in tables:
        with suppress(HarnessError):
            harness.table(name).evolve(MORE)


def _evolved_again(rigs: Rigs) -> None:
    """Whoever asked repeats it, until a transaction that nobody ends has ended by the timeouts."""

    def has_more(rig: TableRig) -> bool:
        evolve(rig.harness, [rig.name])
        return "said" in [column.name for column in rig.harness.table(rig.name).spec.columns]

    for rig in rigs:
        wait_until(lambda rig=rig: has_more(rig), f"the columns of {rig.name} are changed")  # type: ignore[misc]
    _buffer(rigs, 5)


# -- snapshot -----------------------------------------------------------------------------------------------


def snapshot(harness: hp.Harness, tables: Sequence[str]) -> None:
    """Name the state of each table, and drop the name again. Who asked is told why when it did not happen."""
    for name in tables:
        with suppress(HarnessError):
            harness.snapshot(_snapshot_of(name), [name])
        with suppress(HarnessError):
            harness.drop_snapshot(_snapshot_of(name))


def _snapshot_of(table: str) -> str:
    return table.rpartition(".")[2]


def _snapshot_again(rigs: Rigs) -> None:
    """Whoever asked repeats it, until a transaction that nobody ends has ended by the timeouts."""

    def is_gone(rig: TableRig) -> bool:
        snapshot(rig.harness, [rig.name])
        return all(one.name != _snapshot_of(rig.name) for one in rig.harness.snapshots())

    for rig in rigs:
        wait_until(lambda rig=rig: is_gone(rig), f"the snapshot of {rig.name} is dropped")  # type: ignore[misc]
    _buffer(rigs, 5)


# -- repair -------------------------------------------------------------------------------------------------


def _a_bit_is_flipped(rigs: Rigs) -> None:
    """In the rows of a file. One that is gone would stop expire by name, which shall work on beside repairs."""
    _moved_twice(rigs)
    for rig in rigs:
        file = _files(rig.table)[0]
        content = bytearray(lake_files.content(file))
        chunk = parquet.read_metadata(BytesIO(content)).row_group(0).column(0)
        content[(chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size - 1] ^= 8
        lake_files.put(file, bytes(content))
        assert _damaged(rig.table) == [file]


def _files(table: hp.Table) -> list[str]:
    """The locations of the data files of the newest version."""
    head = table.harness.stores.ledger.head(table.row)
    return sorted(file.path for file in pinned(head.stream.metadata).files)


def _damaged(table: hp.Table) -> list[str]:
    return [file for file in _files(table) if not _is_whole(file)]


def _is_whole(file: str) -> bool:
    try:
        parquet.read_table(BytesIO(lake_files.content(file)), page_checksum_verification=True)
    except OSError:
        return False
    return True


def repair(harness: hp.Harness, tables: Sequence[str]) -> None:
    """Make the files again that are damaged. Who asked is told why when it did not happen."""
    for name in tables:
        table = harness.table(name)
        for file in _damaged(table):
            with suppress(HarnessError):
                repair_file(harness.stores, table.row, lake_files.name_of(file))


def _repaired_again(rigs: Rigs) -> None:
    """Whoever asked repeats it, until a transaction that nobody ends has ended by the timeouts."""

    def is_whole(rig: TableRig) -> bool:
        repair(rig.harness, [rig.name])
        return not _damaged(rig.table)

    for rig in rigs:
        wait_until(lambda rig=rig: is_whole(rig), f"the files of {rig.name} are made again")  # type: ignore[misc]
    _buffer(rigs, 5)


DRILLS: Mapping[str, Drill] = {
    "ingest": Drill(
        stages=INGEST,
        prepare=lambda rigs: _produce(rigs, 20),
        more=lambda rigs: _produce(rigs, 5),
        caught_up=lambda rig: rig.read().total() >= rig.truth.total(),
    ),
    "tier": Drill(
        stages=TIER,
        prepare=lambda rigs: _buffer(rigs, 20),
        more=lambda rigs: _buffer(rigs, 5),
        caught_up=_in_the_lake,
    ),
    "otree": Drill(
        stages=OTREE,
        prepare=_merged_once,
        more=lambda rigs: _tier(rigs, 5),
        caught_up=_in_the_batch_view,
        spec={"views": "both", "layout": {"columns": ["n", "id"], "target_file_mb": 1}},
    ),
    "compact": Drill(
        stages=COMPACT,
        prepare=_small_files,
        more=_small_files,
        caught_up=_compacted,
    ),
    "expire": Drill(
        stages=EXPIRE,
        prepare=_superseded,
        more=lambda rigs: _buffer(rigs, 5),
        caught_up=_trimmed,
        until_idle=False,
        spec={"retention": {"versions": "1s", "grace": "1s"}, "quarantine_mb": 1},
    ),
    "mirror": Drill(
        stages=MIRROR,
        prepare=lambda rigs: _tier(rigs, 20),
        more=lambda rigs: _tier(rigs, 5),
        caught_up=_mirrored,
        spec=_InACatalog(),
    ),
    "revert": Drill(
        stages=TIER,
        prepare=_moved_twice,
        more=lambda rigs: _buffer(rigs, 5),
        caught_up=_in_the_lake,
        by_hand=revert,
    ),
    "replay": Drill(
        stages=TIER,
        prepare=_refused_before,
        more=_replayed_again,
        caught_up=_in_the_lake,
        by_hand=replay,
        spec={"unknown_fields": "quarantine"},
    ),
    "repair": Drill(
        stages=TIER,
        prepare=_a_bit_is_flipped,
        more=_repaired_again,
        caught_up=_in_the_lake,
        by_hand=repair,
        damages=True,
    ),
    "evolve": Drill(
        stages=TIER,
        prepare=lambda rigs: _buffer(rigs, 20),
        more=_evolved_again,
        caught_up=_in_the_lake,
        by_hand=evolve,
    ),
    "snapshot": Drill(
        stages=TIER,
        prepare=_moved_twice,
        more=_snapshot_again,
        caught_up=_in_the_lake,
        by_hand=snapshot,
    ),
}
