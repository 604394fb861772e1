"""Bytes of records that were quarantined go to an Iceberg table where they are many, all or nothing, each once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from psycopg.types.json import Jsonb
from pyiceberg.table import Table

from harness_pipelines import faults
from harness_pipelines.errors import HarnessError
from harness_pipelines.lakes.iceberg.read.scan import scan
from harness_pipelines.lakes.iceberg.write import quarantine as raw_bytes
from harness_pipelines.lakes.iceberg.write.corrections import written
from harness_pipelines.lakes.iceberg.write.quarantine import RawBytesMissing
from harness_pipelines.ledgers.postgres.acts.drop import drop_table
from harness_pipelines.ledgers.postgres.views.quarantine import set_aside
from harness_pipelines.ports.errors import QuarantineNameTaken
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.refused import HEAD_BYTES
from harness_pipelines.ports.upkeep import BytesMoved
from harness_pipelines.protocol.changes.corrections import BEFORE_ALL, Wanted
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.reading.queries import LakeQuery, LakeStats
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig
from harness_pipelines_tests.contract.test_expire import expire
from harness_pipelines_tests.other_catalog import sql_catalog

SIZE = 400_000
RECORDS = 6  #: more than a megabyte, of which half a megabyte stays: one record
HEADERS = [["trace", "00ff"], ["empty", None]]


@pytest.fixture
def table(real: RealRig) -> TableRow:
    """A table whose quarantine has too much; its records alternate between two partitions."""
    made = real.table(files=True, quarantine_mb=1)
    quarantine(real, made, 0, RECORDS)
    return made


@pytest.fixture
def claim(real: RealRig, table: TableRow) -> Claim:
    return real.claim(table, Stage.EXPIRE)


@pytest.fixture(autouse=True)
def _disarmed() -> Any:
    yield
    faults.disarm()


def quarantine(real: RealRig, table: TableRow, first: int, count: int) -> None:
    for number in range(first, first + count):
        real.ask(
            "INSERT INTO harness.quarantine (table_id, partition, "
            '"offset", reason, detail, key, value, headers, kafka_ms)'
            " VALUES (%s, %s, %s, 'malformed', %s, %s, %s, %s, %s)",
            [table.table_id, number % 2, number, f"no {number}", value(number)[:9] if number else None, value(number),
             Jsonb(HEADERS), 1_700_000_000_000 + number if number else -1],
        )  # fmt: skip


def value(number: int) -> bytes:
    return bytes([number, 0xFF]) + bytes(SIZE)


def records(real: RealRig, table: TableRow) -> list[Any]:
    return set_aside(real.readers, table, Wanted(), limit=100)


def moved(real: RealRig, table: TableRow) -> list[int]:
    return sorted(one["offset"] for one in records(real, table) if one["in_lake"])


def pointers(real: RealRig, table: TableRow) -> list[str]:
    """What the catalog names under the quarantine's name."""
    where = "WHERE table_namespace = %s AND table_name = %s"
    key = [table.spec.namespace, table.quarantine]
    return [row["metadata_location"] for row in real.ask(f"SELECT * FROM public.iceberg_tables {where}", key)]


def by_name(real: RealRig, table: TableRow) -> Table:
    """The Iceberg table as PyIceberg finds it in the catalog."""
    catalog = sql_catalog(real.catalog.name, dsn=real.dsn, warehouse=real.catalog.properties["warehouse"])
    with closing(catalog):
        return catalog.load_table((table.spec.namespace, table.quarantine))


def in_the_lake(real: RealRig, table: TableRow) -> list[dict[str, Any]]:
    """The rows of the Iceberg table as PyIceberg reads them by its name in the catalog."""
    found = by_name(real, table).scan().to_arrow()
    return sorted(found.to_pylist(), key=lambda row: row["_kafka_offset"])


def test_the_oldest_bytes_go_to_an_iceberg_table_and_half_of_the_limit_stays(
    real: RealRig, table: TableRow, claim: Claim
):
    before = real.with_bytes(table, records(real, table))
    told = real.raw_bytes.move(table, claim, dry_run=True)
    assert (told.records, moved(real, table)) == (RECORDS - 1, [])

    assert real.raw_bytes.move(table, claim) == told
    assert moved(real, table) == list(range(RECORDS - 1))
    assert real.raw_bytes.move(table, claim) == BytesMoved()
    kept = real.ask(
        'SELECT value IS NULL AND in_lake AS gone FROM harness.quarantine WHERE table_id = %s ORDER BY "offset"',
        [table.table_id],
    )
    assert [one["gone"] for one in kept] == [True] * (RECORDS - 1) + [False]
    for was, now in zip(before, real.with_bytes(table, records(real, table)), strict=True):
        assert {**now, "in_lake": False, "kept_bytes": 0} == {
            **was,
            "kept_bytes": 0,
            "value_begins": now["value_begins"],
        }

    first, second, *_ = in_the_lake(real, table)
    assert (first["key"], first["_kafka_timestamp"], first["schema_id"]) == (None, None, None)
    assert second["_kafka_timestamp"] == datetime.fromtimestamp(1_700_000_000.001, UTC)
    assert (second["_kafka_partition"], second["reason"], second["detail"]) == (1, "malformed", "no 1")
    assert (second["key"], second["value"]) == (value(1)[:9], value(1))
    assert second["headers"] == [{"key": "trace", "value": b"\x00\xff"}, {"key": "empty", "value": None}]


def test_batches_are_bounded_and_what_is_read_of_them_is_what_can_hold_it(
    real: RealRig, table: TableRow, claim: Claim, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(raw_bytes, "BATCH_RECORDS", 2)
    monkeypatch.setattr(raw_bytes, "SNAPSHOTS", 2)
    assert real.raw_bytes.move(table, claim).records == RECORDS - 1
    view = by_name(real, table)
    assert len(list(view.scan().plan_files())) == 3
    assert len(view.metadata.snapshots) == 2

    seen: list[LakeStats] = []

    def counted(metadata: str, query: LakeQuery, stats: LakeStats) -> Iterator[pa.Table]:
        seen.append(stats)
        return scan(metadata, query, stats)

    monkeypatch.setattr(raw_bytes, "scan", counted)
    assert [at for at, _ in raw_bytes.read(real.readers, table, [(1, 3)])] == [(1, 3)]
    assert (seen[0].files, seen[0].files_opened) == (3, 1)


@pytest.mark.parametrize(
    ("point", "after_it"),
    [("expire.quarantine_in_transaction", []), ("expire.quarantine_moved", list(range(RECORDS - 1)))],
)
def test_a_mover_that_dies_has_moved_all_or_nothing_and_the_next_run_moves_what_is_left(
    real: RealRig, table: TableRow, point: str, after_it: list[int]
):
    def die() -> None:
        raise faults.FaultInjected

    before = real.with_bytes(table, records(real, table))
    faults.arm(point, die)
    with pytest.raises(faults.FaultInjected):
        expire(real, table)
    assert moved(real, table) == after_it

    expire(real, table)
    assert moved(real, table) == [row["_kafka_offset"] for row in in_the_lake(real, table)] == list(range(RECORDS - 1))
    assert [one["value"] for one in real.with_bytes(table, records(real, table))] == [one["value"] for one in before]


def test_files_of_a_mover_that_died_are_removed_like_any_that_nothing_reaches(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    def die() -> None:
        raise faults.FaultInjected

    faults.arm("expire.quarantine_in_transaction", die)
    with pytest.raises(faults.FaultInjected):
        expire(real, table)
    expire(real, table)
    monkeypatch.setattr(
        "harness_pipelines.ledgers.postgres.retention.condemned_before", lambda **_: datetime.max.replace(tzinfo=UTC)
    )

    loose = {path.rsplit(".", 1)[-1] for path in expire(real, table).condemned if table.quarantine in path}
    assert loose >= {"parquet", "avro", "json"}
    real.ask("UPDATE harness.condemned_files SET since = since - interval '1 day'")
    assert {p for p in expire(real, table).deleted if table.quarantine in p}
    assert len(in_the_lake(real, table)) == RECORDS - 1, "and nothing that is needed"
    quarantine(real, table, RECORDS, 3)
    assert expire(real, table).quarantined.records == 3


def test_after_a_restored_ledger_was_brought_up_to_the_lake_no_file_is_an_orphan(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    expire(real, table)
    old = real.database.rows("quarantine/place", {"table_id": table.table_id})[0]["metadata"]
    quarantine(real, table, RECORDS, 3)
    expire(real, table)
    real.ask("UPDATE harness.tables SET quarantine_metadata = %s WHERE table_id = %s", [old, table.table_id])
    real.database.run("quarantine/keep_files", {"table_id": table.table_id})
    monkeypatch.setattr(
        "harness_pipelines.ledgers.postgres.retention.condemned_before", lambda **_: datetime.max.replace(tzinfo=UTC)
    )
    quarantine(real, table, RECORDS + 3, 3)

    done = expire(real, table)
    assert [path for path in done.condemned if table.quarantine in path] == []
    assert done.quarantined.records == 3
    assert real.with_bytes(table, records(real, table)[:1])[0]["value"] == value(0)


def test_a_holder_that_slept_through_a_takeover_moves_nothing(real: RealRig, table: TableRow):
    asleep, awake = real.taken_over(table, Stage.EXPIRE)

    with pytest.raises(HarnessError, match="epoch 1.*epoch 2"):
        real.raw_bytes.move(table, asleep)
    assert moved(real, table) == []
    assert real.raw_bytes.move(table, awake).records == RECORDS - 1


def test_a_record_that_is_settled_meanwhile_is_moved_all_the_same(
    real: RealRig, table: TableRow, claim: Claim, monkeypatch: pytest.MonkeyPatch
):
    def settled(*of: Any) -> Any:
        real.ask("UPDATE harness.quarantine SET state = 'dropped' WHERE table_id = %s", [table.table_id])
        return written(*of)

    monkeypatch.setattr(raw_bytes, "written", settled)
    real.raw_bytes.move(table, claim)
    assert {(one["state"], one["in_lake"]) for one in records(real, table)} == {("dropped", True), ("dropped", False)}


def test_a_table_that_another_engine_dropped_from_the_catalog_is_put_back(real: RealRig, table: TableRow, claim: Claim):
    real.raw_bytes.move(table, claim)
    key = [table.spec.namespace, table.quarantine]
    real.ask("DELETE FROM public.iceberg_tables WHERE table_namespace = %s AND table_name = %s", key)
    assert real.with_bytes(table, records(real, table))[0]["value"] == value(0), "the ledger knows where it is"

    quarantine(real, table, RECORDS, 3)
    real.raw_bytes.move(table, claim)
    assert len(in_the_lake(real, table)) == RECORDS - 1 + 3


def test_a_table_of_somebody_else_under_the_name_is_left_alone(real: RealRig, table: TableRow, claim: Claim):
    key = [table.spec.namespace, table.quarantine]
    real.ask(
        "INSERT INTO public.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, "
        "iceberg_type) VALUES ('harness', %s, %s, 'file:///theirs/metadata/1.json', 'TABLE')",
        key,
    )
    with pytest.raises(QuarantineNameTaken, match="theirs"):
        real.raw_bytes.move(table, claim)
    assert moved(real, table) == []
    real.ledger.release(claim)
    assert f"{table.spec.namespace}.{table.quarantine}" not in drop_table(real.database, table, catalog=CATALOG).views
    assert pointers(real, table) == ["file:///theirs/metadata/1.json"]


def test_dropping_the_table_drops_its_quarantine_from_the_catalog(real: RealRig, table: TableRow, claim: Claim):
    real.raw_bytes.move(table, claim)
    real.ledger.release(claim)
    dropped = drop_table(real.database, table, catalog=CATALOG)
    assert f"{table.spec.namespace}.{table.quarantine}" in dropped.views
    assert pointers(real, table) == []


def test_a_record_of_hundreds_of_megabytes_from_before_heads_were_kept_is_listed_shown_and_given_up(
    real: RealRig, table: TableRow, claim: Claim
):
    """As text its bytes are more than Postgres sends in one message."""
    real.ask(
        'INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, value, recorded_at) '
        "VALUES (%s, 0, 100, 'too_large', 'large', convert_to(repeat('x', 600 * 1024 * 1024), 'UTF8'), '2020-01-01')",
        [table.table_id],
    )
    [large] = set_aside(real.readers, table, Wanted(partition=0, offset=100), limit=2)
    assert (large["offset"], large["value_bytes"], large["whole"]) == (100, 600 * 2**20, False)
    [told] = real.with_bytes(table, [large])
    assert told["value"] == b"x" * HEAD_BYTES

    moved_now = real.raw_bytes.move(table, claim)
    assert (moved_now.records, moved_now.stay) == (RECORDS - 1, ("0:100",)), "it holds up no other one"
    corrections = real.corrections(table)
    [held] = corrections.held(Wanted(offset=100, partition=0), after=BEFORE_ALL, limit=9)
    assert (held.whole, len(held.record.value or b"")) == (False, HEAD_BYTES)
    assert corrections.held_at(Wanted(offset=100, partition=0), after=BEFORE_ALL, limit=9) == [(0, 100)]
    assert corrections.drop([(0, 100)], by="test") == 1


def test_bytes_that_are_not_where_the_ledger_says_are_told_by_name(real: RealRig, table: TableRow, claim: Claim):
    real.raw_bytes.move(table, claim)
    real.ask("UPDATE harness.quarantine SET in_lake = true WHERE table_id = %s", [table.table_id])
    with pytest.raises(RawBytesMissing, match="1 quarantined records.*partition 1, offset 5"):
        real.with_bytes(table, records(real, table))
