"""A range is decoded again beside the other stages, old readers and each other; from what is left of its records."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.lakes.iceberg.write.publish import Lake
from harness_pipelines.ports.ledger import Swap
from harness_pipelines.protocol.changes.corrections import Kind, RangeRefused, RangeWaits, Wanted
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages import compact
from harness_pipelines.stages.replay.quarantine import drop
from harness_pipelines.stages.replay.ranges import RangeReplayed
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines.stages.tier import tier
from harness_pipelines_tests import engines
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.test_ranges import COLUMNS, by_engines, ranged, seen, spec_of, value
from harness_pipelines_tests.faults.test_replay import settled, states, whole
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import OTREE, TableRig

PER_FILE, FILES = 10, 4
ROWS = PER_FILE * FILES
MILLIS = {o: 1_000_000 * o for o in range(ROWS)}
MICROS = {o: 1000 * o for o in range(ROWS)}


def tiered(rig: TableRig, below: int) -> None:
    claim = rig.claim(Stage.TIER)
    move = tier.plan(rig.stores, rig.table.row, claim, trigger="test", run_id=None, below={0: below})
    assert move is not None
    tier.publish(rig.stores, rig.table.row, claim, move, tier.stage(rig.stores, rig.table.row, move))
    rig.stores.ledger.release(claim)


def compacted(rig: TableRig) -> None:
    claim = rig.claim(Stage.COMPACT)
    compact.compact_once(rig.stores, rig.table.row, claim, trigger="test")
    rig.stores.ledger.release(claim)


def delete_files(rig: TableRig, view: str) -> int:
    head = rig.stores.tables.head(rig.table.row)
    return sum(f.deletes is not None for f in pinned(head.views[view].metadata).files)  # type: ignore[index]


@pytest.fixture
def small(make_rig: MakeRig) -> TableRig:
    """Rows in four small files of the stream view, and in the batch view."""
    layout = {"columns": ["n"], "target_file_mb": 1}
    rig = make_rig(columns=COLUMNS, partitions=1, views="both", layout=layout)
    rig.kafka.produce(rig.topic, 0, [value(o) for o in range(ROWS)])
    rig.ingest()
    for number in range(FILES):
        tiered(rig, (number + 1) * PER_FILE)
    rig.worker(OTREE, until_idle=True).run()
    return rig


def changed_ends(rig: TableRig) -> dict[int, int]:
    """Rows at the ends of files are replaced, and the first and the last of them removed; what is left."""
    strict = spec_of(rig, contract={"columns": {"id": {"gt": 0, "lt": ROWS - 1}}})
    assert ranged(rig, 0, PER_FILE + 1, decoder=strict).changes == {Kind.REPLACED: PER_FILE, Kind.REMOVED: 1}
    assert ranged(rig, ROWS - 1, ROWS, decoder=strict).changes == {Kind.REMOVED: 1}
    gone = {0, ROWS - 1}
    return {o: at for o, at in (MILLIS | {o: MICROS[o] for o in range(PER_FILE + 1)}).items() if o not in gone}


def test_a_compaction_takes_hidden_rows_away_and_keeps_the_others(small: TableRig):
    expected = changed_ends(small)
    assert seen(small) == expected
    by_engines(small)
    assert delete_files(small, "stream") > 0
    compacted(small)
    assert delete_files(small, "stream") == 0
    assert len(pinned(small.stores.tables.head(small.table.row).stream.metadata).files) == 1
    assert seen(small) == expected
    whole(small)


def test_a_relayout_takes_hidden_rows_away_and_keeps_the_others(small: TableRig):
    expected = changed_ends(small)
    assert delete_files(small, "batch") > 0
    small.relayout()
    assert delete_files(small, "batch") == 0
    assert seen(small) == expected
    by_engines(small)
    whole(small)


def test_a_stream_reads_what_was_replaced_in_offset_order(small: TableRig):
    expected = changed_ends(small)
    found = [
        (row["_kafka_offset"], int(row["seen"].timestamp() * 1e6))
        for batch in small.harness.table(small.name).stream(follow=False)
        for row in batch.rows.to_pylist()
    ]
    assert found == sorted(expected.items())


def test_a_compaction_that_was_planned_before_begins_anew(small: TableRig):
    row, claim = small.table.row, small.claim(Stage.COMPACT)
    move = compact.plan(small.stores, row, claim, trigger="test", run_id=None)
    assert move is not None
    compact.stage(small.stores, row, move)
    expected = changed_ends(small)
    while compact.compact_once(small.stores, row, claim, trigger="test") is not None:
        pass
    small.stores.ledger.release(claim)
    told = [m["state"] for m in small.stores.ledger.moves(row, stage=Stage.COMPACT)]
    assert sorted(told) == [MoveState.ABANDONED, MoveState.COMMITTED]
    assert seen(small) == expected
    whole(small)


@pytest.mark.parametrize("meanwhile", [compacted, TableRig.relayout], ids=["compact", "relayout"])
def test_what_is_published_meanwhile_is_looked_at_again(
    small: TableRig, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[TableRig], Any]
):
    build, calls = Lake.build_correction, []

    def late(lake: Lake, *args: Any, **kwargs: Any) -> Swap:
        swap = build(lake, *args, **kwargs)
        calls.append(kwargs["view"])
        if len(calls) == 2:
            meanwhile(small)
        return swap

    monkeypatch.setattr(Lake, "build_correction", late)
    assert ranged(small, 5, 15, decoder=spec_of(small)).changes == {Kind.REPLACED: 10}
    assert len(calls) == 4
    assert seen(small) == MILLIS | {o: MICROS[o] for o in range(5, 15)}
    whole(small)


def test_two_at_once_replace_each_row_once(small: TableRig):
    done: list[RangeReplayed] = []
    decoder = spec_of(small)
    wanted = [(0, 25), (15, ROWS)]

    def work(low: int, high: int) -> None:
        done.append(ranged(small, low, high, decoder=decoder))

    threads = [threading.Thread(target=work, args=ends) for ends in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.changes[Kind.REPLACED] for one in done) == ROWS - 1
    assert seen(small) == MICROS
    whole(small)


def test_an_old_version_that_would_see_it_is_waited_for(make_rig: MakeRig):
    rig = make_rig(columns=COLUMNS, partitions=1)
    rig.kafka.produce(rig.topic, 0, [value(o) for o in range(ROWS)])
    rig.ingest()
    tiered(rig, 10)
    version = rig.stores.tables.head(rig.table.row).version
    tiered(rig, 20)
    with pytest.raises(RangeWaits, match=f"offset 10: version {version} can still be read .*--until-idle"):
        ranged(rig, 10, 20, decoder=spec_of(rig))
    waits = ranged(rig, 10, 20, decoder=spec_of(rig), dry_run=True)
    assert (waits.changes, waits.version) == ({Kind.REPLACED: 10}, None)
    assert waits.waiting is not None
    assert ranged(rig, 0, 10, decoder=spec_of(rig)).changes == {Kind.REPLACED: 9}, "nobody had these in the buffer"
    rig.tier()
    assert ranged(rig, 10, 20, decoder=spec_of(rig)).changes == {Kind.REPLACED: 10}
    whole(rig)
    assert seen(rig, at=version) == MILLIS


def test_a_leased_version_reads_its_old_rows(small: TableRig):
    lease = timedelta(minutes=5).total_seconds()
    frame = small.harness.table(small.name).to_spark(small.stores.spark(), columns=["seen"], lease_s=lease)
    ranged(small, 0, ROWS, decoder=spec_of(small))
    [total] = frame.selectExpr("sum(unix_micros(seen)) AS total").collect()
    assert total["total"] == sum(MILLIS.values())


def test_what_the_filter_does_not_take_any_more_is_set_aside(small: TableRig):
    told = {"transform": {"fields": {"more": "int"}, "filter": "id <> 7"}}
    assert ranged(small, 0, 10, decoder=spec_of(small, **told)).changes == {Kind.REPLACED: 8, Kind.REMOVED: 1}
    assert 7 not in seen(small)
    assert states(small) == {"held": 1}
    whole(small)


def test_what_the_filter_did_not_take_becomes_a_row(make_rig: MakeRig):
    told = {"transform": {"fields": {"more": "int"}, "filter": "id <> 7"}}
    rig = make_rig(columns=COLUMNS, partitions=1, **told)
    rig.kafka.produce(rig.topic, 0, [value(o) for o in range(10)])
    settled(rig)
    before = rig.stores.tables.head(rig.table.row).version
    assert ranged(rig, 0, 10).version is None
    assert ranged(rig, 6, 9, decoder=spec_of(rig)).changes == {Kind.REPLACED: 2, Kind.ADDED: 1}
    assert seen(rig)[7] == MICROS[7]
    assert 7 not in seen(rig, at=before)
    whole(rig)


def test_records_that_kafka_has_dropped_come_from_the_column_that_keeps_them(make_rig: MakeRig):
    raw = {"raw": {"type": "binary", "from": "raw_value"}}
    rig = make_rig(columns={**COLUMNS, **raw}, partitions=1, unknown_fields="quarantine")
    rig.kafka.produce(rig.topic, 0, [value(o, more=o == 3) for o in range(10)])
    settled(rig)
    rig.kafka.delete_records(rig.topic, 0, 6)
    columns = {**COLUMNS, "seen": {"type": "timestamptz", "from": "epoch_us"}, **raw}
    micros = TableSpec.model_validate({"table": rig.name, "columns": columns, "views": "stream"})
    assert ranged(rig, 0, 10, decoder=micros).changes == {Kind.REPLACED: 8, Kind.ADDED: 1}
    assert seen(rig) == {o: MICROS[o] for o in range(10)}
    whole(rig)


def test_records_that_nobody_has_any_more_are_refused(small: TableRig):
    small.kafka.delete_records(small.topic, 0, 6)
    with pytest.raises(RangeRefused, match=r"Kafka has dropped .* below 6, and .*raw_value.*--from 6"):
        ranged(small, 0, 10, decoder=spec_of(small))
    assert ranged(small, 6, 10, decoder=spec_of(small)).changes == {Kind.REPLACED: 4}
    whole(small)


@pytest.mark.long
def test_without_a_buffer_it_is_the_same(make_rig: MakeRig):
    rig = make_rig(columns=COLUMNS, partitions=1, buffer="none", unknown_fields="quarantine")
    rig.kafka.produce(rig.topic, 0, [value(o, more=o == 3) for o in range(10)])
    rig.tier()
    before = rig.stores.tables.head(rig.table.row).version
    assert ranged(rig, 0, 10, decoder=spec_of(rig)).changes == {Kind.REPLACED: 8, Kind.ADDED: 1}
    assert seen(rig) == {o: MICROS[o] for o in range(10)}
    assert seen(rig, at=before) == {o: MILLIS[o] for o in range(10) if o != 3}
    rig.kafka.produce(rig.topic, 0, [value(10)])
    rig.tier()
    assert seen(rig) == {o: MICROS[o] for o in range(10)} | {10: MILLIS[10]}
    whole(rig)


def test_records_that_kafka_has_dropped_are_judged_by_the_digests_of_before_and_after(small: TableRig):
    changed_ends(small)
    small.kafka.delete_records(small.topic, 0, ROWS // 2 + 5)
    whole(small)


def test_expire_keeps_the_files_that_hide_rows_and_removes_what_a_compaction_left(make_rig: MakeRig):
    retention = {"versions": "1s", "grace": "1s", "snapshots": 50, "lease": "15m"}
    rig = make_rig(columns=COLUMNS, partitions=1, views="both", layout={"columns": ["n"]}, retention=retention)
    rig.kafka.produce(rig.topic, 0, [value(o) for o in range(ROWS)])
    settled(rig)
    expected = changed_ends(rig)
    head = rig.stores.tables.head(rig.table.row)
    hiding = {f.deletes.path for v in head.views.values() for f in pinned(v.metadata).files if f.deletes}
    assert len(hiding) == 2
    claim = rig.claim(Stage.EXPIRE)

    def is_old_gone() -> bool:
        expire_once(rig.stores, rig.table.row, claim, remove_large=True)
        [row] = rig.stores.database.rows("ledger/lock_table", {"table_id": rig.table.row.table_id})
        return bool(row["retained_from"] == head.version)

    wait_until(is_old_gone, "older versions are given up")
    expire_once(rig.stores, rig.table.row, claim, remove_large=True)
    rig.stores.ledger.release(claim)
    assert all(Path(urlsplit(path).path).exists() for path in hiding)
    assert seen(rig) == expected
    whole(rig)


def test_what_was_filtered_and_is_refused_now_is_held_and_what_was_given_up_stays_so(make_rig: MakeRig):
    told = {"transform": {"fields": {"more": "int"}, "filter": "id <> 7"}}
    rig = make_rig(columns=COLUMNS, partitions=1, **told)
    rig.kafka.produce(rig.topic, 0, [value(o) for o in range(10)])
    settled(rig)
    before = rig.stores.tables.head(rig.table.row).version
    strict = spec_of(rig, contract={"columns": {"id": {"isin": [0, 1, 2, 3, 4, 5, 6, 8, 9]}}})
    assert ranged(rig, 6, 9, decoder=strict).changes == {Kind.REPLACED: 2, Kind.REFUSED: 1}
    assert states(rig) == {"held": 1}
    whole(rig)
    revert_table(rig.stores, rig.table.row, to=before)
    assert states(rig) == {"held": 1}
    whole(rig)
    assert drop(rig.stores, rig.table.row, Wanted(partition=0, offset=7)) == 1
    done = ranged(rig, 6, 9, decoder=spec_of(rig))
    assert (done.changes, done.dropped) == ({Kind.REPLACED: 2}, 1)
    assert 7 not in seen(rig)
    whole(rig)


def test_other_engines_see_the_new_rows_in_both_views(small: TableRig):
    expected = changed_ends(small)
    views = small.stores.tables.head(small.table.row).views
    for engine, (name, view) in product(("pyiceberg", "duckdb", "polars", "daft", "chdb", "datafusion"), views.items()):
        read = getattr(engines, f"with_{engine}")
        rows = read(view.metadata, "_kafka_offset >= 0").select(["_kafka_offset", "id"]).to_pylist()
        assert sorted(row["_kafka_offset"] for row in rows) == sorted(expected), (engine, name)
