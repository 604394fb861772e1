"""Costs by day: what the ledger's moves say is counted, what workers add is added, and neither gets lost."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from harness_pipelines.buffers.postgres.writer import SegmentWriter
from harness_pipelines.ledgers.postgres.views.costs import KEPT_DAYS, Costs, StageDay
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.upkeep import Spent
from harness_pipelines.protocol.claims import Stage
from harness_pipelines_tests.contract.stores_rig import RealRig, agrees, decoded


def today() -> date:
    return datetime.now(UTC).date()


def costs_of(real: RealRig) -> Costs:
    return Costs(real.database, real.readers)


def stages(real: RealRig, table: TableRow, *, day: date | None = None, days: int = 400) -> dict[str, StageDay]:
    found = costs_of(real).days([table.name], days=days)
    return {one.stage: one for one in found if one.day == (day or today())}


def days_ago(real: RealRig, table: TableRow, count: int) -> None:
    """All of the table's moves, and what was counted of them, are of some days ago."""
    real.ask(
        "UPDATE harness.moves SET committed_at = committed_at - make_interval(days => %s) WHERE table_id = %s "
        "RETURNING 1 AS done",
        [count, table.table_id],
    )
    real.ask(
        "UPDATE harness.daily_costs SET day = day - %s WHERE table_id = %s RETURNING 1 AS done", [count, table.table_id]
    )


def test_moves_are_counted_by_stage_and_day(real: RealRig):
    table = real.table(partitions=1, files=True)
    claim = real.claim(table, Stage.INGEST)
    real.ingest(table, {0: (0, 30)}, claim=claim)
    real.move(table, {0: 0}, {0: 20})
    costs = costs_of(real)
    assert stages(real, table) == {}
    costs.count([table.name])
    found = stages(real, table)
    assert {stage: (one.moves, one.records) for stage, one in found.items()} == {"ingest": (1, 30), "tier": (1, 7)}

    days_ago(real, table, 1)
    real.ingest(table, {0: (30, 35)}, claim=claim)
    for _ in range(2):
        costs.count([table.name])
        assert stages(real, table)["ingest"].records == 5, "what is counted twice counts once"
        assert stages(real, table, day=today() - timedelta(days=1))["ingest"].records == 30


def test_days_whose_moves_are_gone_stay_as_they_were(real: RealRig):
    table = real.table(partitions=1, files=True)
    claim = real.claim(table, Stage.INGEST)
    costs = costs_of(real)
    real.ingest(table, {0: (0, 30)}, claim=claim)
    costs.count([table.name])
    days_ago(real, table, 3)
    real.ask("UPDATE harness.moves SET rows = 1 WHERE table_id = %s RETURNING 1 AS done", [table.table_id])
    costs.count([table.name])
    assert stages(real, table, day=today() - timedelta(days=3))["ingest"].records == 30


def test_what_workers_spent_is_added_beside_what_is_counted(real: RealRig):
    table, other = real.table(partitions=1, files=True), real.table()
    real.ingest(table, {0: (0, 30)}, claim=real.claim(table, Stage.INGEST))
    costs = costs_of(real)
    for _ in range(2):
        costs.add(
            [
                Spent(table=table.name, stage=Stage.INGEST, taken_bytes=100, cpu_s=0.25),
                Spent(table=other.name, stage=Stage.TIER, taken_bytes=0, cpu_s=1.0),
                Spent(table="no.table", stage=Stage.TIER, taken_bytes=0, cpu_s=1.0),
            ]
        )
        costs.count([table.name, other.name])
    one = stages(real, table)["ingest"]
    assert (one.moves, one.records, one.taken_bytes, one.cpu_s) == (1, 30, 200, 0.5)
    assert stages(real, other)["tier"].cpu_s == 2.0


def test_days_are_kept_for_a_while_and_then_forgotten(real: RealRig):
    table = real.table()
    costs = costs_of(real)
    costs.add([Spent(table=table.name, stage=Stage.TIER, taken_bytes=0, cpu_s=1.0)])
    real.ask(
        "UPDATE harness.daily_costs SET day = day - %s WHERE table_id = %s RETURNING 1 AS done",
        [KEPT_DAYS, table.table_id],
    )
    costs.count([table.name])
    assert len(costs.days([table.name], days=KEPT_DAYS + 10)) == 1
    real.ask("UPDATE harness.daily_costs SET day = day - 1 WHERE table_id = %s RETURNING 1 AS d", [table.table_id])
    costs.count([table.name])
    assert costs.days([table.name], days=KEPT_DAYS + 10) == []


def test_an_accounting_row_of_ingest_ends_with_its_day(real: RealRig):
    table = real.table(partitions=1)
    writer = real.writer(table, real.claim(table, Stage.INGEST))
    assert isinstance(writer, SegmentWriter)
    segment = real.segments.open_segment(table)

    def records() -> list[int]:
        writer.commit(segment, [decoded(table, 0, at := sum(rows()), at + 10)], confirm=agrees)
        return rows()

    def rows() -> list[int]:
        return sorted(move["rows"] for move in real.ledger.moves(table, stage=Stage.INGEST))

    assert records() == [10]
    assert records() == [20], "neighbours share a row"
    writer._day = today() - timedelta(days=1)
    assert records() == [10, 20]
    assert records() == [20, 20]
    writer.close()
