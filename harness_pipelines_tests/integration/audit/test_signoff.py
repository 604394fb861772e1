"""What an audit signed off is not read again, and every fault planted in it afterwards is still found."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyiceberg.io.pyarrow import parquet_files_to_data_files

from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.audit.proof.contents import LakeSide
from harness_pipelines.audit.proof.report import Kind, Status, Tier, Witness
from harness_pipelines.cli.main import cli
from harness_pipelines.drivers.postgres import MissingRole
from harness_pipelines.ledgers.postgres.views.audits import SignOffs
from harness_pipelines.ports.errors import LakeFileMissing
from harness_pipelines.spec.locations import local_path
from harness_pipelines_tests.integration.audit.conftest import LAKE, ONLY_INGEST, Rig, records
from harness_pipelines_tests.integration.audit.flips import unnoted
from harness_pipelines_tests.lake_files import content, name_of, parquet, put, remove
from harness_pipelines_tests.lake_files import rewrite as rewrite_file
from harness_pipelines_tests.producer import wait_until


def audited(rig, **options):
    return audit_table(rig.harness.stores, rig.table.row, **options)


def signed(rig) -> None:
    """Let an audit sign off what is in the lake."""
    report = audited(rig)
    assert report.ok, report.to_json()
    assert report.unsigned is None
    if local_path(rig.harness.stores.warehouse) is None:  # which tells whole seconds: what is younger is read again
        wait_until(lambda: audited(rig).files_read == 0, "its files are older than the store's tick")


def faults(report):
    return {kind: [(f.partition, f.offset, f.to) for f in report.of(kind)] for kind in Kind if report.counts[kind]}


def lake(report):
    return [r for r in report.ranges if r.tier is Tier.STREAM]


@pytest.fixture
def tiered(fresh):
    """40 records of one partition in the lake."""
    fresh.kafka.produce(fresh.topic, 0, records(0, 40))
    fresh.work()
    return fresh


@pytest.fixture
def rewrite() -> Iterator[object]:
    """`rewrite(path, change)` puts ``change(its rows)`` in place of a data file; undone at the end."""
    undo: list[tuple[str, bytes]] = []

    def replace(path: str, change: object = renamed) -> None:
        undo.append((path, content(path)))
        assert callable(change)
        rewrite_file(path, change(parquet(path)))
        unnoted(path)

    yield replace
    for path, whole_file in undo:
        put(path, whole_file)


def renamed(rows: pa.Table) -> pa.Table:
    """One other name, of the same length."""
    names = rows.column("name").to_pylist()
    names[4] = names[4].replace("n", "N")
    return rows.set_column(rows.schema.get_field_index("name"), rows.schema.field("name"), pa.array(names))


@contextmanager
def foreign_commit(rig: Rig) -> Iterator[Callable[[Callable[[Any], None]], None]]:
    """The stream view as another engine has it; what it committed is the catalog's head while the block lasts."""
    key = (rig.table.spec.namespace, rig.table.row.tiered_view)
    before = rig.harness.stores.tables.pointer(rig.table.row, "stream")
    move = "UPDATE iceberg_tables SET metadata_location = %s WHERE table_namespace = %s AND table_name = %s"

    def commit(change: Callable[[Any], None]) -> None:
        view = rig.harness.stores.lake.load(rig.table.row, before)
        change(view)
        rig.sql(move, view.metadata_location, *key)

    try:
        yield commit
    finally:
        rig.sql(move, before, *key)


# -- what it costs ------------------------------------------------------------------------------------------


def test_a_second_audit_opens_no_data_file_and_says_the_same(whole):
    signed(whole)
    before = audited(whole, full=True)

    with patch.object(LakeSide, "_read", side_effect=AssertionError("a data file was opened")):
        after = audited(whole)

    assert after.ok
    assert (after.files_read, after.bytes_read) == (0, 0)
    assert all(r.signed_off is not None for r in lake(after))
    assert [(r.low, r.high, r.status, r.records, r.rows, r.quarantined, r.found) for r in after.ranges] == [
        (r.low, r.high, r.status, r.records, r.rows, r.quarantined, r.found) for r in before.ranges
    ]


def test_a_full_audit_reads_what_was_signed_off(whole):
    signed(whole)

    report = audited(whole, full=True)

    assert report.ok
    assert report.files_read == 2
    assert {r.again for r in lake(report)} == {"full audit"}


def test_a_later_audit_reads_only_what_was_added(tiered):
    signed(tiered)
    tiered.kafka.produce(tiered.topic, 0, records(40, 20))
    tiered.work()

    daily, next_day = audited(tiered), audited(tiered)

    assert daily.ok
    assert daily.files_read == 1
    assert [(r.low, r.high, r.signed_off is None) for r in lake(daily)] == [(0, 40, False), (40, 60, True)]
    assert next_day.files_read == 0


def test_a_login_that_may_only_read_audits_and_says_that_nothing_was_signed_off(tiered):
    with patch.object(SignOffs, "keep", side_effect=MissingRole("no worker")):
        report = audited(tiered)

    assert (report.ok, report.unsigned) == (True, "no worker")
    assert audited(tiered).files_read == 1


# -- faults planted behind a sign-off -----------------------------------------------------------------------


def test_a_row_changed_in_a_signed_file_is_named(whole, rewrite):
    signed(whole)
    rewrite(whole.lake_files(1)[0])

    report = audited(whole)

    assert faults(report) == {Kind.CHANGED: [(1, 5, None)]}
    assert report.files_read == 1, "the other partition's file stands"


def test_a_fault_that_is_repaired_is_signed_off_again(whole, rewrite):
    signed(whole)
    path = whole.lake_files(0)[0]
    before = content(path)
    rewrite(path)
    assert not audited(whole).ok
    put(path, before)

    again = audited(whole)

    assert again.ok
    assert "was written again" in next(r.again for r in lake(again) if r.partition == 0)
    signed(whole)
    assert audited(whole).files_read == 0


@pytest.mark.folder("a store writes down the time of each write, whatever a writer wants")
def test_bytes_replaced_with_the_same_size_and_time_are_found_by_a_full_audit(tiered):
    signed(tiered)
    [file_at] = tiered.lake_files(0)
    path = local_path(file_at)
    assert path is not None
    was = os.stat(path)
    unnoted(path)
    smaller = pq.read_table(path, partitioning=None)
    pq.write_table(renamed(smaller), path, compression="zstd", compression_level=19, store_schema=False)
    written = content(file_at)
    footer = 8 + int.from_bytes(written[-8:-4], "little")
    assert len(written) < was.st_size
    put(file_at, written[:-footer] + b"\0" * (was.st_size - len(written)) + written[-footer:])
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))

    assert audited(tiered).ok, "nothing in the storage tells"
    assert faults(audited(tiered, full=True)) == {Kind.CHANGED: [(0, 5, None)]}


def test_a_signed_file_that_is_gone_ends_the_audit_by_its_name(tiered):
    signed(tiered)
    [path] = tiered.lake_files(0)
    remove(path)

    with pytest.raises(LakeFileMissing, match=name_of(path)):
        audited(tiered)


def test_a_signed_file_appended_twice_is_doubled_row_by_row(whole):
    signed(whole)

    def twice(view):
        file = next(task.file for task in view.scan().plan_files() if task.file.partition[0] == 1)
        with view.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(file)

    with foreign_commit(whole) as commit:
        commit(twice)
        report = audited(whole)

    assert faults(report) == {Kind.DUPLICATED: [(1, o, None) for o in range(LAKE) if o != 2]}
    assert "another writer committed" in report.unsigned
    assert audited(whole).files_read == 0, "the sign-off outlived it"


def test_a_buffer_row_deleted_above_a_signed_range_is_missing(whole, without_row):
    signed(whole)
    without_row(whole.segment(), f"_kafka_partition = 1 AND _kafka_offset = {LAKE + 7}")

    report = audited(whole)

    assert faults(report) == {Kind.MISSING: [(1, LAKE + 7, None)]}
    assert report.files_read == 0


def test_a_quarantined_record_removed_from_a_signed_range_is_missing(whole, without_row):
    signed(whole)
    table_id = whole.table.row.table_id
    without_row("harness.quarantine", f'table_id = {table_id} AND partition = 0 AND "offset" = 2')

    assert faults(audited(whole)) == {Kind.MISSING: [(0, 2, None)]}


# -- when Kafka has dropped the records ---------------------------------------------------------------------


def test_what_kafka_dropped_stands_as_long_as_its_files_do(tiered):
    signed(tiered)
    tiered.kafka.delete_records(tiered.topic, 0, 40)

    [part] = lake(audited(tiered))

    assert (part.status, part.witness, part.rows) == (Status.VERIFIED, Witness.KAFKA, 39)


def test_a_signed_range_doctored_after_kafka_dropped_it_is_found_until_it_is_repaired(tiered, rewrite):
    signed(tiered)
    tiered.kafka.delete_records(tiered.topic, 0, 40)
    rewrite(tiered.lake_files(0)[0])

    first, second = audited(tiered), audited(tiered)

    assert faults(first) == faults(second) == {Kind.CHANGED: [(0, 0, 40)]}
    assert "not what was signed off at" in first.of(Kind.CHANGED)[0].detail


def test_other_files_with_the_same_rows_are_vouched_for_by_the_kept_digest(tiered):
    signed(tiered)
    tiered.kafka.delete_records(tiered.topic, 0, 40)
    tiered.sql("UPDATE harness.moves SET digest = NULL WHERE table_id = %s", tiered.table.row.table_id)

    def rewritten(view):
        [old] = [task.file for task in view.scan().plan_files()]
        path = f"{view.location()}/data/{uuid.uuid4().hex}.parquet"
        rewrite_file(path, parquet(old.file_path))
        with view.transaction() as transaction, transaction.update_snapshot().overwrite() as change:
            change.delete_data_file(old)
            for new in parquet_files_to_data_files(view.io, view.metadata, iter([path])):
                change.append_data_file(new)

    with foreign_commit(tiered) as commit:
        commit(rewritten)
        report = audited(tiered)

    [part] = lake(report)
    assert faults(report) == {}
    assert (part.status, part.witness) == (Status.RETENTION, Witness.AUDIT)
    assert part.again == "other files or quarantined records answer for it"


def test_ingests_digests_vouch_for_what_kafka_dropped_before_any_audit(tiered):
    tiered.kafka.produce(tiered.topic, 0, records(40, 20))
    tiered.work(ONLY_INGEST)
    tiered.kafka.delete_records(tiered.topic, 0, 60)

    first, second = audited(tiered), audited(tiered)

    assert first.ok, first.to_json()
    assert {(r.status, r.witness) for r in first.ranges} == {(Status.RETENTION, Witness.INGEST)}
    assert (lake(second)[0].witness, second.files_read) == (Witness.INGEST, 0)


@pytest.mark.parametrize("tier", ["lake", "buffer"])
def test_rows_doctored_before_any_audit_and_after_kafka_dropped_them_are_not_what_ingest_brought(fresh, rewrite, tier):
    fresh.kafka.produce(fresh.topic, 0, records(0, 40))
    fresh.work() if tier == "lake" else fresh.work(ONLY_INGEST)
    fresh.kafka.delete_records(fresh.topic, 0, 40)
    if tier == "lake":
        rewrite(fresh.lake_files(0)[0])
    else:
        fresh.sql(f"UPDATE {fresh.segment()} SET name = 'other' WHERE _kafka_offset = 7")

    report = audited(fresh)

    [account] = report.to_json()["accounting"]
    assert (account["rows"], account["found"], account["changed"]) == (39, 39, [0])
    assert not report.ok
    assert audited(fresh).files_read == report.files_read, "nothing was signed off"


def test_rows_of_a_worker_that_kept_no_digests_are_counted_only(tiered):
    tiered.sql("UPDATE harness.moves SET digest = NULL WHERE table_id = %s", tiered.table.row.table_id)
    tiered.kafka.delete_records(tiered.topic, 0, 40)

    report = audited(tiered)

    assert report.ok
    assert lake(report)[0].witness is Witness.NOBODY


# -- the command --------------------------------------------------------------------------------------------


def test_the_command_says_what_was_read_and_what_was_signed_off(tiered):
    home = ["--home", str(tiered.harness.settings.home)]
    command = [*home, "audit", tiered.table.name]

    first = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    second = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    shown = CliRunner().invoke(cli, command)
    full = CliRunner().invoke(cli, [*command, "--full"])

    assert {"ok", "missing", "duplicated", "ranges"} <= second.keys()
    assert [(r["read"], r["digest"]) for r in first["ranges"]] == [("now", second["ranges"][0]["digest"])]
    assert [(r["read"], r["signed_off"] is not None) for r in second["ranges"]] == [("signed off", True)]
    assert (first["files_read"], second["files_read"]) == (1, 0)
    assert "signed off" in shown.stdout
    assert "now: full audit" in full.stdout
    assert (shown.exit_code, full.exit_code) == (0, 0)
