"""Expire folds history while others read, pin, apply a spec, and keep rows in the middle of what is old."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from harness_pipelines.ledgers.postgres.history.fold import HistoryFold
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.contract.test_fold import STEPS, answers, checkpoints, fold, kept, objections, planted

YOUNG = 30 * 24  #: steps that are younger than what is folded
PIN = (
    "INSERT INTO harness.snapshot_tables (name, table_id, version, bounds) SELECT %s, table_id, version, %s "
    "FROM harness.versions WHERE table_id = %s AND version = 500"
)


def pinned(real: RealRig, table: TableRow, *, buffered: int) -> str:
    """Version 500 in a snapshot that was made when so much was buffered."""
    cut = {"start": 0, "batch_hi": 0, "stream_hi": 4_990, "buffer_hi": buffered}
    real.ask("INSERT INTO harness.snapshots (name) VALUES (%s)", [table.name])
    real.ask(PIN, [table.name, Jsonb({"0": cut, "1": cut}), table.table_id])
    return table.name


@pytest.mark.parametrize("gone", [False, True], ids=["the pin is there", "the pin went, its lease is alive"])
def test_what_answers_for_a_read_of_a_pin_stays_as_long_as_it_is_read(real: RealRig, gone: bool):
    """A lease has the bounds of the pin: what was buffered when it was made is answered for by a later version."""
    table = planted(real)
    name = pinned(real, table, buffered=5_030)
    state = Leases(real.readers).look(table, holder="reader", lease=timedelta(hours=1), at=name)
    assert state.answered_by is not None and state.answered_by.version == 504
    if gone:
        real.ask("DELETE FROM harness.snapshots WHERE name = %s", [name])

    fold(real, table)

    assert {version for version in kept(real, table) if version < 600} == {1, 500, 504}


def test_a_longer_history_holds_from_its_apply_on_in_the_middle_of_a_run_too(real: RealRig):
    table = planted(real)
    before = kept(real, table)
    longer = table.spec.model_copy(
        update={"retention": table.spec.retention.model_copy(update={"history": 400 * 86_400.0})}
    )
    claim = real.claim(table, Stage.EXPIRE)

    class Batch(HistoryFold):
        def _batch(self, *given: Any) -> Any:
            done = super()._batch(*given)
            real.ledger.update_spec(real.again(table), longer)
            return done

    done = Batch(real.database).fold(table, claim)

    assert done.versions == 50
    assert len(before) - len(kept(real, table)) == 50


def refused(real: RealRig, table: TableRow, of: str) -> None:
    """Old moves, those of versions *of*, refused the first record that they read of partition 0."""
    made = (
        'INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, headers, refused_by) '
        "SELECT m.table_id, 0, (m.lo ->> '0')::bigint, 'malformed', 'no JSON', '[]', ARRAY[m.move_id] "
        f"FROM harness.moves m JOIN harness.versions v USING (move_id) WHERE m.table_id = %s AND {of}"
    )
    real.ask(made, [table.table_id])


def once_rows(real: RealRig, table: TableRow) -> None:
    """What was refused had been a row, which a replay removed: the moves stay."""
    removed = (
        'INSERT INTO harness.corrections (table_id, version, partition, "offset", kind, was, move_id) '
        "SELECT table_id, 1, partition, \"offset\", 'removed', '0', refused_by[1] FROM harness.quarantine "
        "WHERE table_id = %s"
    )
    real.ask(removed, [table.table_id])


def test_moves_that_stay_hold_no_later_ones_up(real: RealRig):
    table = planted(real)
    refused(real, table, "v.version <= 401")
    once_rows(real, table)
    before = answers(real, table)

    fold(real, table)

    left = real.ask("SELECT stage, count(*) AS n FROM harness.moves WHERE table_id = %s GROUP BY 1", [table.table_id])
    assert {row["stage"]: row["n"] for row in left} == {"ingest": YOUNG, "tier": YOUNG + 400}
    assert answers(real, table) == before
    assert fold(real, table, at_least=0).moves == 0


def test_a_history_with_many_seams_is_folded_beside_them(real: RealRig):
    """Every tenth move of tier stays: checkpoints lie between them, and join where one goes."""
    table = planted(real)
    refused(real, table, "v.version %% 10 = 0")
    once_rows(real, table)
    before = answers(real, table)
    fold(real, table)
    old = STEPS - YOUNG

    assert answers(real, table) == before
    assert {one["moves"] for one in checkpoints(real, table, "tier")[1:-1]} == {9}
    assert abs(len(checkpoints(real, table, "tier")) - old // 10) <= 1

    real.ask("DELETE FROM harness.corrections WHERE table_id = %s", [table.table_id])
    fold(real, table, at_least=0)

    assert len(checkpoints(real, table, "tier")) == 1
    assert answers(real, table) == before
    assert not [one for one in objections(real, table) if "quarantine" not in one and "S31" not in one]


def test_a_moment_of_folded_history_is_refused_by_what_was_asked_for(real: RealRig):
    """Not by the number of an older version that is there still."""
    table = planted(real)
    fold(real, table)
    then = datetime.now(UTC) - timedelta(days=60)

    with pytest.raises(
        VersionGone, match=r"the version of 20.* is not retained .*; history up to version \d+ was folded"
    ):
        Leases(real.readers).look(table, holder="reader", lease=timedelta(hours=1), at=then)
