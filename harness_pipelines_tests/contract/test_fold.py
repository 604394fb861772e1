"""A ledger that ends: old history is folded, and every sum, seam and proof comes out as before."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from harness_pipelines.audit.fsck import batch_view, buffer, ledger  # noqa: F401
from harness_pipelines.audit.fsck.rule import RULES, Look
from harness_pipelines.drivers.postgres import sql
from harness_pipelines.ledgers.postgres.history.fold import HistoryFold
from harness_pipelines.ledgers.postgres.table_state import TableStates
from harness_pipelines.ports.history import Folded
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig
from harness_pipelines_tests.planted import plant

HOURLY = timedelta(hours=1)
STEPS = 2_000  #: 83 days, of which 30 are kept


def planted(real: RealRig, steps: int = STEPS, **words: Any) -> TableRow:
    table = real.table(partitions=2)
    with real.owner.transaction() as connection:
        plant(connection, table.table_id, steps=steps, gap=HOURLY, **words)
    return table


def fold(real: RealRig, table: TableRow, **words: Any) -> Folded:
    claim = real.claim(table, Stage.EXPIRE)
    whole = Folded()
    try:
        while (done := HistoryFold(real.database, **words).fold(table, claim)).moves:
            whole = whole.plus(done)
    finally:
        real.ledger.release(claim)
    return whole


def answers(real: RealRig, table: TableRow) -> dict[str, Any]:
    """What audits, fsck and status ask of the ledger's history."""
    key = {"table_id": table.table_id, "limit": 20}
    taken = real.ask(sql("audit/taken"), {**key, "stage": "ingest"})
    digests: dict[str, int] = {}
    for row in taken:
        for partition, digest in row["digests"].items():
            digests[partition] = (digests.get(partition, 0) + int(digest)) % 2**64
    return {
        "seams": real.ask(sql("checks/seams"), key),
        "moved": real.ask(sql("checks/moved_rows"), key),
        "counts": real.ask(sql("overview/counts"), key),
        "rows": sum(row["rows"] for row in taken),
        "from": min(int(row["lo"]["0"]) for row in taken),
        "to": max(int(row["hi"]["1"]) for row in taken),
        "digests": digests,
        "gaps": real.ask(sql("fsck/outbox_gaps"), key),
        "last": real.ask(sql("fsck/outbox"), key)[0]["last"],
        "folders": real.ask(sql("upkeep/folders"), key),
        "last move": real.ask(sql("checks/last_committed"), {**key, "stage": "tier"}),
    }


def test_a_folded_ledger_answers_as_the_unfolded_one(real: RealRig):
    table = planted(real)
    before = answers(real, table)

    done = fold(real, table)

    assert answers(real, table) == before
    assert done.versions > 1_000
    left = real.ask("SELECT count(*) AS n FROM harness.moves WHERE table_id = %s", [table.table_id])[0]["n"]
    assert left <= 2 * 30 * 24 + 4
    checkpoints = real.ask("SELECT * FROM harness.checkpoints WHERE table_id = %s", [table.table_id])
    assert {(one["stage"], one["kind"]) for one in checkpoints} == {("ingest", "in effect"), ("tier", "in effect")}
    assert len(checkpoints) == 2


def objections(real: RealRig, table: TableRow) -> list[str]:
    """What fsck's rules about the ledger alone object to."""
    look = Look(books=TableStates(real.readers, CATALOG).books(table.name), surveys=None, log=None)
    rules = [rule for rule in RULES if not rule.needs]
    return [f"{rule.invariant} {one.detail}" for rule in rules for one in rule.check(look) if not one.hint]


def test_fsck_finds_no_fault_in_a_folded_ledger(real: RealRig):
    table = planted(real)
    before = objections(real, table)
    fold(real, table)

    assert objections(real, table) == before


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE harness.checkpoints SET hi = '{\"0\": 7, \"1\": 7}' WHERE table_id = %s AND stage = 'tier'", "S6"),
        ("UPDATE harness.checkpoints SET rows = rows + 1 WHERE table_id = %s AND stage = 'ingest'", "S13"),
        ("DELETE FROM harness.checkpoints WHERE table_id = %s AND stage = 'ingest'", "S6"),
        ("UPDATE harness.folds SET versions = versions - 1 WHERE table_id = %s", "S3"),
        ("UPDATE harness.folds SET event = event - 1 WHERE table_id = %s", "S33"),
    ],
)
def test_fsck_names_a_checkpoint_that_was_changed_by_hand(real: RealRig, statement: str, found: str):
    table = planted(real)
    fold(real, table)
    before = objections(real, table)
    real.ask(statement, [table.table_id])

    assert any(one.startswith(found) for one in objections(real, table) if one not in before)
