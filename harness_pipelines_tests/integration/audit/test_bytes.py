"""A byte of the lake that changed is an error with the file's name, and never another value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.errors import HarnessError
from harness_pipelines.lakes.iceberg.read.scan import PinnedView, pinned
from harness_pipelines.stages.run.own_mover import OwnMove
from harness_pipelines_tests.keyed import BY_VALUE, KeyedRig, row
from harness_pipelines_tests.lake_files import content, name_of
from harness_pipelines_tests.rig import TableRig

from .flips import bits, changed, flipped, forget_what_was_read
from .scratch import Scratch, scratch

KINDS = {"stream": 60, "batch": 60, "deletes": 40, "manifest": 40, "manifest list": 30, "metadata": 40}


@dataclass(frozen=True, slots=True)
class World:
    """A keyed table with rows in both views, some of them hidden, and a table with rows that Arrow wrote."""

    keyed: KeyedRig
    append: TableRig

    def paths(self, kind: str) -> list[str]:
        """Files of one kind that a read of the newest version needs."""
        if kind == "arrow":
            return [f.path for f in view_of(self.append, "stream").files]
        stream, batch = view_of(self.keyed, "stream"), view_of(self.keyed, "batch")
        reached = {p: b.batch_hi for p, b in self.keyed.head.bounds.items()}
        return {
            "stream": [f.path for f in stream.files if f.high > reached[f.partition or 0]],
            "batch": [f.path for f in batch.files],
            "deletes": [f.deletes.path for f in batch.files if f.deletes is not None],
            "manifest": [*stream.manifests[1:], *batch.manifests[1:]],
            "manifest list": [stream.manifests[0], batch.manifests[0]],
            "metadata": [stream.location, batch.location],
        }[kind]


def arrow_written(move: OwnMove) -> hp.Moved:
    move.append(pa.concat_tables(move.batches()))
    return hp.Moved(ranges=move.ranges, rows=move.rows)


def view_of(rig: TableRig, name: Any) -> PinnedView:
    return pinned(rig.stores.ledger.head(rig.table.row).views[name].metadata)


@pytest.fixture(scope="module")
def place(endpoints: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    with scratch(endpoints, tmp_path_factory.mktemp("bytes")) as made:
        yield made


@pytest.fixture(scope="module")
def world(place: Scratch) -> World:
    keyed = KeyedRig(place.harness, place.kafka, layout={**BY_VALUE, "staged_ratio": 10})
    keyed.put(*(row(i, n=i) for i in range(400)))
    keyed.merge_all()
    keyed.put(*(row(i, n=1000) for i in range(0, 400, 40)))
    keyed.delete(*((i, "eu") for i in range(1, 400, 80)))
    keyed.merge_all()
    keyed.put(*(row(i, n=2000) for i in range(7, 400, 9)))
    keyed.to_stream()
    append = TableRig(place.harness, place.kafka)
    append.produce(60)
    append.ingest()
    with append.table.mover() as mover:  # its rows are written by Arrow
        mover.move(arrow_written)
    return World(keyed, append)


def names_of(rig: TableRig) -> list[str]:
    return [*(column.name for column in rig.table.spec.columns), "_kafka_partition", "_kafka_offset"]


def read(rig: TableRig) -> Counter[tuple[Any, ...]]:
    rows = rig.table.read(columns=names_of(rig))
    return Counter(zip(*(rows.column(name).to_pylist() for name in names_of(rig)), strict=True))


def spark_read(rig: TableRig) -> Counter[tuple[Any, ...]]:
    with rig.stores.spark_sessions.working() as spark:
        rows = rig.table.to_spark(spark, columns=names_of(rig)).toArrow()
    return Counter(zip(*(rows.column(name).to_pylist() for name in names_of(rig)), strict=True))


def outcome(path: str, ask: Callable[[], Any], right: Any) -> str:
    """right, or named; everything else is what must not be."""
    try:
        found = ask()
    except HarnessError as error:
        return "named" if name_of(path) in str(error) else f"an error that does not name it: {error}"
    return "right" if found == right else "other values"


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_never_another_value(world: World, kind: str):
    right, paths = read(world.keyed), world.paths(kind)
    assert paths
    found: Counter[str] = Counter()
    each = -(-KINDS[kind] // len(paths))
    for path in paths:
        for bit in bits(path, each):
            with flipped(path, bit):
                found[outcome(path, lambda: read(world.keyed), right)] += 1

    assert set(found) <= {"right", "named"}, found
    assert found["named"] > found.total() / 2  # a flip in a column that is not read, or in what nobody asks, is none


def test_a_flipped_bit_in_what_arrow_wrote_is_never_another_value(world: World):
    right = read(world.append)
    found: Counter[str] = Counter()
    for path in world.paths("arrow"):
        for bit in bits(path, 40):
            with flipped(path, bit):
                found[outcome(path, lambda: read(world.append), right)] += 1

    assert set(found) <= {"right", "named"}, found
    assert found["named"] > found.total() / 2  # a flip in a column that is not read, or in what nobody asks, is none


@pytest.mark.folder("Iceberg does not let Spark compare the checksums of pages in a file of an object store")
@pytest.mark.parametrize("kind", KINDS)
def test_spark_reads_what_is_right_or_fails(world: World, kind: str):
    from pyspark.errors import PySparkException

    right, path = spark_read(world.keyed), world.paths(kind)[0]
    found: Counter[str] = Counter()
    for bit in bits(path, 8):
        with flipped(path, bit):
            try:
                found[outcome(path, lambda: spark_read(world.keyed), right)] += 1
            except PySparkException as error:
                found["CRC" if "CRC checksum" in str(error) else "failed"] += 1

    assert set(found) <= {"right", "named", "CRC", "failed"}, found  # "failed": what a page begins with is nonsense
    assert found["named"] + found["CRC"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_was_cut_off_is_named(world: World, kind: str):
    right, path = read(world.keyed), world.paths(kind)[0]
    whole = content(path)
    for kept in (len(whole) - 1, len(whole) // 2, 0):
        with changed(path, whole[:kept]):
            assert outcome(path, lambda: read(world.keyed), right) == "named"


@pytest.mark.parametrize("kind", ["stream", "batch", "deletes", "manifest", "manifest list", "metadata"])
def test_two_files_that_were_swapped_are_named(world: World, kind: str):
    """Those that are shorter are filled up: their lengths tell nothing."""
    right, paths = read(world.keyed), world.paths(kind)
    one, other = (content(path) for path in paths[:2])
    size = max(len(one), len(other))
    for path, foreign in ((paths[0], other), (paths[1], one)):
        held = content(path)
        swapped = foreign[: len(held)] if len(foreign) >= len(held) else foreign + held[len(foreign) - size :]
        with changed(path, swapped):
            assert outcome(path, lambda: read(world.keyed), right) in {"named", "right"}
        with changed(path, foreign):
            assert outcome(path, lambda: read(world.keyed), right) == "named"


@pytest.mark.parametrize("kind", KINDS)
def test_fsck_and_audit_name_a_file_of_which_a_bit_was_flipped(world: World, kind: str):
    path = world.paths(kind)[-1]
    rig = world.keyed
    for bit in bits(path, 3):
        if kind in {"stream", "batch", "deletes"} and bit < 32:
            continue  # the first four bytes say that it is a Parquet file, which nobody asks
        with flipped(path, bit):
            report = fsck(rig.stores, [rig.name])
            assert [f for f in report.broken if f.invariant == "S10" and name_of(path) in f.detail], report.to_json()
            with pytest.raises(HarnessError, match=name_of(path)):
                audit_table(rig.stores, rig.table.row)
    forget_what_was_read()
    assert fsck(rig.stores, [rig.name]).ok
    assert audit_table(rig.stores, rig.table.row).ok
