"""Which failed reads of a chaos run are excused."""

from harness_pipelines_tests.chaos.run import Outage
from harness_pipelines_tests.chaos.schedule import Fault, Kind


def _outage(*, healed: float | None, recovered: float | None) -> Outage:
    fault = Fault(at_s=5.0, kind=Kind.CUT_POSTGRES, cuts=(10, 1000))
    return Outage(fault=fault, began=100.0, marks={0: 5}, healed=healed, recovered=recovered)


def test_a_fault_that_goes_on_reaches_reads_though_the_table_moves_again():
    assert _outage(healed=None, recovered=100.2).reaches(since=103.0, until=103.1)
    assert _outage(healed=103.05, recovered=100.2).reaches(since=103.0, until=103.1)


def test_a_fault_that_is_over_does_not():
    assert not _outage(healed=101.0, recovered=102.0).reaches(since=103.0, until=103.1)
    assert _outage(healed=101.0, recovered=102.0).reaches(since=101.9, until=103.1)


def test_nor_does_one_that_is_yet_to_come():
    assert not _outage(healed=None, recovered=None).reaches(since=90.0, until=99.0)
