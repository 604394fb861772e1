"""The audit against real services: a whole table passes, every planted fault is found and named."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.cli.main import cli
from harness_pipelines_tests.integration.audit.conftest import BUFFER, LAKE, TAIL


def faults(report):
    return {
        kind: [(f["partition"], f["offset"], f["tier"]) for f in report.to_json()[kind]]
        for kind in ("missing", "duplicated", "changed", "unexplained")
        if report.to_json()[kind]
    }


def audited(rig, **options):
    return audit_table(rig.harness.stores, rig.table.row, **options)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_whole_table_has_every_record_in_exactly_one_tier(whole, processes):
    report = audited(whole, processes=processes)

    assert report.ok, report.to_json()
    assert [(r.partition, str(r.tier), r.records, r.rows, r.quarantined) for r in report.ranges] == [
        (p, tier, n, n - 1, q)
        for p in range(2)
        for tier, n, q in (("stream", LAKE, 1), ("buffer", BUFFER, 1), ("tail", TAIL, 0))
    ]
    assert all(r.expected == r.found != 0 for r in report.ranges)


def test_the_digest_of_a_range_does_not_depend_on_where_its_rows_are(whole):
    mine = {(r.tier, r.low): r.found for r in audited(whole).ranges if r.partition == 0}
    other = {(r.tier, r.low): r.found for r in audited(whole).ranges if r.partition == 1}

    assert mine.keys() == other.keys()
    assert set(mine.values()).isdisjoint(other.values()), "the partition is part of a row"


def test_a_row_deleted_from_the_buffer_by_hand_is_missing(whole, without_row):
    without_row(whole.segment(), f"_kafka_partition = 1 AND _kafka_offset = {LAKE + 7}")

    assert faults(audited(whole)) == {"missing": [(1, LAKE + 7, "buffer")]}


def test_a_row_put_into_the_buffer_twice_is_doubled(whole):
    where = f"_kafka_partition = 0 AND _kafka_offset = {LAKE + 9}"
    whole.sql(f"INSERT INTO {whole.segment()} SELECT * FROM {whole.segment()} WHERE {where}")
    try:
        assert faults(audited(whole)) == {"duplicated": [(0, LAKE + 9, "buffer")]}
    finally:
        whole.sql(f"DELETE FROM {whole.segment()} WHERE ctid = (SELECT max(ctid) FROM {whole.segment()} WHERE {where})")


def test_leftover_rows_of_the_buffer_below_the_lakes_bound_are_legal(whole):
    assert whole.sql(f"SELECT count(*) FROM {whole.segment()} WHERE _kafka_offset < {LAKE}") == [(2 * (LAKE - 1),)]
    assert audited(whole).ok


def test_a_quarantined_record_that_was_removed_is_missing(whole, without_row):
    table_id = whole.table.row.table_id
    without_row("harness.quarantine", f'table_id = {table_id} AND partition = 0 AND "offset" = 2')

    assert faults(audited(whole)) == {"missing": [(0, 2, "quarantine")]}


def test_a_row_changed_in_the_lake_is_named(whole, rewritten):
    def change(rows: pa.Table) -> pa.Table:
        names = rows.column("name").to_pylist()
        names[4] += "!"
        return rows.set_column(rows.schema.get_field_index("name"), rows.schema.field("name"), pa.array(names))

    rewritten(1, change)

    (found,) = faults(audited(whole)).items()
    assert found == ("changed", [(1, 5, "stream")]), "the third record is in quarantine"


def test_a_value_deep_in_a_list_that_changed_is_named(whole, rewritten):
    def change(rows: pa.Table) -> pa.Table:
        tags = rows.column("tags").to_pylist()
        tags[0] = [*tags[0], None]
        field = rows.schema.field("tags")
        return rows.set_column(rows.schema.get_field_index("tags"), field, pa.array(tags, field.type))

    rewritten(0, change)

    assert faults(audited(whole)) == {"changed": [(0, 0, "stream")]}


def test_a_row_that_the_lake_lost_is_missing(whole, rewritten):
    rewritten(0, lambda rows: rows.filter(pc.not_equal(rows.column("_kafka_offset"), 50)))

    assert faults(audited(whole)) == {"missing": [(0, 50, "stream")]}


def test_a_row_that_no_record_explains_is_named(whole, rewritten):
    def change(rows: pa.Table) -> pa.Table:
        last = rows.slice(rows.num_rows - 1)
        at = rows.schema.get_field_index("_kafka_offset")
        return pa.concat_tables([rows, last.set_column(at, rows.schema.field(at), pa.array([LAKE + 3]))])

    rewritten(0, change)

    assert faults(audited(whole)) == {"unexplained": [(0, LAKE + 3, "stream")]}


def test_a_data_file_appended_twice_is_doubled_row_by_row(whole):
    """Another engine commits to the view; the doubled rows are in the catalog's head that the next move builds on."""
    key = (whole.table.spec.namespace, whole.table.row.tiered_view)
    (before,) = whole.sql(
        "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = %s AND table_name = %s", *key
    )[0]
    view = whole.harness.stores.lake.load(whole.table.row, before)
    file = next(task.file for task in view.scan().plan_files() if task.file.partition[0] == 1)
    with view.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)
    move = "UPDATE iceberg_tables SET metadata_location = %s WHERE table_namespace = %s AND table_name = %s"
    whole.sql(move, view.metadata_location, *key)
    try:
        report = audited(whole)
    finally:
        whole.sql(move, before, *key)

    assert faults(report) == {"duplicated": [(1, o, "stream") for o in range(LAKE) if o != 2]}
    assert "another writer committed" in report.to_json()["foreign"]
    assert file.file_path.rsplit("/", 1)[-1] in report.to_json()["duplicated"][0]["detail"]


def test_the_command_prints_the_fixed_json_and_ends_with_1_when_something_is_wrong(whole, without_row, monkeypatch):
    home = ["--home", str(whole.harness.settings.home)]
    good = CliRunner().invoke(cli, [*home, "audit", whole.table.name, "--json"])
    without_row(whole.segment(), f"_kafka_partition = 0 AND _kafka_offset = {LAKE}")
    bad = CliRunner().invoke(cli, [*home, "audit", whole.table.name, "--json"])
    shown = CliRunner().invoke(cli, [*home, "audit", whole.table.name])

    assert (good.exit_code, json.loads(good.stdout)["ok"], json.loads(good.stdout)["missing"]) == (0, True, [])
    assert {"ok", "missing", "duplicated", "ranges"} <= json.loads(good.stdout).keys()
    assert (bad.exit_code, [m["offset"] for m in json.loads(bad.stdout)["missing"]]) == (1, [LAKE])
    assert shown.exit_code == 1
    assert f"missing  partition 0, offset {LAKE}, buffer: Kafka has the record" in shown.stdout
    assert "NOT OK" in shown.stdout
