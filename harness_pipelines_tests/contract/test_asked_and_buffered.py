"""What people asked to be laid out again, and what the buffer says of a table: of it alone, in order."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from harness_pipelines.ledgers.postgres.requests.recluster import Reclusters
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.requests import Asked
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines_tests.contract.bystander import Bystander
from harness_pipelines_tests.contract.stores_rig import RealRig, agrees, decoded


@pytest.fixture
def reclusters(real: RealRig) -> Reclusters:
    return Reclusters(real.database)


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return real.table(views="stream")


@pytest.fixture
def claim(real: RealRig, table: TableRow) -> Claim:
    return real.claim(table, Stage.INGEST)


def rows(real: RealRig, table: TableRow) -> list[dict[str, Any]]:
    return real.ask("SELECT * FROM harness.reclusters WHERE table_id = %s ORDER BY request", [table.table_id])


def test_a_request_is_open_until_it_is_ended_and_one_for_the_same_parts_goes_on_with_it(
    real: RealRig, reclusters: Reclusters, table: TableRow
):
    first = reclusters.ask(table, paths=("a",), upto=5, rebuild=False).request
    second = reclusters.ask(table, paths=("b",), upto=6, rebuild=False).request
    assert reclusters.open(table) == [first, second]
    assert reclusters.ask(table, paths=("a",), upto=9, rebuild=False) == Asked(first, is_new=False)
    reclusters.end(table, first)
    was = rows(real, table)
    assert [row["ended_at"] is None for row in was] == [False, True]
    reclusters.end(table, first)
    assert rows(real, table) == was
    assert reclusters.open(table) == [second]
    later = reclusters.ask(table, paths=("a",), upto=9, rebuild=False)
    assert later.is_new and later.request.request_id > second.request_id


def test_a_relayout_that_failed_is_noted_once_and_until_somebody_asks_again(
    real: RealRig, reclusters: Reclusters, table: TableRow
):
    other = real.table(views="stream")
    moves = []
    for owner in (table, other, table):
        made = real.claim(owner)
        moves.append(real.plan(owner, made, {0: 0}, {0: 0}).move_id)
        real.ask("UPDATE harness.moves SET state = 'ABANDONED' WHERE move_id = %s", [moves[-1]])
        real.ledger.release(made)
    first, elsewhere, last = moves
    reclusters.leave_out(table, move_id=last, files=["z"], error="late")
    reclusters.leave_out(table, move_id=first, files=["b", "a"], error="a bug")
    reclusters.leave_out(table, move_id=first, files=["c"], error="another")
    reclusters.leave_out(other, move_id=elsewhere, files=["d"], error="a bug")
    assert [(one.move_id, one.files, one.error) for one in reclusters.left_out(table)] == [
        (first, frozenset({"a", "b"}), "a bug"),
        (last, frozenset({"z"}), "late"),
    ]
    reclusters.ask(table, paths=("a",), upto=5, rebuild=False)
    assert reclusters.left_out(table) == []
    assert [one.move_id for one in reclusters.left_out(other)] == [elsewhere]


def test_records_that_were_set_aside_are_those_of_a_range_of_a_partition(real: RealRig, table: TableRow, claim: Claim):
    writer = real.writer(table, claim)
    parts = [decoded(table, 0, 0, 20, refused=[12, 3, 5, 9, 1]), decoded(table, 1, 0, 20, refused=[4])]
    writer.commit(real.segments.open_segment(table), parts, confirm=agrees)
    writer.close()
    refused: Any = real.segments
    assert refused.refused(table, 0, 3, 12) == [3, 5, 9]


def test_how_a_table_began_is_told_of_it_alone(real: RealRig, table: TableRow, claim: Claim):
    segments: Any = real.segments

    def began() -> tuple[int, bool]:
        found = segments.beginning(table, limit=3)
        return found.refused, found.taken

    assert began() == (0, False)
    writer = real.writer(table, claim)
    writer.commit(real.segments.open_segment(table), [decoded(table, 0, 0, 5, refused=range(5))], confirm=agrees)
    assert began() == (3, False), "a move without rows takes none"
    insert = "INSERT INTO harness.filtered (table_id, partition, records) VALUES (%s, 0, %s)"
    real.ask(insert, [table.table_id, 0])
    assert began() == (3, False)
    real.ask("UPDATE harness.filtered SET records = 1 WHERE table_id = %s", [table.table_id])
    assert began() == (3, True)
    real.ask("DELETE FROM harness.filtered WHERE table_id = %s", [table.table_id])
    real.ask(
        "INSERT INTO harness.moves (table_id, stage, shard, lo, hi, schema_version, state, epoch, trigger, rows) "
        "VALUES (%s, 'compact', 0, '{}', '{}', 1, 'ABANDONED', 1, 'rows', 1)",
        [table.table_id],
    )
    assert began() == (3, False), "a move that was given up took none"
    writer.commit(real.segments.open_segment(table), [decoded(table, 0, 5, 6)], confirm=agrees)
    writer.close()
    assert began() == (3, True)


def test_segments_and_their_sizes_are_listed_oldest_first(real: RealRig, table: TableRow, bystander: Bystander):
    names = [real.ingest(table, {0: (0, 5)}).name]
    for _ in range(10):  # more than a digit: names do not sort as numbers do
        real.segments.rotate(table)
        names.append(real.segments.open_segment(table).name)
    segments: Any = real.segments
    found = segments.sizes(table)
    assert [one["segment"] for one in found] == [one.name for one in real.segments.all(table)] == names
    assert [one["state"] for one in found] == ["closed"] * 10 + ["open"]
    assert all(one["bytes"] > 0 and one["age_s"] < timedelta(hours=1).total_seconds() for one in found)


def test_a_segment_that_was_closed_and_retired_meanwhile_is_not_closed_again(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    segment, segments = real.segments.open_segment(table), real.segments

    def meanwhile(_table: TableRow, found: Any) -> None:
        assert found.name == segment.name
        real.ask("UPDATE harness.segments SET state = 'retired' WHERE segment = %s", [segment.name])

    monkeypatch.setattr(segments, "index", meanwhile)
    segments.rotate(table)
    assert [one.state for one in segments.all(table)] == ["retired", "open"]
