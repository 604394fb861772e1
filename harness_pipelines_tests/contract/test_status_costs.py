"""`harness status` asks the ledger as often for twenty tables as for two, and one that is damaged hides no other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import harness_pipelines as hp
from harness_pipelines.app.installation import Stores
from harness_pipelines.cli.main import cli
from harness_pipelines.drivers.postgres import Connection
from harness_pipelines.ports.ledger import TableRow, TableUnknown
from harness_pipelines.protocol.bounds import BoundsBroken
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.show.status import KafkaEnds, LedgerFacts, TableSeen, look, look_at_all
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig

#: What may be wrong with one table, so that its facts cannot be read.
DAMAGED = {
    "no version": "DELETE FROM harness.versions WHERE table_id = %s",
    "bounds of its version": """UPDATE harness.versions SET bounds = jsonb_set(bounds, '{0,stream_hi}', '-1')
                                WHERE table_id = %s""",
    "bounds of its partitions": "UPDATE harness.lake_positions SET stream_hi = 9 WHERE table_id = %s AND partition = 1",
    "its spec": "UPDATE harness.tables SET spec = '{}' WHERE table_id = %s",
}


@pytest.fixture
def harness(real: RealRig, tmp_path: Path) -> Iterator[hp.Harness]:
    """An installation without Kafka."""
    with hp.Harness(Stores(Settings(home=tmp_path, dsn=real.dsn, catalog_name=CATALOG))) as made:
        yield made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each statement was sent, by its text."""
    found: Counter[str] = Counter()
    execute = Connection.execute

    def noted(connection: Connection, query: Any, *given: Any, **words: Any) -> Any:
        found[str(query)] += 1
        return execute(connection, query, *given, **words)

    monkeypatch.setattr(Connection, "execute", noted)
    return found


def full(real: RealRig, *, at: int = 6) -> TableRow:
    """A table with rows in the buffer and the lake, a claim, an open move and refused records."""
    table = real.table(partitions=2)
    real.ingest(table, {0: (0, 10), 1: (0, 4)})
    real.move(table, {0: 0, 1: 0}, {0: at, 1: 4})
    claim = real.claim(table)
    real.plan(table, claim, {0: at, 1: 4}, {0: 10, 1: 4})
    for offset in (1, 2, 9):
        real.ask(
            """INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail)
               VALUES (%s, 0, %s, 'unfit', 'why') RETURNING 1 AS done""",
            [table.table_id, offset],
        )
    return table


def statements(asked: Counter[str], act: Callable[[], object]) -> int:
    act()  # the first one opens sessions
    asked.clear()
    act()
    return asked.total()


def test_status_sends_as_many_statements_for_twenty_tables_as_for_two(
    real: RealRig, harness: hp.Harness, asked: Counter[str]
):
    names = [full(real).name for _ in range(20)]

    def shown(count: int) -> int:
        tables, sick = harness.survey(names[:count])
        seen, unread = look_at_all(harness, tables, KafkaEnds(harness))
        assert ([one.table for one in seen], sick, unread) == (sorted(names[:count]), [], [])
        return len(seen)

    two, twenty = (statements(asked, lambda count=count: shown(count)) for count in (2, 20))  # type: ignore[misc]
    assert two == twenty <= 20
    assert max(asked.values()) == 1, "each statement is sent once"


@pytest.mark.parametrize("command", [["status"], ["table", "list"]], ids=" ".join)
def test_a_command_for_all_tables_does_not_ask_table_by_table(
    real: RealRig, harness: hp.Harness, asked: Counter[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
):
    by_environment(harness, monkeypatch)

    def shown() -> None:
        done = CliRunner().invoke(cli, [*command, "--json"])
        assert done.exit_code == 0, done.output
        assert {one.name for one in real.made} <= {one["table"] for one in json.loads(done.stdout)["tables"]}

    for _ in range(2):
        full(real)
    few = statements(asked, shown)
    for _ in range(18):
        full(real)
    assert statements(asked, shown) == few


def test_many_tables_are_shown_as_each_is_by_itself(real: RealRig, harness: hp.Harness):
    names = [full(real, at=at).name for at in (3, 6, 10)]
    tables, _ = harness.survey(names)
    together, _ = look_at_all(harness, tables, KafkaEnds(harness))
    for table, seen in zip(tables, together, strict=True):
        alone = look(harness, table, KafkaEnds(harness))
        assert lasting(seen) == lasting(alone)
        assert [claim["stage"] for claim in seen.claims] == [Stage.INGEST, Stage.TIER]
        assert (len(seen.open_moves), seen.counts.quarantined) == (1, 3)
        assert sum(one.refused for one in seen.apart.values()) == 3
        assert seen.refusing is not None
        assert seen.refusing.refused == 3
        assert seen.lag["buffer"] == sum(p.bounds.buffer_hi - p.bounds.stream_hi for p in table.positions())
        assert (seen.since_ingest_s is None, seen.trouble is None) == (False, False)
    assert [one.lag["buffer"] for one in sorted(together, key=lambda one: names.index(one.table))] == [7, 4, 0]


def lasting(seen: TableSeen) -> tuple[TableSeen, list[dict[str, Any]]]:
    """What two looks at the same table have in common: all but the moment of the look."""
    claims = [{**claim, "now": None} for claim in seen.claims]
    return replace(seen, since_tier_s=0.0, since_ingest_s=0.0, at=datetime.min, claims=[]), claims


@pytest.mark.parametrize("what", DAMAGED)
def test_a_table_whose_facts_cannot_be_read_is_named_and_the_others_are_shown(
    real: RealRig, harness: hp.Harness, monkeypatch: pytest.MonkeyPatch, what: str
):
    by_environment(harness, monkeypatch)
    first, broken, last = (real.table(partitions=2) for _ in range(3))
    with real.owner.transaction() as connection:
        connection.execute("SET LOCAL session_replication_role = 'replica'")  # versions are append-only
        connection.execute(DAMAGED[what].encode(), [broken.table_id])
    try:
        for names in ([], [first.name, broken.name, last.name], [broken.name]):
            done = CliRunner().invoke(cli, ["status", *names, "--json"])
            assert done.exit_code == 0, done.output
            shown = json.loads(done.stdout)
            told = {one["table"]: one["why"] for one in shown["sick"]}
            assert told.keys() == {broken.name}
            assert told[broken.name]
            wanted = {one for one in (first.name, last.name) if one in names or not names}
            assert wanted <= {one["table"] for one in shown["tables"]}
            assert [one["table"] for one in shown["tables"] if one["table"] in names] == [
                n for n in names if n in wanted
            ]
        human = CliRunner().invoke(cli, ["status", broken.name])
        assert f"{broken.name}  cannot be read" in " ".join(human.output.split("\n"))
    finally:
        real.ask("DELETE FROM harness.tables WHERE table_id = %s RETURNING 1 AS gone", [broken.table_id])
        real.made.remove(broken)


def test_a_look_at_one_damaged_table_raises_what_is_wrong(real: RealRig, harness: hp.Harness):
    table = harness.table(real.table().name)
    reach = "UPDATE harness.lake_positions SET stream_hi = %s WHERE table_id = %s RETURNING 1 AS done"
    real.ask(reach, [9, table.row.table_id])
    try:
        with pytest.raises(BoundsBroken, match="out of order"):
            look(harness, table, KafkaEnds(harness))
    finally:
        real.ask(reach, [0, table.row.table_id])


def test_a_table_that_is_dropped_while_status_looks_is_left_out(real: RealRig, harness: hp.Harness):
    kept, gone = real.table(), real.table()
    tables, _ = harness.survey([kept.name, gone.name])
    real.ask("DELETE FROM harness.tables WHERE table_id = %s RETURNING 1 AS gone", [gone.table_id])
    real.made.remove(gone)
    seen, sick = look_at_all(harness, tables, KafkaEnds(harness))
    assert ([one.table for one in seen], sick) == ([kept.name], [])
    assert isinstance(LedgerFacts.ask(harness, tables).of[gone.table_id], TableUnknown)


def test_status_of_a_name_that_no_table_has_names_those_that_are_like_it(
    real: RealRig, harness: hp.Harness, monkeypatch: pytest.MonkeyPatch
):
    by_environment(harness, monkeypatch)
    there = real.table()
    done = CliRunner().invoke(cli, ["status", there.name, f"{there.name}x", "--json"])
    assert done.exit_code == 1
    assert f"no table '{there.name}x'" in done.output
    assert there.name in done.output


def test_names_are_taken_whole(real: RealRig, harness: hp.Harness):
    """Two names are asked for by their parts; what only has a part of each is not among the answers."""
    one, other = real.table(table="a.t_first"), real.table(table="b.t_second")
    mixed = real.table(table="a.t_second")
    found, _ = harness.survey([one.name, other.name])
    assert [table.name for table in found] == [one.name, other.name]
    assert [table.name for table in harness.survey([mixed.name])[0]] == [mixed.name]


def by_environment(harness: hp.Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands open the installation of *harness*."""
    settings = harness.settings
    assert settings.dsn is not None
    for name, value in {"DSN": settings.dsn, "HOME": str(settings.home), "CATALOG": settings.catalog_name}.items():
        monkeypatch.setenv(f"HARNESS_{name}", value)
    for name in ("KAFKA", "SPARK", "REGISTRY", "WAREHOUSE"):
        monkeypatch.delenv(f"HARNESS_{name}", raising=False)
