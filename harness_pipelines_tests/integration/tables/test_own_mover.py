"""A consumer's own mover: what it wrote is published once and whole, and a mover that lies changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa
import pytest

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.errors import UsageError
from harness_pipelines.lakes.iceberg import parquet
from harness_pipelines.ledgers.postgres.states import StateClaim
from harness_pipelines.ports.errors import StagedWrong
from harness_pipelines.protocol.claims import FencedOut, StageHeld
from harness_pipelines.protocol.moves import ATTEMPTS_MAX, MoveStuck
from harness_pipelines.stages.run.own_mover import OwnMove, ProofWrong
from harness_pipelines_tests.keyed import KeyedRig
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import TIER, TableRig

MakeRig = Callable[..., TableRig]
Lie = Callable[[pa.Table], pa.Table]
Errors = type[hp.HarnessError] | tuple[type[hp.HarnessError], ...]


def rows_of(move: OwnMove) -> pa.Table:
    return pa.concat_tables(move.batches())


def honest(move: OwnMove) -> hp.Moved:
    move.append(rows_of(move))
    return hp.Moved(ranges=move.ranges, rows=move.rows)


@pytest.fixture
def buffered(rig: TableRig) -> TableRig:
    rig.produce(30)
    rig.produce_misfit(b"no row")
    rig.ingest()
    return rig


def assert_nothing_moved(rig: TableRig) -> None:
    rig.assert_exact()
    assert all(b.bounds.stream_hi == 0 for b in rig.table.positions())


def assert_all_moved(rig: TableRig) -> None:
    rig.assert_exact()
    assert all(p.bounds.stream_hi == p.bounds.buffer_hi > 0 for p in rig.table.positions())
    assert rig.table.audit(full=True).ok
    assert fsck(rig.stores, [rig.name]).ok


@pytest.mark.parametrize("views", ["stream", "both"])
def test_rows_that_a_mover_wrote_are_the_lakes_move_by_move(make_rig: MakeRig, views: str):
    rig = make_rig(views=views)
    rig.produce(30)
    rig.ingest()
    taken: list[dict[int, tuple[int, int]]] = []

    def write(move: OwnMove) -> hp.Moved:
        assert rows_of(move).num_rows == move.rows
        taken.append(move.ranges)
        return honest(move)

    with rig.table.mover(offsets_max=40) as mover:
        assert mover.move(write) is not None
        rig.assert_exact()
        assert mover.move(write) is not None
        assert mover.move(write) is None
    assert taken == [{0: (0, 20), 1: (0, 20)}, {0: (20, 30), 1: (20, 30)}]
    rig.produce(10)
    rig.worker(until_idle=True).run()  # the harness's own stages go on with what it wrote
    assert_all_moved(rig)


def test_puts_and_deletes_of_a_keyed_table_come_through(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(harness, kafka)
    rig.produce(60)
    rig.ingest()
    with rig.table.mover() as mover:
        assert mover.move(honest) is not None
    assert_all_moved(rig)
    rig.merge_all()
    rig.assert_merged()
    assert_all_moved(rig)


TEXTS = ["a" * 15 + last + "more" for last in ("\ud7ff", "\U0010ffff", "\uffff", "z")] + ["", "a" * 16]


@pytest.fixture
def of_texts(make_rig: MakeRig) -> TableRig:
    """Texts that are longer than the bounds that Iceberg keeps of them."""
    rig = make_rig(partitions=1)
    values = [orjson.dumps({"id": i, "n": i, "s": text}) for i, text in enumerate(TEXTS)]
    rig.kafka.produce(rig.topic, 0, values)
    rig.ingest()
    return rig


def test_texts_that_are_longer_than_their_bounds_come_through(of_texts: TableRig):
    with of_texts.table.mover() as mover:
        assert mover.move(honest) is not None
    for text in TEXTS:
        where = f"s = '{text}'"
        assert of_texts.table.read(columns=["s"], where=where)["s"].to_pylist() == [text]


def test_a_file_whose_bounds_do_not_hold_its_texts_is_refused(of_texts: TableRig, monkeypatch: pytest.MonkeyPatch):
    """As by a writer that cuts the upper one off and forgets to go above: reads would leave the file out."""
    monkeypatch.setattr(parquet, "text_above", lambda text, length: text[:length])
    with of_texts.table.mover() as mover, pytest.raises(ProofWrong, match="column s has values above the upper bound"):
        mover.move(honest)
    assert all(b.bounds.stream_hi == 0 for b in of_texts.table.positions())


def test_values_of_all_types_come_through(make_rig: MakeRig):
    types = {
        "id": {"type": "long", "required": True},
        "flag": "boolean",
        "small": "int",
        "f": "float",
        "d": "double",
        "price": "decimal(20,3)",
        "day": "date",
        "clock": "time",
        "at": "timestamp",
        "since": "timestamptz",
        "raw": "binary",
        "key": "uuid",
        "tags": "list<string>",
        "marks": "map<string, list<time>>",
        "place": "struct<a: int, inner: struct<key: uuid, clock: time>>",
    }
    rig = make_rig(columns=types, partitions=1)
    key = "12345678-1234-5678-1234-567812345678"
    full = {
        "id": 0,
        "flag": True,
        "small": -1,
        "f": 1.5,
        "d": -0.0,
        "price": "12345678901234567.891",
        "day": "1969-12-31",
        "clock": "23:59:59.999999",
        "at": "2024-02-29T12:00:00.000001",
        "since": "2024-02-29T12:00:00.000001Z",
        "raw": "AP8=",
        "key": key,
        "tags": ["a", None, ""],
        "marks": {"x": ["00:00:00", None], "y": None},
        "place": {"a": 1, "inner": {"key": key, "clock": "01:02:03"}},
    }
    values = [orjson.dumps(row) for row in (full, {"id": 1}, {**full, "id": 2, "place": {"a": None, "inner": None}})]
    rig.kafka.produce(rig.topic, 0, values)
    rig.ingest()
    before = rig.table.read()
    assert before.num_rows == 3, rig.quarantine()
    with rig.table.mover() as mover:
        assert mover.move(honest) is not None
    assert rig.table.read().equals(before)
    assert_all_moved(rig)


def changed(column: str, value: Any) -> Lie:
    """The row in the middle says something else."""

    def lie(rows: pa.Table) -> pa.Table:
        values = rows.column(column).to_pylist()
        values[len(values) // 2] = value
        at = rows.schema.get_field_index(column)
        return rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type))

    return lie


def doubled_for_missing(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 1), rows.slice(0, rows.num_rows - 1)])


LIES: dict[str, tuple[Lie, Errors, str]] = {
    "a row less": (lambda rows: rows.slice(1), StagedWrong, "60 rows were to be moved, 59 were staged"),
    "a row twice": (lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]), StagedWrong, "61 were staged"),
    "one twice, one not": (doubled_for_missing, ProofWrong, r"not in ascending order of offsets|was not written"),
    "another value": (changed("n", 77), ProofWrong, r"offset \d+ was written with other values \(1 of 30 rows\)"),
    "a NULL": (changed("s", None), ProofWrong, "with other values"),
    "beyond its range": (changed("_kafka_offset", 999), StagedWrong, "outside the move"),
    "another partition": (changed("_kafka_partition", 0), ProofWrong, "not in ascending order"),
    "no order": (lambda rows: rows.sort_by([("_kafka_offset", "descending")]), ProofWrong, "not in ascending order"),
    "no such column": (lambda rows: rows.drop_columns(["s"]), StagedWrong, "rows do not fit the view"),
    "a text for a number": (lambda rows: rows.set_column(1, "n", rows.column("s")), StagedWrong, "do not fit"),
    "a NULL where one is required": (changed("id", None), StagedWrong, "do not fit"),
}


@pytest.mark.parametrize("name", LIES)
def test_what_is_not_the_buffers_rows_is_refused_and_the_next_attempt_takes_the_same(buffered: TableRig, name: str):
    lie, error, said = LIES[name]
    taken: list[dict[int, tuple[int, int]]] = []

    def lying(move: OwnMove) -> hp.Moved:
        taken.append(move.ranges)
        move.append(lie(rows_of(move)))
        return hp.Moved(ranges=move.ranges, rows=move.rows)

    with buffered.table.mover() as mover:
        with pytest.raises(error, match=said):
            mover.move(lying)
        assert_nothing_moved(buffered)
        buffered.produce(5)
        buffered.ingest()

        def again(move: OwnMove) -> hp.Moved:
            taken.append(move.ranges)
            return honest(move)

        assert mover.move(again) is not None
        assert taken[0] == taken[1]
        mover.move(honest)
    assert_all_moved(buffered)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"rows": 59}, "takes 60 rows, the mover says 59"),
        ({"ranges": {0: (0, 31)}}, r"\[0, 30\) of partition 1, the mover says \[\]"),
        ({"ranges": {0: (0, 31), 1: (0, 31)}}, r"\[0, 30\) of partition 1, the mover says \[0, 31\]"),
        ({"ranges": {0: (0, 31), 1: (0, 30), 7: (0, 1)}}, r"\[0, 0\) of partition 7, the mover says \[0, 1\]"),
    ],
)
def test_a_mover_that_says_other_than_its_move_is_refused(buffered: TableRig, said: dict[str, Any], message: str):
    def lying(move: OwnMove) -> hp.Moved:
        assert move.ranges == {0: (0, 31), 1: (0, 30)}
        move.append(rows_of(move))
        return hp.Moved(**{"ranges": move.ranges, "rows": move.rows, **said})

    with buffered.table.mover() as mover, pytest.raises(ProofWrong, match=message):
        mover.move(lying)
    assert_nothing_moved(buffered)


def test_a_mover_that_writes_nothing_or_in_two_snapshots_is_refused(buffered: TableRig):
    def nothing(move: OwnMove) -> hp.Moved:
        return hp.Moved(ranges=move.ranges, rows=move.rows)

    def in_two(move: OwnMove) -> hp.Moved:
        rows = rows_of(move)
        move.append(rows.slice(0, 20))
        move.append(rows.slice(20))
        return nothing(move)

    with buffered.table.mover() as mover:
        with pytest.raises(StagedWrong, match="holds no snapshot of attempt 1"):
            mover.move(nothing)
        with pytest.raises(StagedWrong, match="60 rows were to be moved, 40 were staged"):
            mover.move(in_two)
    assert_nothing_moved(buffered)


def test_what_lies_always_holds_the_stage_by_name(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    rig.produce(1)
    rig.ingest()

    def lying(move: OwnMove) -> hp.Moved:
        return hp.Moved(ranges=move.ranges, rows=move.rows + 1)

    with rig.table.mover() as mover:
        for _ in range(ATTEMPTS_MAX):
            try:
                with pytest.raises(ProofWrong):
                    mover.move(lying)
            except MoveStuck:
                break
        with pytest.raises(MoveStuck, match="--retry-stuck"):
            mover.move(honest)
    rig.assert_exact()


# -- crashes and rivals -------------------------------------------------------------------------------------


def test_what_the_mover_raises_is_raised_and_the_worker_may_finish_its_move(buffered: TableRig):
    def broken(move: OwnMove) -> hp.Moved:
        move.append(rows_of(move).slice(3))
        raise ZeroDivisionError

    with buffered.table.mover() as mover, pytest.raises(ZeroDivisionError):
        mover.move(broken)
    assert_nothing_moved(buffered)
    buffered.tier()
    assert_all_moved(buffered)


@pytest.mark.parametrize("point", ["after_plan", "during_files", "after_files", "in_transaction", "after_commit"])
def test_a_mover_that_dies_is_gone_on_with(buffered: TableRig, point: str):
    faults.arm_from({"HARNESS_FAULT": f"tier.{point}=raise"})
    try:
        with buffered.table.mover() as mover, pytest.raises(faults.FaultInjected):
            mover.move(honest)
    finally:
        faults.disarm()
    buffered.assert_exact()
    with buffered.table.mover() as mover:
        mover.move(honest)
    assert_all_moved(buffered)


def test_one_mover_at_a_time_and_no_worker_beside_it(buffered: TableRig):
    with buffered.table.mover() as mover, buffered.table.mover() as other:
        mover.move(honest)
        with pytest.raises(StageHeld, match="a worker holds tier; nothing was moved"):
            other.move(honest)
        buffered.produce(5)
        buffered.ingest()
        with buffered.working(TIER):  # waits
            mover.move(honest)
    assert_all_moved(buffered)


def test_a_mover_that_lost_its_claim_publishes_nothing(buffered: TableRig):
    def robbed(move: OwnMove) -> hp.Moved:
        with buffered.stores.database.session() as connection:
            connection.execute(
                "UPDATE harness.claims SET epoch = epoch + 1, holder = gen_random_uuid() WHERE table_id = %s",
                [buffered.table.row.table_id],
            )
        return honest(move)

    with buffered.table.mover() as mover, pytest.raises(FencedOut):
        mover.move(robbed)
    assert_nothing_moved(buffered)


def test_tables_that_have_no_such_move_say_so(make_rig: MakeRig):
    with pytest.raises(UsageError, match="it has no stream view"):
        make_rig(views="batch").table.mover()
    with pytest.raises(UsageError, match="no buffer, so nothing says which rows"):
        make_rig(buffer="none").table.mover()
    with pytest.raises(UsageError, match="a move of 0 offsets"):
        make_rig().table.mover(offsets_max=0)


# -- with a state -------------------------------------------------------------------------------------------


def with_state(move: OwnMove, held: StateClaim) -> hp.Moved:
    move.append(rows_of(move))
    offsets = {p: high for p, (_, high) in move.ranges.items()}
    draft = held.draft({move.table: offsets}, checkpoint=move.branch, payload={"rows": move.rows})
    return hp.Moved(ranges=move.ranges, rows=move.rows, state=draft)


def test_a_state_is_committed_with_the_move_or_neither_is(buffered: TableRig):
    name = f"s-{uuid.uuid4().hex[:10]}"
    with buffered.harness.states.hold(name) as held, buffered.table.mover() as mover:
        faults.arm_from({"HARNESS_FAULT": "tier.in_transaction=raise"})
        try:
            with pytest.raises(faults.FaultInjected):
                mover.move(lambda move: with_state(move, held))
        finally:
            faults.disarm()
        assert_nothing_moved(buffered)
        assert [s.last for s in buffered.harness.states.all() if s.name == name] == [None]
        assert mover.move(lambda move: with_state(move, held)) is not None
    last = buffered.harness.states.last(name)
    assert last is not None
    assert last.payload == {"rows": 60}
    assert last.sources[buffered.name] == {0: 31, 1: 30}
    assert buffered.read(at=f"state:{name}") == buffered.truth
    assert_all_moved(buffered)


def test_who_lost_the_state_moves_nothing(buffered: TableRig):
    name = f"s-{uuid.uuid4().hex[:10]}"
    with buffered.harness.states.hold(name) as held, buffered.table.mover() as mover:

        def late(move: OwnMove) -> hp.Moved:
            held.release()
            return with_state(move, held)

        with pytest.raises(FencedOut, match="is over; nothing was written"):
            mover.move(late)
    assert_nothing_moved(buffered)
