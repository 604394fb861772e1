"""The columns of a table change in all tiers at one instant: rows, old versions, records and workers."""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any

import pyarrow as pa
import pytest

from harness_pipelines import faults
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.audit.repair.rebuild import SchemaDiffers, plan_rebuild
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.changes.reverts import RevertRefused
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.overlays import OverlayRequest
from harness_pipelines.protocol.schema.evolution import ColumnChanges, EvolutionRefused
from harness_pipelines.protocol.schema.schemas import SchemaMoved
from harness_pipelines.read.stream import stream as streaming
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines.stages.otree.recall import ask
from harness_pipelines.stages.otree.recall import run as run_recall
from harness_pipelines.stages.replay.ranges import replay_range
from harness_pipelines.stages.table.evolve import plan
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import ALL, INGEST, OTREE, TableRig


def add(name: str, type_: str) -> Column:
    return Column(name=name, type=parse_type(type_))


def rows(rig: TableRig, *, at: int | None = None, spark: bool = False) -> list[dict[str, Any]]:
    table = rig.harness.table(rig.name)
    found: pa.Table = table.to_spark(rig.stores.spark(), at=at).toArrow() if spark else table.read(at=at)
    return sorted(found.to_pylist(), key=lambda row: row["id"])


def changed(rig: TableRig, changes: ColumnChanges) -> None:
    rig.harness.table(rig.name).evolve(changes)


def merged(rig: TableRig) -> None:
    rig.worker(OTREE, until_idle=True).run()


def same(rig: TableRig, expected: list[dict[str, Any]], *, at: int | None = None) -> None:
    assert rows(rig, at=at) == expected
    assert rows(rig, at=at, spark=True) == expected


@pytest.mark.long
@pytest.mark.parametrize("views", ["both", "stream", "batch"])
def test_a_column_is_there_in_every_tier_from_one_version_on(make_rig: MakeRig, views: str):
    rig = make_rig(views=views, layout={"columns": ["id"]}, partitions=1)
    rig.produce(4)
    rig.ingest()
    rig.tier()
    rig.produce(3)
    rig.ingest()
    if views == "both":
        merged(rig)  # a version with rows in the buffer
        rig.tier()
        rig.produce(3)
        rig.ingest()
    before = rows(rig)
    old = rig.stores.tables.head(rig.table.row).version
    then = {version: rows(rig, at=version) for version in range(1, old)}

    published = rig.harness.table(rig.name).evolve(ColumnChanges(add=(add("more", "string"),)))

    assert (published.version, published.schema_version) == (old + 1, 2)
    later = [{**row, "more": None} for row in before]
    then[old] = rows(rig, at=old)
    assert {*then[old][0]} == {"id", "n", "s"}
    same(rig, later)
    for version, found in then.items():
        same(rig, found, at=version)
    rig.kafka.produce(rig.topic, 0, [b'{"id":1000,"n":1,"s":"x","more":"yes"}'])
    rig.ingest()
    later.append({"id": 1000, "n": 1, "s": "x", "more": "yes"})
    same(rig, later)
    rig.tier()
    same(rig, later)
    if views == "both":
        merged(rig)
        same(rig, later)
    for version, found in then.items():
        same(rig, found, at=version)


def whole(rig: TableRig) -> None:
    assert audit_table(rig.stores, rig.harness.table(rig.name).row, full=True).ok
    assert fsck(rig.stores, [rig.name]).ok


def names(rig: TableRig) -> list[str]:
    return [column.name for column in rig.harness.table(rig.name).spec.columns]


# -- beside those who work and read -------------------------------------------------------------------------


def test_a_unit_that_was_decoded_before_the_publish_is_decoded_again(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    rig.kafka.produce(rig.topic, 0, [b'{"id":1,"n":1,"s":"x","more":"yes"}'])
    more = ColumnChanges(add=(add("more", "string"),))
    faults.arm("ingest.before_lock", lambda: changed(rig, more))

    rig.ingest()

    assert rows(rig) == [{"id": 1, "n": 1, "s": "x", "more": "yes"}]
    assert {p.schema_version for p in rig.stores.segments.positions(rig.table.row).values()} == {2}
    whole(rig)


@pytest.mark.parametrize("point", ["after_plan", "during_files", "after_files", "before_lock"])
def test_a_move_that_was_staged_before_the_publish_is_planned_anew(make_rig: MakeRig, point: str):
    rig = make_rig()
    rig.produce(5)
    rig.ingest()
    other = ColumnChanges(drop=("n",), rename=(("s", "t"),))
    faults.arm(f"tier.{point}", lambda: changed(rig, other))

    rig.tier()

    found = [(m["schema_version"], m["state"]) for m in rig.stores.ledger.moves(rig.table.row, stage=Stage.TIER)]
    assert (2, "COMMITTED") in found
    assert all(state == "ABANDONED" for schema, state in found if schema == 1)
    assert [{*row} for row in rows(rig)] == [{"id", "t"}] * 10
    assert all(p.bounds.stream_hi == p.bounds.buffer_hi for p in rig.table.positions())
    whole(rig)


def test_workers_and_readers_go_on_while_columns_come_and_go(make_rig: MakeRig):
    """No read fails, every row is there once, and each read has one schema."""
    rig = make_rig(views="both", layout={"columns": ["id"]})
    wrong: list[str] = []
    stop = threading.Event()

    def read() -> None:
        table = rig.harness.table(rig.name)
        while not stop.is_set():
            try:
                found = table.read()
            except HarnessError as error:
                wrong.append(str(error))
                return
            ids = found.column("id").to_pylist()
            if len(ids) != len(set(ids)):
                wrong.append(f"{len(ids)} rows, {len(set(ids))} ids")

    readers = [threading.Thread(target=read) for _ in range(2)]
    with rig.working(ALL):
        for reader in readers:
            reader.start()
        for number in range(12):
            rig.produce(20)
            rig.harness.table(rig.name).evolve(
                ColumnChanges(
                    rename=(("s" if number == 0 else f"s{number - 1}", f"s{number}"),), add=(add(f"a{number}", "int"),)
                )
            )
        rig.produce(20)
        wait_until(lambda: rig.read().total() == rig.truth.total(), "all records are read")
        stop.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    rig.assert_exact()
    assert rig.harness.table(rig.name).row.schema_version == 13
    whole(rig)


def test_a_read_that_was_begun_before_has_the_columns_of_then(make_rig: MakeRig):
    rig = make_rig(views="both", layout={"columns": ["id"]}, retention={"versions": "1s", "grace": "1s"})
    rig.produce(5)
    rig.ingest()
    table = rig.harness.table(rig.name)
    taken = table.plan()
    before = rows(rig)
    table.evolve(ColumnChanges(drop=("n",), rename=(("s", "t"),)))
    rig.produce(5)
    rig.ingest()
    rig.tier()
    rig.worker(OTREE, until_idle=True).run()

    found = table.to_spark(rig.stores.spark(), plan=taken).toArrow()

    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == before
    table.release(taken)
    whole(rig)


def test_an_old_version_has_a_dropped_column_also_of_rows_that_were_in_the_buffer(make_rig: MakeRig):
    rig = make_rig(views="both", layout={"columns": ["id"]})
    rig.produce(5)
    rig.ingest()
    rig.tier()
    rig.produce(5)
    rig.ingest()
    merged(rig)
    old = rig.table.versions()[-1].version
    before = rows(rig)
    assert len(before) == 20
    rig.harness.table(rig.name).evolve(ColumnChanges(drop=("n",)))
    rig.tier()
    merged(rig)

    same(rig, before, at=old)
    whole(rig)


def test_of_two_at_once_one_is_told_that_the_other_came_first(make_rig: MakeRig):
    rig = make_rig()
    first = rig.harness.table(rig.name)
    faults.arm("evolve.before_lock", lambda: changed(rig, ColumnChanges(add=(add("b", "int"),))))

    with pytest.raises(SchemaMoved, match=r"a change was planned with schema 1, the table is at 2"):
        first.evolve(ColumnChanges(add=(add("a", "int"),)))

    assert names(rig) == ["id", "n", "s", "b"]
    first.evolve(ColumnChanges(add=(add("a", "int"),)))
    assert names(rig) == ["id", "n", "s", "b", "a"]
    whole(rig)


@pytest.mark.parametrize("point", ["before_lock", "in_transaction", "after_commit"])
def test_a_death_leaves_the_old_columns_or_the_new_ones(make_rig: MakeRig, point: str):
    rig = make_rig(views="both", layout={"columns": ["id"]})
    rig.produce(5)
    rig.ingest()
    faults.arm_from({"HARNESS_FAULT": f"evolve.{point}=raise"})
    with pytest.raises(faults.FaultInjected):
        rig.harness.table(rig.name).evolve(ColumnChanges(add=(add("a", "int"),)))

    took = point == "after_commit"
    assert names(rig) == ["id", "n", "s", *(["a"] if took else [])]
    rig.produce(5)
    rig.ingest()
    rig.tier()
    assert len(rows(rig)) == 20
    whole(rig)


def test_a_stream_goes_on_in_the_new_columns(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "LOOK_EVERY_S", 0.1)
    rig = make_rig(partitions=1)
    rig.produce(3)
    rig.ingest()
    table = rig.harness.table(rig.name)
    stream = iter(table.stream())
    first = next(stream)
    assert first.rows.column_names[:3] == ["id", "n", "s"]
    seen = first.rows.num_rows
    while seen < 3:
        seen += next(stream).rows.num_rows
    table.evolve(ColumnChanges(rename=(("s", "t"),)))
    columns: list[list[str]] = []

    def goes_on_in_the_new_ones() -> bool:
        rig.produce(1)
        batch = next(stream)
        if batch.rows.num_rows:
            columns.append(batch.rows.column_names[:3])
        return columns[-1:] == [["id", "n", "t"]]

    with rig.working(INGEST):
        wait_until(goes_on_in_the_new_ones, "the stream gives rows in the new columns")


# -- other tables, and what is refused ----------------------------------------------------------------------


def test_a_table_without_a_buffer(make_rig: MakeRig):
    rig = make_rig(buffer="none")
    rig.produce(3)
    rig.tier()
    rig.harness.table(rig.name).evolve(ColumnChanges(rename=(("s", "t"),), add=(add("more", "int"),), widen=()))
    rig.kafka.produce(rig.topic, 0, [b'{"id":1000,"n":1,"t":"x","more":5}'])
    later = rows(rig)
    assert later[-1] == {"id": 1000, "n": 1, "t": "x", "more": 5}
    rig.tier()
    same(rig, later)
    whole(rig)


@pytest.mark.long
def test_a_keyed_table(make_rig: MakeRig):
    rig = make_rig(views="both", key=["id"], partitions=1, layout={"columns": ["id"]})

    def put(key: int, value: bytes | None) -> None:
        rig.kafka.produce(rig.topic, 0, [value], key=b'{"id":%d}' % key)

    for key in range(4):
        put(key, b'{"id":%d,"n":1,"s":"old"}' % key)
    rig.ingest()
    rig.tier()
    merged(rig)
    put(1, b'{"id":1,"n":2,"s":"newer"}')
    rig.ingest()
    before = rows(rig)
    old = rig.table.versions()[-1].version
    rig.harness.table(rig.name).evolve(
        ColumnChanges(rename=(("s", "t"),), widen=(("n", parse_type("long")),), add=(add("more", "int"),))
    )
    later = {row["id"]: {"id": row["id"], "n": row["n"], "t": row["s"], "more": None} for row in before}
    same(rig, list(later.values()))
    put(2, b'{"id":2,"n":5000000000,"t":"new","more":7}')
    put(3, None)
    rig.ingest()
    later[2] = {"id": 2, "n": 5_000_000_000, "t": "new", "more": 7}
    del later[3]
    same(rig, list(later.values()))
    assert rig.harness.table(rig.name).get(2) == later[2]
    rig.tier()
    merged(rig)
    same(rig, list(later.values()))
    assert rig.harness.table(rig.name).get(1) == later[1]
    assert {*rows(rig, at=old)[0]} == {"id", "n", "s"}
    whole(rig)


def test_a_default_counts_from_its_version_on_and_fills_older_rows_by_a_replay(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    rig.kafka.produce(rig.topic, 0, [b'{"id":0}', b'{"id":1,"n":null}'])
    rig.ingest()
    rig.tier()
    more = Column(name="more", type=parse_type("date"), default="2026-01-31")
    changed(rig, ColumnChanges(default=(("n", 5),), add=(more,)))
    rig.kafka.produce(rig.topic, 0, [b'{"id":2}', b'{"id":3,"n":null,"more":null}'])
    rig.ingest()
    day, none = dt.date(2026, 1, 31), {"n": None, "s": None, "more": None}
    later = [{"id": 2, "n": 5, "s": None, "more": day}, {"id": 3, **none}]
    assert rows(rig) == [{"id": 0, **none}, {"id": 1, **none}, *later]
    whole(rig)

    row = rig.harness.table(rig.name).row
    replay_range(rig.stores, row, OffsetRange(partition=0, low=0, high=2))
    filled = [{"id": 0, "n": 5, "s": None, "more": day}, {"id": 1, "n": None, "s": None, "more": day}]
    assert rows(rig) == [*filled, *later]
    whole(rig)


def test_recalled_rows_are_read_changed_and_given_back_in_the_columns_of_now(make_rig: MakeRig):
    columns = {"id": "long", "n": "int", "s": "struct<a: int>"}
    rig = make_rig(views="both", key=["id"], partitions=1, layout={"columns": ["id"]}, columns=columns)
    changed(rig, ColumnChanges(rename=(("n", "m"),), add=(add("s.b", "int"),)))
    for key in range(4):
        rig.kafka.produce(rig.topic, 0, [b'{"id":%d,"n":1,"s":{"a":1}}' % key], key=b'{"id":%d}' % key)
    rig.ingest()
    rig.tier()
    merged(rig)
    row = rig.harness.table(rig.name).row
    list(run_recall(rig.stores, row, ask(rig.stores, row, OverlayRequest.RECALL, where="id < 2")))
    with pytest.raises(EvolutionRefused, match=r"2 rows are recalled .* `harness recall .* --release`"):
        rig.harness.table(rig.name).evolve(ColumnChanges(drop=("m",)))
    old = rig.table.versions()[-1].version
    more = (add("s.c", "string"), add("t", "string"))
    changed(rig, ColumnChanges(rename=(("m", "k"),), widen=(("k", parse_type("long")),), add=more))
    now = {"k": 1, "s": {"a": 1, "b": None, "c": None}, "t": None}
    same(rig, [{"id": key, **now} for key in range(4)])
    assert rows(rig, at=old)[0] == {"id": 0, "m": 1, "s": {"a": 1, "b": None}}
    assert rig.harness.table(rig.name).get(0) == {"id": 0, **now}
    whole(rig)

    rig.kafka.produce(rig.topic, 0, [b'{"id":0,"k":5000000000,"s":{"c":"x"},"t":"new"}'], key=b'{"id":0}')
    rig.ingest()
    rig.tier()
    merged(rig)  # a generation of rows of three schemas
    first = {"id": 0, "k": 5_000_000_000, "s": {"a": None, "b": None, "c": "x"}, "t": "new"}
    same(rig, [first, *({"id": key, **now} for key in range(1, 4))])
    whole(rig)
    row = rig.harness.table(rig.name).row
    list(run_recall(rig.stores, row, ask(rig.stores, row, OverlayRequest.RELEASE)))
    assert rows(rig) == [first, *({"id": key, **now} for key in range(1, 4))]
    whole(rig)


def test_a_revert_across_it_is_refused(make_rig: MakeRig):
    rig = make_rig()
    rig.produce(3)
    rig.ingest()
    rig.tier()
    rig.harness.table(rig.name).evolve(ColumnChanges(add=(add("a", "int"),)))
    with pytest.raises(RevertRefused, match="it has schema 1, the table is at schema 2"):
        revert_table(rig.stores, rig.harness.table(rig.name).row, to=2)


def test_a_dry_run_changes_nothing(make_rig: MakeRig):
    rig = make_rig()
    row = rig.harness.table(rig.name).row
    told, _ = plan(rig.stores, row, ColumnChanges(add=(add("a", "int"),)))
    assert told.schema_version == 2
    assert rig.harness.table(rig.name).row == row


def test_pre_images_do_not_cross_it(make_rig: MakeRig):
    rig = make_rig(views="both", key=["id"], partitions=1, layout={"columns": ["id"]})
    rig.kafka.produce(rig.topic, 0, [b'{"id":1,"n":1,"s":"old"}'], key=b'{"id":1}')
    rig.ingest()
    rig.tier()
    old = rig.table.versions()[-1].version
    table = rig.harness.table(rig.name)
    table.evolve(ColumnChanges(add=(add("a", "int"),)))
    rig.kafka.produce(rig.topic, 0, [b'{"id":1,"n":2,"s":"new"}'], key=b'{"id":1}')
    rig.ingest()
    rig.tier()
    assert table.changes(old).num_rows == 1
    with pytest.raises(UsageError, match="the columns were changed between versions"):
        table.changes(old, pre_images=True)


def test_a_lost_ledger_is_not_made_from_a_lake_whose_columns_were_changed(make_rig: MakeRig):
    rig = make_rig()
    rig.produce(3)
    rig.ingest()
    rig.tier()
    table = rig.harness.table(rig.name)
    table.evolve(ColumnChanges(add=(add("a", "int"),)))
    spec = rig.harness.table(rig.name).spec
    rig.stores.ledger.drop_table(rig.harness.table(rig.name).row)
    with pytest.raises(SchemaDiffers, match="its columns were changed .schema 2 in the lake."):
        plan_rebuild(rig.stores, spec)
