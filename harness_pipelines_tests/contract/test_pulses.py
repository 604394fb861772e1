"""A look at many tables reads again only what changed, and misses nothing that did."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from harness_pipelines.drivers.postgres import Connection
from harness_pipelines.errors import HarnessError
from harness_pipelines.ledgers.postgres.views.work import Watch
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.upkeep import TablePulse
from harness_pipelines.protocol.claims import Stage
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig


def watch(real: RealRig) -> Watch:
    """One that has not looked yet."""
    return Watch(real.database, real.readers, real.readers)


def ingested(real: RealRig, table: TableRow) -> None:
    real.ingest(table, {0: (0, 5)})


def moved(real: RealRig, table: TableRow) -> None:
    real.ingest(table, {0: (0, 5)})
    real.move(table, {0: 0, 1: 0}, {0: 5, 1: 0})


def claimed(real: RealRig, table: TableRow) -> None:
    real.claim(table, Stage.OTREE)


def planned(real: RealRig, table: TableRow) -> None:
    real.ingest(table, {0: (0, 5)})
    real.plan(table, real.claim(table), {0: 0, 1: 0}, {0: 5, 1: 0})


def stopped(real: RealRig, table: TableRow) -> None:
    real.ledger.stop_table(table, "it is sick", stage="tier")


def respecified(real: RealRig, table: TableRow) -> None:
    real.ledger.update_spec(table, table.spec.model_copy(update={"mode": "manual"}))


def joined(real: RealRig, table: TableRow) -> None:
    real.join(table, {2: 0})


CHANGES = (ingested, moved, claimed, planned, stopped, respecified, joined)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_table_that_changed_is_read_again_and_the_others_stay_the_same_objects(real: RealRig, change: Any):
    tables = [real.table() for _ in range(3)]
    numbers = [table.table_id for table in tables]
    seen = watch(real)
    began, before = seen.pulses(numbers)
    again, same = seen.pulses(numbers)
    assert before.keys() == set(numbers)
    assert all(same[number] is before[number] for number in numbers)
    assert again > began, "the time is that of the look"

    change(real, tables[1])
    _, after = seen.pulses(numbers)

    assert [after[number] is before[number] for number in numbers] == [True, False, True]
    assert after == watch(real).pulses(numbers)[1], "as one who looks for the first time sees it"


@pytest.mark.parametrize("apart", range(1, 33))
def test_partitions_that_advance_alike_change_the_pulse(real: RealRig, apart: int):
    """Such a change leaves the hash of a jsonb as it was where 32 values lie between the two."""
    table, seen = real.table(partitions=34), watch(real)
    real.ingest(table, {0: (0, 1)})  # what comes now makes the segment no larger
    seen.pulses([table.table_id])
    real.ingest(table, {1: (0, 1), 1 + apart: (0, 1)})
    [found] = seen.pulses([table.table_id])[1].values()
    assert isinstance(found, TablePulse)
    assert {one.partition for one in found.positions if one.bounds.buffer_hi} == {0, 1, 1 + apart}


def test_a_claim_whose_lease_ends_changes_the_pulse(real: RealRig):
    table, seen = real.table(), watch(real)
    claim = real.claim(table, Stage.TIER)
    _, held = seen.pulses([table.table_id])
    real.ledger.release(claim)
    _, free = seen.pulses([table.table_id])
    [with_claim], [without] = held.values(), free.values()
    assert isinstance(with_claim, TablePulse)
    assert isinstance(without, TablePulse)
    assert (dict(with_claim.claims), dict(without.claims)) == ({"tier": claim.holder}, {})


def test_tables_that_come_and_go_are_seen(real: RealRig):
    seen, first, second = watch(real), real.table(), real.table()
    assert seen.pulses([])[1] == {}
    seen.pulses([first.table_id])
    _, both = seen.pulses([first.table_id, second.table_id, 10**9])
    assert both.keys() == {first.table_id, second.table_id}
    real.ask("DELETE FROM harness.tables WHERE table_id = %s RETURNING 1 AS gone", [second.table_id])
    real.made.remove(second)
    _, left = seen.pulses([first.table_id, second.table_id])
    assert left.keys() == {first.table_id}
    assert left[first.table_id] is both[first.table_id]


def test_a_table_whose_row_contradicts_itself_is_an_error_until_it_is_mended(real: RealRig):
    table, other, seen = real.table(), real.table(), watch(real)
    reach = "UPDATE harness.lake_positions SET stream_hi = %s WHERE table_id = %s AND partition = 0 RETURNING 1 AS done"
    real.ask(reach, [9, table.table_id])
    for _ in range(2):
        _, found = seen.pulses([table.table_id, other.table_id])
        assert isinstance(found[table.table_id], HarnessError)
        assert isinstance(found[other.table_id], TablePulse)
    real.ask(reach, [0, table.table_id])
    assert isinstance(seen.pulses([table.table_id, other.table_id])[1][table.table_id], TablePulse)


def test_a_look_and_the_claims_of_a_worker_are_one_statement_each(real: RealRig, monkeypatch: pytest.MonkeyPatch):
    tables, seen, asked = [real.table() for _ in range(20)], watch(real), list[Any]()
    execute = Connection.execute

    def noted(connection: Connection, query: Any, *given: Any, **words: Any) -> Any:
        asked.append(query)
        return execute(connection, query, *given, **words)

    monkeypatch.setattr(Connection, "execute", noted)
    wanted = [(table.table_id, stage) for table in tables for stage in (Stage.INGEST, Stage.TIER, Stage.OTREE)]
    assert len(real.ledger.claim_all(wanted, holder=str(uuid.uuid4()), lease=HOUR)) == len(wanted)
    assert len(seen.pulses([table.table_id for table in tables])[1]) == len(tables)
    assert len(asked) == 2
