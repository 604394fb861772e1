"""fsck names every file and row of the buffer that was removed, cut off, doubled or put there by another writer."""

from __future__ import annotations

import pytest

from harness_pipelines.audit.fsck.run import fsck as check
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.ports.errors import LakeFileMissing
from harness_pipelines_tests.integration.audit.conftest import (
    MOVES,
    ROUND,
    WAITING,
    Rig,
)
from harness_pipelines_tests.integration.audit.damage import (
    broken,
    files_of,
    metadata_of,
    of,
    restored,
)
from harness_pipelines_tests.lake_files import content, moved_away, put, remove
from harness_pipelines_tests.other_catalog import sql_catalog

# -- files --------------------------------------------------------------------------------------------------


def test_a_removed_metadata_file_is_named_with_its_version_and_other_versions_are_still_read(sound: Rig):
    gone = metadata_of(sound, 3)
    with moved_away(gone):
        assert broken(sound) == {"S10": [f"metadata file {gone}: there is no such file; version 3 needs it"]}
        assert sound.table.read(at=2).num_rows == 2 * (ROUND - 1)
        assert sound.table.read().num_rows == 2 * (MOVES * (ROUND - 1) + WAITING - 1)


@pytest.mark.parametrize("full", [False, True])
def test_an_audit_without_the_metadata_file_that_it_judges_says_so_by_name(sound: Rig, full: bool):
    gone = metadata_of(sound, 4)
    KEPT.clear()
    with moved_away(gone), pytest.raises(LakeFileMissing, match=rf"{gone}.*is gone.*harness fsck"):
        audit_table(sound.harness.stores, sound.table.row, full=full)
    KEPT.clear()
    assert audit_table(sound.harness.stores, sound.table.row, full=full).ok


def test_a_removed_data_file_is_named_with_the_versions_that_need_it(sound: Rig):
    [gone] = (
        set(files_of(sound, 3)) - set(files_of(sound, 2)) - {f for f in files_of(sound, 3) if "_kafka_partition=1" in f}
    )
    with moved_away(gone):
        assert broken(sound) == {"S10": [f"data file {gone}: there is no such file; version 3-4 needs it"]}


def test_a_cut_off_data_file_is_named_by_its_size(sound: Rig):
    path = sound.lake_files(0)[0]
    whole = content(path)
    put(path, whole[:-7])
    try:
        [detail] = broken(sound)["S10"]
    finally:
        put(path, whole)

    assert f"has {len(whole) - 7:,} bytes, {len(whole):,} were written" in detail


@pytest.mark.parametrize("damage", ["removed", "overwritten"])
def test_a_manifest_that_cannot_be_read_is_named_and_not_counted_as_lost_rows(sound: Rig, damage: str):
    view = sound.harness.stores.lake.load(sound.table.row, metadata_of(sound, 4))
    snapshot = view.metadata.current_snapshot()
    assert snapshot is not None
    path = snapshot.manifest_list
    kept = content(path)
    forget_what_was_read()
    try:
        remove(path)
        if damage == "overwritten":
            put(path, b"Obj\x01 no manifest list")
        found = broken(sound)
    finally:
        put(path, kept)
        forget_what_was_read()

    assert found.keys() == {"S10"}
    assert f"manifest list {path}" in found["S10"][0]
    assert found["S10"][0].endswith("version 4 needs it")


def test_a_removed_manifest_is_named_with_every_version_that_needs_it(sound: Rig):
    view = sound.harness.stores.lake.load(sound.table.row, metadata_of(sound, 2))
    snapshot = view.metadata.current_snapshot()
    assert snapshot is not None
    [gone] = [m.manifest_path for m in snapshot.manifests(view.io)]
    with moved_away(gone):
        assert broken(sound) == {"S10": [f"manifest {gone}: there is no such file; version 2-4 needs it"]}


def forget_what_was_read() -> None:
    """A file that is damaged in place is seen by a process that has not read it before."""
    KEPT.clear()


def test_a_foreign_append_is_named_with_its_snapshot_and_rows(sound: Rig):
    key = (sound.table.spec.namespace, sound.table.row.tiered_view)
    where = "catalog_name = %s AND table_namespace = %s AND table_name = %s"
    catalog_name = sound.harness.settings.catalog_name
    [(before,)] = sound.sql(f"SELECT metadata_location FROM iceberg_tables WHERE {where}", catalog_name, *key)
    foreign = sql_catalog(catalog_name, dsn=sound.dsn, warehouse=sound.harness.stores.warehouse)
    table = foreign.load_table(key)
    table.append(table.scan(limit=3).to_arrow())
    snapshot = table.current_snapshot()
    assert snapshot is not None
    try:
        found = broken(sound)
    finally:
        sound.sql(f"UPDATE iceberg_tables SET metadata_location = %s WHERE {where}", before, catalog_name, *key)
        foreign.close()

    assert found.keys() == {"S7"}
    assert f"snapshot {snapshot.snapshot_id} (append of 3 rows" in found["S7"][0]


# -- the buffer ---------------------------------------------------------------------------------------------


def test_a_row_put_into_the_buffer_twice_is_named(sound: Rig):
    offset = MOVES * ROUND + 5
    where = f"_kafka_partition = 0 AND _kafka_offset = {offset}"
    segment = sound.segment()
    sound.sql(f"INSERT INTO {segment} SELECT * FROM {segment} WHERE {where}")
    try:
        found = broken(sound)
    finally:
        sound.sql(f"DELETE FROM {segment} WHERE ctid = (SELECT max(ctid) FROM {segment} WHERE {where})")

    assert found["S1"] == [f"partition 0, offset {offset}: 2 rows in the buffer"]
    assert found.keys() == {"S1", "S13", "S31"}


def test_a_row_deleted_from_the_buffer_is_missed_by_count(sound: Rig):
    segment = sound.segment()
    where = f"_kafka_partition = 1 AND _kafka_offset = {MOVES * ROUND + 5}"
    sound.sql(f"CREATE TABLE public.kept_row AS SELECT * FROM {segment} WHERE {where}")
    sound.sql(f"DELETE FROM {segment} WHERE {where}")
    try:
        found = broken(sound)
    finally:
        sound.sql(f"INSERT INTO {segment} SELECT * FROM public.kept_row")
        sound.sql("DROP TABLE public.kept_row")

    waiting = 2 * (WAITING - 1)
    assert found.keys() == {"S13"}
    assert f"so {waiting} are only in the buffer; it holds {waiting - 1}" in found["S13"][0]
    assert f"partition 1 [{MOVES * ROUND}, {MOVES * ROUND + WAITING}) {WAITING - 2} rows" in found["S13"][0]


def test_a_row_above_what_ingest_committed_is_named(sound: Rig):
    segment = sound.segment()
    sound.sql(f"INSERT INTO {segment} (_kafka_partition, _kafka_offset, id) VALUES (1, 5000, 1), (7, 3, 1)")
    try:
        found = broken(sound)
    finally:
        sound.sql(f"DELETE FROM {segment} WHERE _kafka_offset = 5000 OR _kafka_partition = 7")

    assert [d.split(" holds ")[1] for d in found["S1"]] == [
        "1 rows of partition 1 at offsets 5000..5000, which ingest has not committed",
        "1 rows of partition 7 at offsets 3..3, which ingest has not committed",
    ]


def test_a_segment_table_dropped_by_hand_is_named(sound: Rig):
    segment = sound.segment()
    name = segment.partition(".")[2]
    sound.sql(f"ALTER TABLE {segment} RENAME TO away_{name}")
    try:
        found = broken(sound)
    finally:
        sound.sql(f"ALTER TABLE harness_buffer.away_{name} RENAME TO {name}")

    assert found["S10"] == [f"segment {name} is open, but its table is gone"]
    assert found.keys() == {"S10", "S13"}


def test_a_refused_record_that_was_removed_is_a_hint_that_points_to_the_audit(sound: Rig):
    with restored(sound):
        sound.sql(f'DELETE FROM harness.quarantine WHERE {of(sound)} AND partition = 0 AND "offset" = 2')
        report = check(sound.harness.stores, [sound.table.name])

    assert report.ok
    [hint] = report.hints
    assert (hint.invariant, "harness audit" in hint.detail) == ("S31", True)
    assert f"partition 0: [0, {MOVES * ROUND})" in hint.detail
