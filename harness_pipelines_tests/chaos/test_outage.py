"""Which failed reads of a chaos run are excused, and when a fault is recovered from."""

from __future__ import annotations

import pytest

from harness_pipelines.chaos.content import DIRECT, MAIN
from harness_pipelines.chaos.result import MAY_FAIL_BY, SPARK, STORE, Outage
from harness_pipelines.chaos.schedule import Fault, Kind


def _outage(
    *, healed: float | None = None, read_again: float | None = None, kind: Kind = Kind.CUT_POSTGRES, point: str = ""
) -> Outage:
    fault = Fault(at_s=5.0, kind=kind, cuts=(10, 1000), point=point)
    return Outage(fault=fault, began=100.0, marks={"a": {0: 5}, "b": {0: 7}}, healed=healed, read_again=read_again)


def test_a_fault_that_goes_on_reaches_reads_though_the_table_moves_again():
    assert _outage(healed=None, read_again=100.2).reaches(since=103.0, until=103.1)
    assert _outage(healed=103.05, read_again=100.2).reaches(since=103.0, until=103.1)


def test_a_fault_that_is_over_does_not():
    assert not _outage(healed=101.0, read_again=102.0).reaches(since=103.0, until=103.1)
    assert _outage(healed=101.0, read_again=102.0).reaches(since=101.9, until=103.1)


def test_nor_does_one_that_is_yet_to_come():
    assert not _outage(healed=None, read_again=None).reaches(since=90.0, until=99.0)


@pytest.mark.parametrize(
    ("kind", "engines"),
    [
        (Kind.SERVER_KILL, {"served"}),
        (Kind.SERVER_STOP, {"served"}),
        (Kind.SPARK_KILL, {"spark"}),
        (Kind.POSTGRES_KILL, {"arrow", "spark", "served"}),
        (Kind.KAFKA_KILL, set()),
    ],
)
def test_a_read_may_fail_by_what_it_needs_alone(kind: Kind, engines: set[str]):
    assert {engine for engine in MAY_FAIL_BY if _outage(kind=kind).excuses(engine, MAIN)} == engines


def saw(outage: Outage, table: str, began: float, reads: int, lake: int = 0) -> bool:
    """Whether a read of partition 0 below *reads*, from the lake below *lake*, is the last one that was missing."""
    return outage.saw(table, read_began=began, highs={0: reads}, lake={0: lake}, at=began + 1)


def test_it_is_recovered_from_when_every_table_showed_a_record_from_after_it():
    outage = _outage()
    assert not saw(outage, "a", 99.0, reads=9)  # a read from before it
    assert not saw(outage, "a", 101.0, reads=5)  # nothing that is newer
    assert not saw(outage, "a", 102.0, reads=6)
    assert outage.recovered is None
    assert saw(outage, "b", 103.0, reads=8)
    assert outage.recovered == 104.0
    assert not saw(outage, "b", 105.0, reads=9)
    assert outage.recovered == 104.0


def read_again(kind: Kind = Kind.SPARK_STOP) -> Outage:
    """An outage that ingest and reads have got over."""
    outage = _outage(kind=kind)
    for table in ("a", "b"):
        saw(outage, table, 101.0, reads=9)
    assert outage.read_again == 102.0
    return outage


@pytest.mark.parametrize("kind", sorted(SPARK | STORE))
def test_what_only_moves_need_is_recovered_from_by_a_move_of_every_table_that_began_after_it(kind: Kind):
    outage = read_again(kind)
    outage.healed = 110.0
    assert not saw(outage, "a", 109.0, reads=20, lake=19)  # a read of before its end shows no move of after it
    assert not saw(outage, "a", 111.0, reads=30, lake=19)
    assert not saw(outage, "a", 113.0, reads=40, lake=30)  # planned before its end, maybe
    assert not saw(outage, "a", 115.0, reads=50, lake=31)
    assert not saw(outage, "b", 115.0, reads=30, lake=19)
    assert list(outage.unmoved) == ["b"]
    assert saw(outage, "b", 117.0, reads=40, lake=35)
    assert (outage.read_again, outage.recovered) == (102.0, 118.0)


def test_a_table_that_has_nothing_left_to_move_has_moved():
    outage = read_again()
    outage.healed = 110.0
    assert not saw(outage, "a", 111.0, reads=30, lake=29)
    assert not saw(outage, "a", 113.0, reads=30, lake=30)  # all that there is
    assert saw(outage, "b", 113.0, reads=30, lake=30)


def test_every_partition_has_to_move():
    outage = read_again()
    outage.healed = 110.0
    del outage.unmoved["b"]
    for began, lake in ((111.0, {0: 5, 1: 5}), (113.0, {0: 25, 1: 5}), (115.0, {0: 25})):
        assert not outage.saw("a", read_began=began, highs={0: 20, 1: 20}, lake=lake, at=began + 1)
    assert outage.saw("a", read_began=117.0, highs={0: 30, 1: 20}, lake={0: 25, 1: 20}, at=118.0)


def test_a_move_is_not_waited_for_where_ingest_is_what_a_fault_stops():
    assert read_again(Kind.KAFKA_STOP).recovered == 102.0


def test_an_outage_excuses_reads_until_they_show_more_and_alerts_until_moves_are_made_again():
    outage = read_again()
    outage.healed = 110.0
    assert not outage.reaches(since=111.0, until=120.0)
    assert outage.holds_up(since=111.0, until=120.0)
    outage.recovered = 130.0
    assert outage.holds_up(since=129.0, until=140.0)
    assert not outage.holds_up(since=131.0, until=140.0)


def test_a_reader_may_fail_only_by_what_it_needs():
    assert _outage(kind=Kind.POSTGRES_STOP).excuses("arrow", MAIN)
    assert not _outage(kind=Kind.KAFKA_KILL).excuses("arrow", MAIN)
    assert _outage(kind=Kind.KAFKA_KILL).excuses("arrow", DIRECT)
    assert not _outage(kind=Kind.SPARK_KILL).excuses("arrow", MAIN)
    assert _outage(kind=Kind.SPARK_KILL).excuses("spark", MAIN)
    assert not _outage(kind=Kind.REVERT, point="revert.before_lock").excuses("arrow", MAIN)
    assert _outage(kind=Kind.REVERT, point="revert.in_transaction").excuses("arrow", MAIN)


def test_a_damaged_file_excuses_reads_of_its_table_alone():
    fault = Fault(at_s=5.0, kind=Kind.DAMAGE, subject=DIRECT.suffix, part="data", how="flip", places=(0.5, 0.5))
    outage = Outage(fault=fault, began=100.0, marks={})
    assert outage.damages(DIRECT)
    assert outage.excuses("arrow", DIRECT)
    assert not outage.excuses("arrow", MAIN)
