"""Which failed reads of a chaos run are excused, and when a fault is recovered from."""

from __future__ import annotations

from harness_pipelines.chaos.content import DIRECT, MAIN
from harness_pipelines.chaos.result import Outage
from harness_pipelines.chaos.schedule import Fault, Kind


def _outage(
    *, healed: float | None = None, recovered: float | None = None, kind: Kind = Kind.CUT_POSTGRES, point: str = ""
) -> Outage:
    fault = Fault(at_s=5.0, kind=kind, cuts=(10, 1000), point=point)
    return Outage(fault=fault, began=100.0, marks={"a": {0: 5}, "b": {0: 7}}, healed=healed, recovered=recovered)


def test_a_fault_that_goes_on_reaches_reads_though_the_table_moves_again():
    assert _outage(healed=None, recovered=100.2).reaches(since=103.0, until=103.1)
    assert _outage(healed=103.05, recovered=100.2).reaches(since=103.0, until=103.1)


def test_a_fault_that_is_over_does_not():
    assert not _outage(healed=101.0, recovered=102.0).reaches(since=103.0, until=103.1)
    assert _outage(healed=101.0, recovered=102.0).reaches(since=101.9, until=103.1)


def test_nor_does_one_that_is_yet_to_come():
    assert not _outage(healed=None, recovered=None).reaches(since=90.0, until=99.0)


def test_it_is_recovered_from_when_every_table_showed_a_record_from_after_it():
    outage = _outage()
    assert not outage.saw("a", read_began=99.0, highs={0: 9}, at=101.0)  # a read from before it
    assert not outage.saw("a", read_began=101.0, highs={0: 5}, at=102.0)  # nothing that is newer
    assert not outage.saw("a", read_began=102.0, highs={0: 6}, at=103.0)
    assert outage.recovered is None
    assert outage.saw("b", read_began=103.0, highs={0: 8}, at=104.0)
    assert outage.recovered == 104.0
    assert not outage.saw("b", read_began=105.0, highs={0: 9}, at=106.0)
    assert outage.recovered == 104.0


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
