"""What was dropped, cut off or made by somebody else is met by name: a segment, a view, a manifest, a ref."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from psycopg.conninfo import make_conninfo

from harness_pipelines.buffers.postgres.writer import SegmentWriter
from harness_pipelines.drivers.adbc import AdbcSessions
from harness_pipelines.drivers.postgres import WORKER, Database, PostgresReadOnly, SegmentMissing
from harness_pipelines.lakes.iceberg.read.manifests import entries_of, manifests_of
from harness_pipelines.lakes.iceberg.write.publish import Lake
from harness_pipelines.lakes.iceberg.write.repair import Repairs
from harness_pipelines.ports.errors import ManifestDamaged
from harness_pipelines.ports.lake import reachable
from harness_pipelines.ports.ledger import TableRow, TableUnknown
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.locations import normal
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig, agrees, decoded
from harness_pipelines_tests.contract.test_lake import begun, moved

# -- Postgres -----------------------------------------------------------------------------------------------


def test_a_segment_that_was_dropped_is_named_by_who_writes_to_it(real: RealRig):
    table = real.table()
    segment = real.segments.open_segment(table)
    real.ask(f"DROP TABLE harness_buffer.{segment.name}")
    writer = real.writer(table, real.claim(table, Stage.INGEST))

    with pytest.raises(SegmentMissing, match=rf"(?s){table.name}: a segment of the buffer .*{segment.name}"):
        writer.commit(segment, [decoded(table, 0, 0, 5)], confirm=agrees)
    writer.close()
    assert real.segments.positions(table)[0].buffer_hi == 0


def test_a_segment_that_was_dropped_is_named_by_who_gives_it_a_successor(real: RealRig):
    table = real.table()
    segment = real.segments.open_segment(table)
    real.ask(f"DROP TABLE harness_buffer.{segment.name}")

    with pytest.raises(SegmentMissing, match=rf"(?s){table.name}: a segment of the buffer .*{segment.name}"):
        real.segments.rotate(table)


@pytest.fixture
def read_only(ledger_dsn: str) -> str:
    """The address of a server that takes no writes, as after a failover."""
    return make_conninfo(ledger_dsn, options="-c default_transaction_read_only=on")


def test_a_server_that_takes_no_writes_is_waited_for_over_another_connection(real: RealRig, read_only: str):
    table, database = real.table(), Database(read_only)
    try:
        with database.session() as connection:
            first = connection.info.backend_pid
        with pytest.raises(PostgresReadOnly, match="may only be read.*nothing was written, it is tried again"):
            database.run("ledger/stop_table", {"table_id": table.table_id, "stopped": "x", "stage": None})
        with database.session() as connection:
            assert connection.info.backend_pid != first
    finally:
        database.close()


def test_ingest_waits_for_a_server_that_takes_no_writes(real: RealRig, read_only: str):
    table = real.table()
    segment, claim = real.segments.open_segment(table), real.claim(table, Stage.INGEST)
    sessions = AdbcSessions(read_only, role=WORKER)
    writer = SegmentWriter(sessions, table, lambda: claim, run_id=None)
    try:
        with pytest.raises(PostgresReadOnly, match=f"(?s){table.name}: .*nothing was written"):
            writer.commit(segment, [decoded(table, 0, 0, 5)], confirm=agrees)
    finally:
        writer.close()
        sessions.close()


# -- the lake -----------------------------------------------------------------------------------------------


@pytest.fixture
def table(real: RealRig) -> TableRow:
    """[0, 30) in the buffer, [0, 10) in a real view."""
    made = real.table(partitions=1, files=True)
    real.ingest(made, {0: (0, 30)})
    claim = real.claim(made)
    moved(real, made, claim, 0, 10)
    real.ledger.release(claim)
    return made


@pytest.fixture
def lake(real: RealRig) -> Lake:
    return real._lake


def test_a_view_that_another_engine_dropped_is_named(real: RealRig, table: TableRow, lake: Lake):
    real.ask(
        "DELETE FROM public.iceberg_tables WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s",
        [CATALOG, table.spec.namespace, table.tiered_view],
    )
    said = f"{table.name}: the catalog has no view {table.tiered_view}"

    with pytest.raises(TableUnknown, match=said):
        lake.main_snapshot(table)
    with pytest.raises(TableUnknown, match=said):
        lake.drop_branches(table, ["move_1_1"])
    with pytest.raises(TableUnknown, match=said):
        begun(real, table, real.claim(table), {0: 10}, {0: 20})


def test_a_metadata_file_is_made_again_with_the_manifest_list_of_its_own_snapshot(
    real: RealRig, table: TableRow, lake: Lake
):
    first, head = real.ledger.versions(table)
    snapshot = lake.load(table, head.stream.metadata).metadata.current_snapshot()
    assert snapshot is not None
    for other in (snapshot.snapshot_id, first.stream.snapshot):
        real.ask(
            "INSERT INTO harness.file_digests (path, bytes, tail, digest) VALUES (%s, 1, 1, 'd')",
            [normal(snapshot.manifest_list.replace(str(snapshot.snapshot_id), str(other)))],
        )
    pointer = head.stream.metadata

    made = Repairs(lake).build_metadata(
        table, 1, view="stream", head=head, known=[first.stream.metadata], pointer=pointer
    )

    assert real.live(table, made.new.metadata) == real.live(table, pointer)


def local(path: str) -> Path:
    return Path(urlsplit(path).path)


DAMAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "emptied": lambda _: b"",
    "cut off": lambda whole: whole[:-100],
    "overwritten": lambda whole: b"Obj\x01".ljust(len(whole)),
}


@contextmanager
def damaged(path: Path, how: str) -> Iterator[None]:
    """A file is not what was written, for the length of the block."""
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[how](whole))
    try:
        yield
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_manifest_is_named(table: TableRow, lake: Lake, how: str):
    view = lake.current(table, "stream")
    [manifest] = manifests_of(view.metadata.current_snapshot(), view.io)
    assert len(entries_of(manifest, view.io)) == 1
    path = local(manifest.manifest_path)

    with (
        damaged(path, how),
        pytest.raises(ManifestDamaged, match=f"{table.name}: a move: manifest .*{path.name} cannot be understood"),
        reachable(table.name, "a move"),
    ):
        entries_of(manifest, view.io)


@pytest.mark.parametrize("how", ["emptied", "overwritten"])
def test_a_damaged_manifest_list_is_named(table: TableRow, lake: Lake, how: str):
    view = lake.current(table, "stream")
    snapshot = view.metadata.current_snapshot()
    assert snapshot is not None
    path = local(snapshot.manifest_list)

    with (
        damaged(path, how),
        pytest.raises(ManifestDamaged, match=f"manifest list .*{path.name} cannot be understood.*harness fsck"),
    ):
        manifests_of(snapshot, view.io)


def test_refs_that_are_no_attempts_are_left_alone(real: RealRig, table: TableRow, lake: Lake):
    names = {"move_x", "move_2024", "move_7_1_old"}
    for name in names:
        view = lake.current(table, "stream")
        old, snapshot = view.metadata_location, view.metadata.current_snapshot_id
        assert snapshot is not None
        view.manage_snapshots().create_tag(snapshot, name).commit()
        key = {"catalog": CATALOG, "namespace": table.spec.namespace, "view": table.tiered_view}
        assert real.database.run("ledger/move_pointer", {**key, "old": old, "new": view.metadata_location}) == 1
    move = begun(real, table, real.claim(table), {0: 10}, {0: 20})
    real.ask("UPDATE harness.moves SET state = 'ABANDONED' WHERE move_id = %s", [move.move_id])

    dead = real.upkeep.dead_branches(table)  # type: ignore[attr-defined]

    assert dead == [move.branch]
    assert lake.drop_branches(table, dead)
    assert names <= set(lake.current(table, "stream").metadata.refs)
