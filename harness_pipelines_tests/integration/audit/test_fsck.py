"""fsck against real services: sound tables pass, also at work; every planted corruption is named by its invariant."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog

from harness_pipelines.audit.fsck import RULES, Report
from harness_pipelines.audit.fsck import fsck as check
from harness_pipelines.cli.main import cli
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.services import Endpoints
from harness_pipelines.stages import worker as working
from harness_pipelines.stages.expire import expire_once
from harness_pipelines.stages.revert import revert_table
from harness_pipelines.stages.worker import Worker, WorkerOptions
from harness_pipelines.stores.catalog import MetadataMissing, _sqlalchemy_url
from harness_pipelines_tests.integration.audit.conftest import ONLY_INGEST, Rig, make, record, records
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import running

ROUND = 20  #: records per partition and move; the third of each is refused
MOVES = 3
WAITING = 10  #: records per partition that only the buffer has
POSITIONS = ("lake_positions", "ingest_positions")
TABLES = ("tables", "schemas", *POSITIONS, "versions", "moves", "claims", "segments", "quarantine", "outbox")


@pytest.fixture(scope="module")
def sound(endpoints: Endpoints) -> Iterator[Rig]:
    """Three moves in the lake, rows that only the buffer has, records in quarantine. Tests that damage it repair it."""
    rig = make(endpoints, partitions=2)
    try:
        for number in range(MOVES + 1):
            for partition in range(2):
                count = ROUND if number < MOVES else WAITING
                rig.kafka.produce(rig.topic, partition, records(number * ROUND, count))
            rig.work(frozenset(Stage) if number < MOVES else ONLY_INGEST)
        yield rig
    finally:
        rig.kafka.close()
        rig.harness.close()


def broken(rig: Rig) -> dict[str, list[str]]:
    """{invariant: details} of what fsck reports for the table."""
    report = check(rig.harness.stores, [rig.table.name])
    found: dict[str, list[str]] = {}
    for finding in report.broken:
        assert finding.table == rig.table.name
        found.setdefault(finding.invariant, []).append(finding.detail)
    return found


@contextmanager
def restored(rig: Rig) -> Iterator[None]:
    """Put the ledger's rows of the table back at the end, whatever was done to them."""
    table_id, mark = rig.table.row.table_id, f"kept_{uuid.uuid4().hex[:8]}"
    for name in TABLES:
        rig.sql(f"CREATE TABLE public.{mark}_{name} AS SELECT * FROM harness.{name} WHERE table_id = {table_id}")
    try:
        yield
    finally:
        with psycopg.connect(rig.dsn) as connection:
            connection.execute("SET LOCAL session_replication_role = replica")  # foreign keys look away meanwhile
            for name in TABLES:
                connection.execute(f"DELETE FROM harness.{name} WHERE table_id = {table_id}")
                connection.execute(
                    f"INSERT INTO harness.{name} OVERRIDING SYSTEM VALUE SELECT * FROM public.{mark}_{name}"
                )
                connection.execute(f"DROP TABLE public.{mark}_{name}")


@contextmanager
def moved_away(*paths: str) -> Iterator[None]:
    """Files are not there for the length of the block."""
    for path in paths:
        shutil.move(local(path), f"{local(path)}.away")
    try:
        yield
    finally:
        for path in paths:
            shutil.move(f"{local(path)}.away", local(path))


def local(path: str) -> Path:
    return Path(urlsplit(path).path)


def metadata_of(rig: Rig, version: int) -> str:
    return next(v.stream.metadata for v in rig.table.versions() if v.version == version)


def files_of(rig: Rig, version: int) -> list[str]:
    view = rig.harness.stores.lake.load(rig.table.row, metadata_of(rig, version))
    return [task.file.file_path for task in view.scan().plan_files()]


# -- sound tables -------------------------------------------------------------------------------------------


def test_a_sound_table_passes_every_rule(sound: Rig):
    report = check(sound.harness.stores, [sound.table.name])

    assert report.ok, report.to_json()
    assert report.unchecked == []
    assert {c.invariant for c in report.checked} == {r.invariant for r in RULES}
    assert [f.invariant for f in report.hints] == []


def test_fsck_leaves_no_trace(sound: Rig):
    def rows() -> list[object]:
        key = f"table_id = {sound.table.row.table_id}"
        return [sound.sql(f"SELECT * FROM harness.{name} WHERE {key} ORDER BY 1, 2") for name in (*TABLES, "leases")]

    before = rows()
    check(sound.harness.stores, [sound.table.name])

    assert rows() == before


def test_a_table_stays_sound_while_files_and_segments_expire(endpoints: Endpoints):
    rig = make(endpoints, partitions=1, retention={"versions": "1ms", "snapshots": 1, "grace": "1ms"})
    stores = rig.harness.stores
    try:
        for number in range(3):
            rig.kafka.produce(rig.topic, 0, records(number * ROUND, ROUND))
            rig.work(frozenset({Stage.INGEST, Stage.TIER}))
            stores.segments.rotate(rig.table.row)
        first = local(metadata_of(rig, 1))
        claim = stores.ledger.claim(
            rig.table.row, Stage.EXPIRE, shard=0, holder=str(uuid.uuid4()), lease=timedelta(minutes=1)
        )
        assert claim is not None

        def gone() -> bool:
            expire_once(stores, rig.table.row, claim)
            assert broken(rig) == {}
            return not first.exists()

        wait_until(gone, "the first version's metadata file is gone")
        assert stores.upkeep.drop_retired(rig.table.row, retired_for=timedelta(0))

        assert broken(rig) == {}
        assert rig.table.read().num_rows == 3 * (ROUND - 1)
    finally:
        rig.kafka.close()
        rig.harness.close()


def test_a_table_that_was_reverted_and_moved_on_is_sound(endpoints: Endpoints):
    rig = make(endpoints, partitions=2)
    try:
        for number in range(2):
            rig.kafka.produce(rig.topic, number, records(number * ROUND, ROUND))
            rig.work(frozenset({Stage.INGEST, Stage.TIER}))
        revert_table(rig.harness.stores, rig.table.row, to=2)
        assert broken(rig) == {}

        rig.kafka.produce(rig.topic, 1, records(2 * ROUND, ROUND))
        rig.work(frozenset({Stage.INGEST, Stage.TIER}))
        revert_table(rig.harness.stores, rig.table.row, to=None)

        assert broken(rig) == {}
        assert rig.table.read().num_rows == 3 * (ROUND - 1)
    finally:
        rig.kafka.close()
        rig.harness.close()


def test_a_table_without_buffer_is_sound(endpoints: Endpoints):
    rig = make(endpoints, partitions=2, buffer="none")
    try:
        for number in range(2):
            rig.kafka.produce(rig.topic, number, records(number * ROUND, ROUND))
            rig.work(frozenset({Stage.TIER}))
        rig.kafka.produce(rig.topic, 0, [record(0)])

        assert broken(rig) == {}
    finally:
        rig.kafka.close()
        rig.harness.close()


def test_a_table_at_work_is_sound_at_every_look(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(working, "EXPIRE_EVERY_S", 0.1)
    monkeypatch.setattr(working, "SEGMENT_AGE_S_MAX", 0.5)
    rig = make(endpoints, partitions=2, tier={"max_age": "100ms"}, retention={"versions": "1ms", "grace": "1ms"})
    looks = 0

    def moved() -> bool:
        nonlocal looks
        looks += 1
        rig.kafka.produce(rig.topic, looks % 2, records(looks * ROUND, ROUND))
        assert broken(rig) == {}
        return rig.table.versions()[-1].version >= 5

    try:
        with running(Worker(rig.harness.stores, [rig.table.row], WorkerOptions())):
            wait_until(moved, "four moves were made", deadline_s=90)
    finally:
        rig.kafka.close()
        rig.harness.close()
    assert looks > 4


# -- files --------------------------------------------------------------------------------------------------


def test_a_removed_metadata_file_is_named_with_its_version_and_other_versions_are_still_read(sound: Rig):
    gone = metadata_of(sound, 3)
    with moved_away(gone):
        assert broken(sound) == {"S10": [f"metadata file {gone}: there is no such file; version 3 needs it"]}
        assert sound.table.read(at=2).num_rows == 2 * (ROUND - 1)
        assert sound.table.read().num_rows == 2 * (MOVES * (ROUND - 1) + WAITING - 1)


def test_a_removed_data_file_is_named_with_the_versions_that_need_it(sound: Rig):
    [gone] = (
        set(files_of(sound, 3))
        - set(files_of(sound, 2))
        - set(sound.lake_files(1))
        - {f for f in files_of(sound, 3) if "_kafka_partition=1" in f}
    )
    with moved_away(gone):
        assert broken(sound) == {"S10": [f"data file {gone}: there is no such file; version 3-4 needs it"]}


def test_a_cut_off_data_file_is_named_by_its_size(sound: Rig):
    path = sound.lake_files(0)[0]
    whole = local(path).read_bytes()
    local(path).write_bytes(whole[:-7])
    try:
        [detail] = broken(sound)["S10"]
    finally:
        local(path).write_bytes(whole)

    assert f"has {len(whole) - 7:,} bytes, {len(whole):,} were written" in detail


@pytest.mark.parametrize("damage", ["removed", "overwritten"])
def test_a_manifest_that_cannot_be_read_is_named_and_not_counted_as_lost_rows(sound: Rig, damage: str, tmp_path: Path):
    view = sound.harness.stores.lake.load(sound.table.row, metadata_of(sound, 4))
    snapshot = view.metadata.current_snapshot()
    assert snapshot is not None
    path = snapshot.manifest_list
    kept = shutil.copy(local(path), tmp_path)
    forget_what_was_read()
    try:
        local(path).unlink()
        if damage == "overwritten":
            local(path).write_bytes(b"Obj\x01 no manifest list")
        found = broken(sound)
    finally:
        shutil.copy(kept, local(path))
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
    from harness_pipelines.stores import lake_look

    for cache in (lake_look._metadata, lake_look._lists, lake_look._files):
        cache._known.clear()


def test_a_foreign_append_is_named_with_its_snapshot_and_rows(sound: Rig):
    key = (sound.table.spec.namespace, sound.table.row.stream_view)
    where = "catalog_name = %s AND table_namespace = %s AND table_name = %s"
    catalog_name = sound.harness.settings.catalog_name
    [(before,)] = sound.sql(f"SELECT metadata_location FROM iceberg_tables WHERE {where}", catalog_name, *key)
    foreign = SqlCatalog(catalog_name, uri=_sqlalchemy_url(sound.dsn), warehouse=sound.harness.stores.warehouse)
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
        sound.sql(f'DELETE FROM harness.quarantine WHERE {_of(sound)} AND partition = 0 AND "offset" = 2')
        report = check(sound.harness.stores, [sound.table.name])

    assert report.ok
    [hint] = report.hints
    assert (hint.invariant, "harness audit" in hint.detail) == ("S31", True)
    assert f"partition 0: [0, {MOVES * ROUND})" in hint.detail


# -- the ledger ---------------------------------------------------------------------------------------------

Planted = Callable[[Rig], str]


def _of(rig: Rig) -> str:
    return f"table_id = {rig.table.row.table_id}"


def _move(rig: Rig, version: int) -> str:
    return f"move_id = (SELECT move_id FROM harness.versions WHERE {_of(rig)} AND version = {version})"


LEDGER_FAULTS: dict[str, tuple[Planted, dict[str, str]]] = {
    "a version's row is deleted": (
        lambda rig: f"DELETE FROM harness.versions WHERE {_of(rig)} AND version = 3",
        {"S3": "no row for 3; the head is 4", "S9": "is committed, but no version has it"},
    ),
    "the head's row is deleted": (
        lambda rig: f"DELETE FROM harness.versions WHERE {_of(rig)} AND version = 4",
        {
            "S3": "version 3 published 0 and 40",
            "S7": "version 3 published",
            "S9": "no version has it",
            "S31": "its files in the head hold 0",
        },
    ),
    "a version's bounds are edited": (
        lambda rig: (
            f"UPDATE harness.versions SET bounds = jsonb_set(bounds, '{{0,stream_hi}}', '7') "
            f"WHERE {_of(rig)} AND version = 3"
        ),
        {
            "S3": "version 3, partition 0: stream_hi falls from 20 to 7",
            "S9": "version 3 moves stream_hi by partition 0 [20, 7), partition 1 [20, 40), its move",
        },
    ),
    "a version's bounds are out of order": (
        lambda rig: (
            f"UPDATE harness.versions SET bounds = jsonb_set(bounds, '{{0,buffer_hi}}', '1') "
            f"WHERE {_of(rig)} AND version = 4"
        ),
        {"S3": "version 4 says start 0, batch_hi 0, stream_hi 60, buffer_hi 1"},
    ),
    "the lake's position is lowered": (
        lambda rig: f"UPDATE harness.lake_positions SET stream_hi = 50 WHERE {_of(rig)} AND partition = 1",
        {
            "S3": "partition 1: lake_positions has batch_hi 0, stream_hi 50; version 4 published 0 and 60",
            "S6": "partition 1: tier moves end at 60, the position is 50",
            "S13": "it holds 28",
            "S31": "57 rows, 3 in quarantine, 50 offsets: more records than there can be",
            "S37": "holds offset 59 of partition 1, stream_hi is 50",
        },
    ),
    "the lake's position is raised": (
        lambda rig: f"UPDATE harness.lake_positions SET stream_hi = 65 WHERE {_of(rig)} AND partition = 0",
        {
            "S3": "version 4 published 0 and 60",
            "S6": "partition 0: tier moves end at 60, the position is 65",
            "S13": "it holds",
        },
    ),
    "the buffer's position is raised": (
        lambda rig: f"UPDATE harness.ingest_positions SET buffer_hi = 90 WHERE {_of(rig)} AND partition = 0",
        {
            "S6": "partition 0: ingest moves end at 70, the position is 90",
            "S12": "ends at 70, read up to 90: it was truncated",
        },
    ),
    "the buffer's position is lowered": (
        lambda rig: f"UPDATE harness.ingest_positions SET buffer_hi = 65 WHERE {_of(rig)} AND partition = 0",
        {
            "S1": "at offsets 65..69, which ingest has not committed",
            "S6": "partition 0: ingest moves end at 70, the position is 65",
            "S13": "it holds 13",
        },
    ),
    "a move's range is edited": (
        lambda rig: f"UPDATE harness.moves SET hi = jsonb_set(hi, '{{1}}', '33') WHERE {_move(rig, 3)}",
        {
            "S6": "it leaves a gap after move",
            "S9": "version 3 moves stream_hi by partition 0 [20, 40), partition 1 [20, 40), its move",
            "S28": "harness.ranges is '0:20-40,1:20-40' in the snapshot, '0:20-40,1:20-33' in the ledger",
            "S31": "no committed move brought them",
        },
    ),
    "a move's rows are edited": (
        lambda rig: f"UPDATE harness.moves SET rows = rows + 1 WHERE {_move(rig, 3)}",
        {
            "S13": "ingest brought",
            "S28": "added-records is '38' in the snapshot, '39' in the ledger",
            "S31": "brought 39 rows, its files in the head hold 38",
        },
    ),
    "a committed move is opened again": (
        lambda rig: f"UPDATE harness.moves SET state = 'PLANNED' WHERE {_move(rig, 4)}",
        {
            "S6": "tier moves end at 40, the position is 60",
            "S9": "of version 4 is PLANNED",
            "S13": "tier moved 76",
            "S31": "no committed move brought them",
        },
    ),
    "a move's attempt is edited": (
        lambda rig: f"UPDATE harness.moves SET attempt = 5 WHERE {_move(rig, 2)}",
        {"S28": "harness.attempt is '1' in the snapshot, '5' in the ledger"},
    ),
    "a move is marked as undone that was not": (
        lambda rig: f"UPDATE harness.moves SET undone_by = move_id WHERE {_move(rig, 3)}",
        {"S34": "which is no revert"},
    ),
    "one move is named by two versions": (
        lambda rig: (
            f"UPDATE harness.versions SET move_id = (SELECT move_id FROM harness.versions WHERE {_of(rig)} "
            f"AND version = 2) WHERE {_of(rig)} AND version = 3"
        ),
        {"S9": "took effect twice: in version 2 and in 3", "S28": "harness.move is"},
    ),
    "an event of the outbox is deleted": (
        lambda rig: f"DELETE FROM harness.outbox WHERE {_of(rig)} AND seq IN (2, 3)",
        {"S33": "no events 2-3"},
    ),
    "the last event of the outbox is deleted": (
        lambda rig: f"DELETE FROM harness.outbox WHERE {_of(rig)} AND seq = 4",
        {"S33": "the last event is 3, the table counts 4"},
    ),
    "a claim's epoch is set back": (
        lambda rig: f"UPDATE harness.claims SET epoch = 0 WHERE {_of(rig)} AND stage = 'ingest'",
        {"S5": "the claim of ingest, shard 0, is at epoch 0"},
    ),
    "a partition's position is deleted": (
        lambda rig: f"DELETE FROM harness.lake_positions WHERE {_of(rig)} AND partition = 1",
        {"S3": "partition 1 has no row in lake_positions"},
    ),
    "the schema is deleted": (
        lambda rig: f"DELETE FROM harness.schemas WHERE {_of(rig)}",
        {"S21": "schema version 1 is gone"},
    ),
    "a segment is retired with rows that are only there": (
        lambda rig: (
            f"UPDATE harness.segments SET state = 'retired', max_hi = '{{\"0\": 70, \"1\": 70}}', "
            f"retired_at = clock_timestamp() WHERE {_of(rig)}"
        ),
        {"S11": "is retired, ends at {0: 70, 1: 70}, the trim floor is", "S13": "it holds 0"},
    ),
    "a refused record is moved to where nothing was read": (
        lambda rig: f'UPDATE harness.quarantine SET "offset" = 900 WHERE {_of(rig)} AND partition = 0 AND "offset" = 2',
        {"S1": "partition 0, offset 900 is in quarantine, but ingest has not committed it"},
    ),
    "a record is refused that is in the buffer": (
        lambda rig: f'UPDATE harness.quarantine SET "offset" = 65 WHERE {_of(rig)} AND partition = 0 AND "offset" = 62',
        {"S1": "partition 0, offset 65: in the buffer and in quarantine"},
    ),
    "the version's snapshot is edited": (
        lambda rig: f"UPDATE harness.versions SET stream_snapshot = 42 WHERE {_of(rig)} AND version = 3",
        {"S28": "version 3 is snapshot 42, its metadata file has"},
    ),
    "the table's spec is gone": (
        lambda rig: f"UPDATE harness.tables SET spec = '{{}}' WHERE {_of(rig)}",
        {"S10": "cannot be read"},
    ),
}


@pytest.mark.parametrize("fault", LEDGER_FAULTS)
def test_a_row_changed_by_hand_is_named(sound: Rig, fault: str):
    plant, expected = LEDGER_FAULTS[fault]
    with restored(sound):
        sound.sql(plant(sound))
        found = broken(sound)

    assert found.keys() == expected.keys(), found
    for invariant, text in expected.items():
        assert any(text in detail for detail in found[invariant]), found[invariant]


def test_the_repaired_table_is_sound_again(sound: Rig):
    with restored(sound), suppress(MetadataMissing):
        sound.sql(f"DELETE FROM harness.versions WHERE {_of(sound)}")
        assert "the table has no version" in broken(sound)["S3"][0]

    assert broken(sound) == {}


# -- the command --------------------------------------------------------------------------------------------


def test_the_command_prints_the_fixed_json_and_ends_with_1_when_something_is_broken(sound: Rig):
    home = ["--home", str(sound.harness.settings.home)]
    good = CliRunner().invoke(cli, [*home, "fsck", sound.table.name, "--json"])
    with restored(sound):
        sound.sql(f"DELETE FROM harness.outbox WHERE {_of(sound)} AND seq = 2")
        bad = CliRunner().invoke(cli, [*home, "fsck", sound.table.name, "--json"])
        shown = CliRunner().invoke(cli, [*home, "fsck", sound.table.name])

    assert (good.exit_code, json.loads(good.stdout)["ok"], json.loads(good.stdout)["broken"]) == (0, True, [])
    assert {"S3", "S10", "S12"} <= set(json.loads(good.stdout)["checked"])
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["broken"] == [{"invariant": "S33", "table": sound.table.name, "detail": "no event 2"}]
    assert shown.exit_code == 1
    assert "NOT OK" in shown.stdout
    assert "no event 2" in shown.stdout


def test_an_unknown_table_is_refused_by_name(sound: Rig):
    home = ["--home", str(sound.harness.settings.home)]
    result = CliRunner().invoke(cli, [*home, "fsck", "no.such"])

    assert result.exit_code == 1
    assert "no table 'no.such'" in result.output


def test_without_kafka_the_rest_is_checked_and_it_is_said(sound: Rig, monkeypatch: pytest.MonkeyPatch):
    from harness_pipelines.stores.errors import KafkaUnreachable

    def away(_topic: str) -> None:
        raise KafkaUnreachable("nowhere:1", waited_s=1, doing="asking")

    monkeypatch.setattr(sound.harness.stores.log, "describe", away)
    report: Report = check(sound.harness.stores, [sound.table.name])

    assert report.ok
    assert [(c.invariant, "nowhere:1" in str(c.why_not)) for c in report.unchecked] == [("S12", True)]
    assert "S12" not in report.to_json()["checked"]
