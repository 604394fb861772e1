"""One table whose row in the ledger cannot be understood is named by all who show tables, and stops no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from click.testing import CliRunner

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.cli.main import cli
from harness_pipelines.defs.definitions import load
from harness_pipelines.defs.names import broken_key, table_key
from harness_pipelines.ports.ledger import TableDamaged
from harness_pipelines.serve.page.content import Facts, everything
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.rig import INGEST, TableRig, environment
from harness_pipelines_tests.scrape import scrape_ledger, served

#: What an older release, a restore or a hand may have left in the row of one table.
SICK = {
    "a word that is unknown": """spec = spec || '{"gone_word": 1}'""",
    "a type that is unknown": """spec = jsonb_set(spec, '{columns,0,type}', '"money"')""",
    "a number that is a text": """spec = jsonb_set(spec, '{tier,max_age}', '"soon"')""",
    "no spec": "spec = '{}'",
    "no object": "spec = '[]'",
    "the spec of another table": """spec = jsonb_set(spec, '{table}', '"a.b"')""",
}


@contextmanager
def sick(rig: TableRig, how: str) -> Iterator[None]:
    """The row of the table is as *how* says, to the end of the block."""
    assert rig.stores.settings.dsn is not None
    mine = [rig.table.row.table_id]
    with psycopg.connect(rig.stores.settings.dsn, autocommit=True) as connection:
        [(before,)] = connection.execute("SELECT spec::text FROM harness.tables WHERE table_id = %s", mine).fetchall()
        connection.execute(f"UPDATE harness.tables SET {how} WHERE table_id = %s".encode(), mine)
        try:
            yield
        finally:
            connection.execute("UPDATE harness.tables SET spec = %s::jsonb WHERE table_id = %s", [before, *mine])


@pytest.mark.parametrize("how", SICK)
def test_a_row_that_cannot_be_understood_is_named_and_the_others_go_on(make_rig: MakeRig, how: str):
    rig, other = make_rig(), make_rig()
    other.produce(3)
    with sick(rig, SICK[how]):
        found, named = rig.stores.tables.survey()
        assert other.name in [row.name for row in found]
        why = {one.name: one.why for one in named}
        assert f"the spec of {rig.name} in harness.tables cannot be read" in why[rig.name]
        assert other.name not in why
        with pytest.raises(TableDamaged, match=rig.name):
            rig.harness.table(rig.name)
        other.ingest()
        rig.stores.stalls.note([rig.name, other.name])
        assert other.name in {work.name for work in rig.stores.watch.work(None)}
        assert rig.stores.stalls.now() is not None
        broken = {one.table for one in fsck(rig.stores, [rig.name, other.name]).broken}
        assert broken == {rig.name}


@pytest.mark.parametrize("how", SICK)
def test_a_table_whose_row_cannot_be_understood_is_dropped_and_made_again(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, how: str
):
    rig = make_rig(views="both" if how == "no spec" else "stream")
    rig.produce(3)
    rig.ingest()
    rig.tier()
    for name, value in environment(rig.stores.settings).items():
        monkeypatch.setenv(name, value)
    with sick(rig, SICK[how]):
        looked = CliRunner().invoke(cli, ["table", "drop", rig.name, "--dry-run", "--json"])
        assert looked.exit_code == 0, looked.output
        gone = CliRunner().invoke(cli, ["table", "drop", rig.name, "--yes", "--json"])
        assert gone.exit_code == 0, gone.output
        assert json.loads(gone.stdout)["views"] == json.loads(looked.stdout)["views"] != []
        assert json.loads(gone.stdout)["files"][0]["count"] > 1
    assert rig.name not in [one.name for one in rig.stores.tables.survey()[1]]
    rig.harness.apply(rig.table.spec)


def test_schemas_that_are_gone_are_named_too(make_rig: MakeRig):
    rig, other = make_rig(), make_rig()
    assert rig.stores.settings.dsn is not None
    mine = [rig.table.row.table_id]
    with psycopg.connect(rig.stores.settings.dsn, autocommit=True) as connection:
        gone = connection.execute(
            "DELETE FROM harness.schemas s WHERE table_id = %s RETURNING to_jsonb(s)::text", mine
        ).fetchall()
        try:
            found, named = rig.stores.tables.survey()
        finally:
            connection.execute(
                "INSERT INTO harness.schemas SELECT r.* FROM jsonb_populate_record(NULL::harness.schemas, %s::jsonb) r",
                gone[0],
            )
    assert other.name in [row.name for row in found]
    assert "its schemas are gone" in {one.name: one.why for one in named}[rig.name]


def test_status_page_metrics_worker_and_dagster_name_it(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    rig, other = make_rig(mode="external_worker"), make_rig(mode="external_worker")
    other.produce(3)
    for name, value in environment(rig.stores.settings).items():
        monkeypatch.setenv(name, value)
    with sick(rig, SICK["a word that is unknown"]):
        shown = CliRunner().invoke(cli, ["status", rig.name, other.name, "--json"])
        assert shown.exit_code == 0, shown.output
        told = json.loads(shown.stdout)
        assert [one["table"] for one in told["tables"]] == [other.name]
        assert [one["table"] for one in told["sick"]] == [rig.name]
        listed = json.loads(CliRunner().invoke(cli, ["table", "list", "--json"]).stdout)
        assert rig.name in [one["table"] for one in listed["sick"]]
        assert other.name in [one["table"] for one in listed["tables"]]

        lines = {one["table"]: one["state"] for one in Facts(rig.harness).status(None, sees=everything)["tables"]}
        assert lines[rig.name] == "unreadable"
        assert lines[other.name] != "unreadable"

        worker = Worker(rig.stores, [other.table.row], WorkerOptions(stages=INGEST, until_idle=True))
        with served(worker, other.table) as url:
            worker.run()
            seen = scrape_ledger(url)
        assert seen.value("harness_table_unreadable", table=rig.name) == 1
        assert seen.value("harness_buffer_offsets", table=other.name) == 6
        assert seen.value("harness_scrape_ok") == 1

        keys = load().resolve_asset_graph().get_all_asset_keys()
        assert broken_key(rig.name) in keys
        assert table_key(other.name) in keys


def test_a_table_of_another_worker_is_shown_while_any_worker_lives(make_rig: MakeRig):
    rig, others = make_rig(mode="external_worker"), make_rig(mode="external_worker", buffer="none", views="stream")
    mine, manual = make_rig(mode="external_worker"), make_rig(mode="manual")
    worker = Worker(mine.stores, [mine.table.row], WorkerOptions(stages=INGEST))
    with served(worker, mine.table) as url:
        seen = scrape_ledger(url)
    for name in (rig.name, others.name, mine.name):
        assert seen.value("harness_version", table=name) == 1
        assert seen.value("harness_freshness_lake_goal_seconds", table=name) is not None
        assert seen.value("harness_claim_lease_seconds", table=name, stage="ingest") == (
            None if name == others.name else 0
        )
    assert seen.value("harness_claim_lease_seconds", table=others.name, stage="tier") == 0
    assert seen.value("harness_version", table=manual.name) is None, "nobody is meant to work on it"
