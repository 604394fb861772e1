"""Two who change a table's spec at once: nobody overwrites what he did not read, and no value is dropped."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.audit.repair.reconcile import look, settle
from harness_pipelines.ledgers.postgres.ledger import PostgresLedger
from harness_pipelines.ports.ledger import TableExists, TableRow
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.protocol.schema.schemas import SpecMoved
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST, TableRig

MORE = ColumnChanges(add=(Column(name="more", type=parse_type("string")),))


def with_settings(rig: TableRig, **changes: Any) -> hp.TableSpec:
    words = rig.harness.table(rig.name).spec.model_dump(mode="json", by_alias=True)
    return hp.TableSpec.model_validate({**words, **changes})


def names(rig: TableRig) -> list[str]:
    return [column.name for column in rig.harness.table(rig.name).spec.columns]


def before_update(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Let *act* happen once between what an apply reads and what it writes."""
    real, done = PostgresLedger.update_spec, threading.Event()

    def late(ledger: PostgresLedger, table: TableRow, spec: hp.TableSpec, *, decoding: bool = False) -> TableRow:
        if not done.is_set():
            done.set()
            act()
        return real(ledger, table, spec, decoding=decoding)

    monkeypatch.setattr(PostgresLedger, "update_spec", late)


def test_an_apply_that_read_the_spec_before_a_change_of_columns_is_refused(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
):
    rig = make_rig(partitions=1)
    wanted = with_settings(rig, unknown_fields="ignore", on_error="stop")
    before_update(monkeypatch, lambda: rig.harness.table(rig.name).evolve(MORE))

    with pytest.raises(TableExists, match="exists with another `columns`"):
        rig.harness.apply(wanted)

    rig.kafka.produce(rig.topic, 0, [b'{"id":1,"n":1,"s":"x","more":"yes"}'])
    rig.ingest()
    assert names(rig) == ["id", "n", "s", "more"]
    assert rig.harness.table(rig.name).read(columns=["id", "more"]).to_pylist() == [{"id": 1, "more": "yes"}]
    assert fsck(rig.stores, [rig.name]).ok
    assert audit_table(rig.stores, rig.table.row, full=True).ok


def test_a_change_of_columns_keeps_the_settings_that_were_applied_meanwhile(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    wanted = with_settings(rig, on_error="stop")

    def apply() -> None:
        rig.harness.apply(wanted)

    faults.arm("evolve.before_lock", apply)

    published = rig.harness.table(rig.name).evolve(MORE)

    found = rig.harness.table(rig.name).spec
    assert (found.on_error, published.schema_version) == ("stop", 2)
    assert names(rig) == ["id", "n", "s", "more"]
    assert fsck(rig.stores, [rig.name]).ok


def test_of_two_who_apply_at_once_the_second_is_refused_by_name(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    rig = make_rig(partitions=1)
    mine, theirs = with_settings(rig, on_error="stop"), with_settings(rig, unknown_fields="quarantine")
    before_update(monkeypatch, lambda: rig.harness.apply(theirs))

    with pytest.raises(SpecMoved, match="unknown_fields differ"):
        rig.harness.apply(mine)

    found = rig.harness.table(rig.name).spec
    assert (found.on_error, found.unknown_fields) == ("quarantine", "quarantine")


def test_two_who_apply_the_same_at_once_both_have_it(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    """As code locations of Dagster do that load the same component."""
    rig = make_rig(partitions=1)
    wanted = with_settings(rig, on_error="stop")
    before_update(monkeypatch, lambda: rig.harness.apply(wanted))

    rig.harness.apply(wanted)

    assert rig.harness.table(rig.name).spec.on_error == "stop"


def test_a_spec_that_disagrees_with_the_schema_stops_ingest_and_is_named(make_rig: MakeRig):
    """As databases have it where an earlier release let an apply write over a change of columns."""
    rig = make_rig(partitions=1)
    old = rig.table.row
    rig.harness.table(rig.name).evolve(MORE)
    plant(rig, old)
    rig.kafka.produce(rig.topic, 0, [b'{"id":1,"n":1,"s":"x","more":"yes"}'])

    with rig.working(INGEST) as worker:
        shown = worker.progress[0].trouble
        wait_until(lambda: "ingest" in shown, "it is shown")
        assert "only the schema has more string" in shown["ingest"]
        [found] = [one.detail for one in fsck(rig.stores, [rig.name]).broken]
        assert "only the schema has more string" in found
        assert f"harness reconcile {rig.name} --yes" in found
        assert rig.read().total() == 0

        row = rig.harness.table(rig.name).row
        report = look(rig.stores, row)
        assert [one.act for one in report.acts] == ["give the spec the columns of schema 2"]
        assert settle(rig.stores, row, report).settled
        wait_until(lambda: not shown, "it goes on")
        wait_until(lambda: rig.read().total() == 1, "the record is taken")
        wait_until(lambda: rig.harness.table(rig.name).row.stopped is None, "the table is started")

    assert rig.harness.table(rig.name).read(columns=["id", "more"]).to_pylist() == [{"id": 1, "more": "yes"}]
    assert fsck(rig.stores, [rig.name]).ok


def plant(rig: TableRig, old: TableRow) -> None:
    from psycopg.types.json import Jsonb

    from harness_pipelines.spec.load import dump_spec

    rig.stores.database.run("ledger/update_spec", {"table_id": old.table_id, "spec": Jsonb(dump_spec(old.spec))})
