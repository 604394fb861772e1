"""A table's books, its files and their metadata, written by hand: what no database lets a test plant."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from harness_pipelines.audit.fsck.rule import Look
from harness_pipelines.ports.files import FileSeen, ManifestSeen, MetadataSeen, SnapshotSeen, Survey
from harness_pipelines.ports.table_state import Books, Buffered, MoveRow, PositionRow, StoredBounds, VersionRow
from harness_pipelines.protocol.versions import View
from harness_pipelines.spec.table import TableSpec

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def move(move_id, low, high, **changes):
    made = MoveRow(
        move_id=move_id,
        stage="tier",
        shard=0,
        lo={0: low},
        hi={0: high},
        base_version=1,
        schema_version=1,
        state="COMMITTED",
        attempt=1,
        epoch=1,
        trigger="rows",
        rows=high - low,
        error=None,
        undone_by=None,
        planned_at=NOW,
    )
    return replace(made, **changes)


def version(number, stream_hi, *, move_id=None, revert_of=None, buffer_hi=30):
    return VersionRow(
        version=number,
        stream=View(metadata=f"file:///t/metadata/{number}.json", snapshot=100 + number),
        schema_version=1,
        bounds={0: StoredBounds(start=0, batch_hi=0, stream_hi=stream_hi, buffer_hi=buffer_hi)},
        revert_of=revert_of,
        move_id=move_id,
        committed_at=NOW,
    )


def position(stream_hi=20, buffer_hi=30, **changes):
    row = PositionRow(
        partition=0,
        lake_start=0,
        stream_hi=stream_hi,
        batch_hi=0,
        trim_floor=0,
        ingest_start=0,
        buffer_hi=buffer_hi,
        schema_version=1,
    )
    return replace(row, **changes)


def claim(epoch=1, *, ahead=timedelta(seconds=30), alive=True):
    return {"holder": "somebody", "epoch": epoch, "lease_until": NOW + ahead, "alive": alive}


def books(**changes) -> Books:
    """A sound table: two tier moves up to 20, ingest up to 30."""
    made = Books(
        table_id=1,
        name="shop.orders",
        namespace="shop",
        views={"stream": "orders__stream"},
        spec=TableSpec(table="shop.orders", columns={"id": "long"}),
        cluster_id="c",
        topic="orders",
        topic_id="t",
        outbox_seq=3,
        retained_from=1,
        stopped=None,
        now=NOW,
        since_tier_s=0.0,
        pointers={"stream": "file:///t/metadata/3.json"},
        positions={0: position()},
        versions=[version(1, 0, buffer_hi=0), version(2, 10, move_id=11), version(3, 20, move_id=12)],
        moves=[move(10, 0, 30, stage="ingest"), move(11, 0, 10), move(12, 10, 20)],
        layouts=[],
        schemas=[1],
        segments=[],
        claims={("tier", 0): claim(), ("ingest", 0): claim()},
        leases=[],
        outbox={"events": 3, "first": 1, "last": 3},
        outbox_gaps=[],
        quarantined={},
        quarantined_outside=[],
        corrected=[],
        unsettled=[],
        buffered=Buffered(waiting={0: 10}, kept={0: 30}, doubled=(), uncommitted=(), refused_twice=()),
    )
    return replace(made, **changes)


def file(path="file:///t/data/a.parquet", **changes):
    seen = FileSeen(path=path, added=3, bytes=5, rows=20, partition=0, low=0, high=19)
    return replace(seen, **changes)


def surveyed(files, *, summary=None, damaged=None, number=3, fields=()) -> Survey:
    """The metadata of version *number* with *files*."""
    snapshot = SnapshotSeen(snapshot=103, parent=102, sequence=3, manifest_list="file:///t/list", summary=summary or {})
    metadata = MetadataSeen(snapshot=103, snapshots={103: snapshot}, properties={}, offset_id=9, fields=fields)
    manifest = ManifestSeen(path="file:///t/m", bytes=9, live=1, rows=15, plain=True, manifest=None)  # nothing reads it
    return Survey(
        metadata={f"file:///t/metadata/{number}.json": metadata},
        lists={"file:///t/list": (manifest,)},
        manifests={"file:///t/m": files},
        damaged=damaged or {},
    )


def details(check, look_books=None, *, survey=None, log=None, trouble=None):
    look = Look(books=look_books or books(), surveys=survey and {"stream": survey}, log=log, log_trouble=trouble)
    return [found.detail for found in check(look)]
