"""Old moves that refused records (`buffer: none`) are folded, and each record is judged as before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from harness_pipelines.ledgers.postgres.history import fold as history_fold
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.contract.test_fold import answers, fold, kept, objections, planted

OLD, YOUNG = 100, 1_900  #: versions
ASIDE = """
INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, headers, refused_by, state)
VALUES (%s, 0, %s, 'malformed', 'no JSON', '[]', %s, %s)
"""
CORRECTED = """
INSERT INTO harness.corrections (table_id, version, partition, "offset", kind, digest, was, move_id)
VALUES (%s, %s, 0, %s, %s, %s, %s, %s)
"""


def moves(real: RealRig, table: TableRow, *versions: int) -> list[int]:
    """The moves that made *versions*, in their order."""
    asked = "SELECT move_id FROM harness.versions WHERE table_id = %s AND version = ANY(%s) ORDER BY version"
    return [row["move_id"] for row in real.ask(asked, [table.table_id, list(versions)])]


def judged(real: RealRig, table: TableRow) -> dict[int, tuple[str, bool]]:
    found = real.ask('SELECT "offset", state, is_row FROM harness.judged WHERE table_id = %s', [table.table_id])
    return {row["offset"]: (row["state"], row["is_row"]) for row in found}


def named(real: RealRig, table: TableRow) -> dict[int, Sequence[int] | None]:
    found = real.ask('SELECT "offset", refused_by FROM harness.quarantine WHERE table_id = %s', [table.table_id])
    return {row["offset"]: row["refused_by"] for row in found}


def changed(real: RealRig, table: TableRow) -> set[int]:
    """Offsets of records that are not as the harness wrote them."""
    asked = 'SELECT "offset" FROM harness.quarantine q WHERE table_id = %s AND digest <> harness.refused_digest(q)'
    return {row["offset"] for row in real.ask(asked, [table.table_id])}


@pytest.mark.parametrize("at_once", [2, 1_000])
def test_moves_that_refused_records_are_folded_and_the_records_are_judged_as_before(
    real: RealRig, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(history_fold, "RECORDS_AT_ONCE", at_once)
    table = planted(real)
    first, undone, second, other = moves(real, table, *range(OLD, OLD + 4))
    young, revert = moves(real, table, YOUNG, YOUNG + 1)
    real.ask("UPDATE harness.moves SET undone_by = %s WHERE move_id = ANY(%s)", [revert, [undone, young]])

    def aside(offset: int, by: Sequence[int] | None, state: str = "held", *kinds: tuple[str, int]) -> None:
        real.ask(ASIDE, [table.table_id, offset, by, state])
        for version, (kind, move) in enumerate(kinds, start=YOUNG):
            digests = (None, "0") if kind == "removed" else ("0", None)
            real.ask(CORRECTED, [table.table_id, version, offset, kind, *digests, move])

    aside(0, [first])
    aside(1, [undone], "replayed")  # another move took it
    aside(2, [undone, second])
    aside(3, [undone, young], "replayed")
    aside(4, [first], "replayed", ("added", revert))
    aside(5, [first], "dropped", ("added", young))
    aside(6, None)
    aside(7, [first])
    aside(8, [undone, other], "held", ("removed", young))
    real.ask("UPDATE harness.quarantine SET detail = '?' WHERE table_id = %s AND \"offset\" = 7", [table.table_id])
    before = judged(real, table), answers(real, table), objections(real, table)
    assert {offset for offset, (_, is_row) in before[0].items() if is_row} == {1, 3, 4}

    fold(real, table)

    assert (judged(real, table), answers(real, table), objections(real, table)) == before
    assert {version for version in kept(real, table) if version < OLD + 50} == {1, OLD + 1, OLD + 3}
    everything: dict[int, Any] = {**dict.fromkeys(range(9)), 1: [undone], 2: None, 3: [undone, young]}
    assert named(real, table) == {**everything, 8: [undone, other]}
    assert changed(real, table) == {7}, "what somebody changed by hand stays known as changed"

    real.ask('DELETE FROM harness.corrections WHERE table_id = %s AND "offset" = 8', [table.table_id])
    fold(real, table, at_least=0)

    assert judged(real, table) == before[0]
    assert {version for version in kept(real, table) if version < OLD + 50} == {1}
    assert named(real, table) == {**dict.fromkeys(range(9)), 1: [], 3: [young]}
