"""A range is decoded again: exactly the rows that come out otherwise are replaced, in every view, and older versions
and audits know which row is which."""

from __future__ import annotations

from typing import Any

import pytest

from harness_pipelines import faults
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.changes.corrections import Kind, RangeRefused
from harness_pipelines.read.stream import corrections
from harness_pipelines.read.stream.stream import Stream
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.replay import source
from harness_pipelines.stages.replay.ranges import RangeReplayed, replay_range
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.test_replay import again, settled, states, whole
from harness_pipelines_tests.rig import TableRig

pytestmark = pytest.mark.turns("taken")

COLUMNS: dict[str, Any] = {
    "id": {"type": "long", "required": True},
    "n": "int",
    "seen": {"type": "timestamptz", "from": "epoch_ms"},
}
ROWS = 20  #: of partition 0
ODD = 7  #: offset of the record that is refused at first
Seen = dict[int, int]  #: offset -> what `seen` is, in seconds


def value(number: int, *, more: bool = False) -> bytes:
    """Written in seconds, which the table takes for milliseconds at first."""
    return b'{"id":%d,"n":%d,"seen":%d%s}' % (number, number % 5, 1000 * number, b',"more":1' if more else b"")


def spec_of(rig: TableRig, **more: Any) -> TableSpec:
    columns = {**COLUMNS, "seen": {"type": "timestamptz", "from": "epoch_us"}}
    made = {"table": rig.name, "topic": rig.topic, "columns": columns, "views": rig.table.spec.views}
    return TableSpec.model_validate({**made, "layout": {"columns": ["n"]}, **more})


def seen(rig: TableRig, *, at: int | None = None) -> Seen:
    """Of partition 0, in microseconds."""
    names = ["_kafka_partition", "_kafka_offset", "seen"]
    found = rig.harness.table(rig.name).read(columns=names, at=at).to_pylist()
    rows = [(r["_kafka_offset"], int(r["seen"].timestamp() * 1e6)) for r in found if not r["_kafka_partition"]]
    assert len(rows) == len(dict(rows)), "a coordinate has one row"
    return dict(rows)


def ranged(rig: TableRig, low: int = 0, high: int = ROWS, **more: Any) -> RangeReplayed:
    row = rig.harness.table(rig.name).row
    return replay_range(rig.stores, row, OffsetRange(partition=0, low=low, high=high), **more)


def by_engines(rig: TableRig) -> None:
    """Spark reads what Arrow reads."""
    table = rig.harness.table(rig.name)
    frame = table.to_spark(rig.stores.spark(), columns=["_kafka_partition", "_kafka_offset", "seen"])
    found = frame.where("_kafka_partition = 0").selectExpr("_kafka_offset AS o", "unix_micros(seen) AS at").collect()
    assert {r["o"]: r["at"] for r in found} == seen(rig)


MILLIS = {o: 1_000_000 * o for o in range(ROWS) if o != ODD}
MICROS = {o: 1000 * o for o in range(ROWS)}


@pytest.fixture(params=["both", "stream", "batch"])
def taken(request: pytest.FixtureRequest, make_rig: MakeRig) -> TableRig:
    """Rows whose times were read as milliseconds, and a record that was refused; all of it in the lake."""
    rig = make_rig(columns=COLUMNS, views=request.param, layout={"columns": ["n"]}, unknown_fields="quarantine")
    rig.kafka.produce(rig.topic, 0, [value(o, more=o == ODD) for o in range(ROWS)])
    rig.kafka.produce(rig.topic, 1, [value(0)])
    settled(rig)
    return rig


def test_rows_that_come_out_otherwise_are_replaced_and_the_others_stay(taken: TableRig):
    before = taken.stores.tables.head(taken.table.row).version
    assert seen(taken) == MILLIS
    assert audit_table(taken.stores, taken.harness.table(taken.name).row).ok
    micros = spec_of(taken)

    planned = ranged(taken, decoder=micros, dry_run=True)
    assert planned.version is None
    assert planned.sample[0]["kind"] == "replaced"
    assert seen(taken) == MILLIS, "a dry run changes nothing"
    done = ranged(taken, decoder=micros)
    assert done.changes == planned.changes == {Kind.REPLACED: ROWS - 2, Kind.ADDED: 1}
    assert done.equal == 1, "zero is zero in any unit"

    assert seen(taken) == MICROS
    assert seen(taken, at=before) == MILLIS, "a version from before does not change"
    assert states(taken) == {"replayed": 1}
    nothing = ranged(taken, decoder=micros)
    assert (nothing.version, nothing.equal) == (None, ROWS)
    whole(taken)
    assert audit_table(taken.stores, taken.harness.table(taken.name).row).ok
    by_engines(taken)


def test_only_the_range_is_touched(taken: TableRig):
    decoder = spec_of(taken)
    assert ranged(taken, 3, 6, decoder=decoder).changes == {Kind.REPLACED: 3}
    assert seen(taken) == MILLIS | {o: MICROS[o] for o in (3, 4, 5)}
    whole(taken)


def test_rows_that_do_not_fit_any_more_are_set_aside_and_can_come_back(taken: TableRig):
    strict = spec_of(taken, contract={"columns": {"n": {"le": 3}}})
    done = ranged(taken, decoder=strict)
    removed = {o for o in range(ROWS) if o % 5 == 4}
    assert done.changes[Kind.REMOVED] == len(removed)
    assert seen(taken) == {o: at for o, at in MICROS.items() if o not in removed}
    assert states(taken) == {"replayed": 1, "held": len(removed)}
    whole(taken)
    assert again(taken, decoder=spec_of(taken)).replayed == len(removed)
    assert seen(taken) == MICROS
    whole(taken)
    assert ranged(taken, decoder=strict).changes == {Kind.REMOVED: len(removed)}, "what was put back can go again"
    assert states(taken) == {"replayed": 1, "held": len(removed)}
    whole(taken)


def test_a_revert_takes_the_replay_back_and_one_to_it_brings_it_again(taken: TableRig):
    before = taken.stores.tables.head(taken.table.row).version
    version = ranged(taken, decoder=spec_of(taken, contract={"columns": {"n": {"le": 3}}})).version
    after = seen(taken)
    revert_table(taken.stores, taken.harness.table(taken.name).row, to=before)
    assert seen(taken) == MILLIS
    assert states(taken) == {"held": 1, "replayed": 4}, "those four are rows again"
    whole(taken)
    revert_table(taken.stores, taken.harness.table(taken.name).row, to=version)
    assert seen(taken) == after
    assert states(taken) == {"replayed": 1, "held": 4}
    whole(taken)


STRICT = {"contract": {"columns": {"n": {"le": 3}}}}
REMOVED = {o for o in range(ROWS) if o % 5 == 4}


def marked(rig: TableRig, stream: Stream) -> dict[int, tuple[str, int | None]]:
    """What a stream tells until it ends: per offset of partition 0 what became of it, and `seen` in microseconds."""
    found = [row for batch in stream if batch.is_correction for row in batch.rows.to_pylist()]
    told = {r["_kafka_offset"]: (r["_correction"], r["seen"] and int(r["seen"].timestamp() * 1e6)) for r in found}
    assert len(told) == len(found), "each is told once"
    return told


def test_a_stream_tells_once_what_became_of_the_records_that_it_gave(taken: TableRig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corrections, "OFFSETS_PER_READ", 8)
    table = taken.harness.table(taken.name)
    before = taken.stores.tables.head(taken.table.row).version
    begin = table.stream("latest", follow=False, corrections=True).token
    ranged(taken, decoder=spec_of(taken, **STRICT))

    batches = list(table.stream(begin, follow=False, corrections=True))
    assert [len(batch.rows) for batch in batches] == [8, 8, 3], "zero is zero in any unit"
    assert [batch.token == begin for batch in batches] == [True, True, False], "the token moves with the last one"
    stream = table.stream(begin, follow=False, corrections=True)
    rows = {o: ("added" if o == ODD else "replaced", MICROS[o]) for o in range(1, ROWS)}
    assert marked(taken, stream) == rows | dict.fromkeys(REMOVED, ("removed", None))
    assert marked(taken, table.stream(stream.token, follow=False, corrections=True)) == {}
    revert_table(taken.stores, taken.harness.table(taken.name).row, to=before)
    undone = {o: ("added" if o in REMOVED else "replaced", MILLIS[o]) for o in range(1, ROWS) if o != ODD}
    assert marked(taken, table.stream(stream.token, follow=False, corrections=True)) == undone | {
        ODD: ("removed", None)
    }
    assert marked(taken, table.stream(begin, follow=False, corrections=True)) == {}, "for this reader nothing happened"


def test_a_stream_that_waits_for_records_is_told_too(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness_pipelines.read.stream.stream.LOOK_EVERY_S", 0.0)
    rig = make_rig(columns=COLUMNS, layout={"columns": ["n"]})
    rig.kafka.produce(rig.topic, 0, [value(o) for o in range(5)])
    settled(rig)
    batches = iter(rig.harness.table(rig.name).stream(corrections=True))
    assert len(next(batches).rows) == 5
    rig.kafka.produce(rig.topic, 0, [value(5)])
    assert next(batch for batch in batches if batch.rows.num_rows).rows.column("id").to_pylist() == [5]
    ranged(rig, 0, 5, decoder=spec_of(rig))
    told = next(batch for batch in batches if batch.rows.num_rows)
    assert told.is_correction
    assert told.rows.select(["_kafka_offset", "_correction"]).to_pylist() == [
        {"_kafka_offset": o, "_correction": "replaced"} for o in range(1, 5)
    ]


def test_what_the_lake_has_not_passed_is_refused_with_the_way_on(make_rig: MakeRig):
    rig = make_rig(columns=COLUMNS)
    rig.kafka.produce(rig.topic, 0, [value(o) for o in range(5)])
    rig.ingest()
    with pytest.raises(RangeRefused, match="below 0 only, not up to 5; .*--stage tier --until-idle"):
        ranged(rig, 0, 5)
    rig.tier()
    with pytest.raises(RangeRefused, match="below 5 only"):
        ranged(rig, 0, 6)
    assert ranged(rig, 0, 5).version is None
    assert ranged(rig, 2, 2).records == 0


def test_a_range_that_is_too_large_says_how_to_cut_it(taken: TableRig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source, "RECORDS_MAX", 10)
    with pytest.raises(RangeRefused, match=r"at most 10 records .* --from 0 --to 5` first, then from 5 on"):
        ranged(taken)


@pytest.mark.parametrize("point", ["before_lock", "in_transaction", "after_commit"])
def test_a_death_leaves_all_of_it_or_nothing(taken: TableRig, point: str):
    micros = spec_of(taken)
    faults.arm_from({"HARNESS_FAULT": f"replay.{point}=raise"})
    with pytest.raises(faults.FaultInjected):
        ranged(taken, decoder=micros)
    took = point == "after_commit"
    assert seen(taken) == (MICROS if took else MILLIS)
    assert (ranged(taken, decoder=micros).version is None) == took
    assert seen(taken) == MICROS
    whole(taken)
