"""A keyed table over real files and a real Postgres, whose views are written by hand: what recalls are tested on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import harness_pipelines as hp
from harness_pipelines.app.installation import Stores
from harness_pipelines.lakes.iceberg.read.scan import pinned, staged_file
from harness_pipelines.ports.ledger import Boundary, MoveDraft, Swap
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.overlays import OverlayRequest
from harness_pipelines.protocol.lake.properties import ATTEMPT, MOVE
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig
from harness_pipelines_tests.engines import static

KEYED: dict[str, Any] = {
    "key": ["id"],
    "delete": "tombstone",
    "views": "both",
    "layout": {"columns": ["id"], "sample": 0},
}
Record = tuple[int, int, str | None]  #: offset, id, value; None deletes


class Lake:
    """A keyed table whose views are written by hand: a row of key k is in partition k % 2."""

    def __init__(self, rig: RealRig, folder: Path, **spec: Any) -> None:
        self.rig = rig
        self.row = rig.table(files=True, **{**KEYED, **spec})
        settings = Settings(home=folder, dsn=rig.dsn, warehouse=rig.lake.warehouse, catalog_name=CATALOG)  # type: ignore[attr-defined]
        self.stores = Stores(settings)
        self.table = hp.Harness(self.stores).table(self.row.name)

    @property
    def head(self) -> Version:
        return self.stores.ledger.head(self.row)

    def add(self, view: ViewName, files: list[list[Record]], hi: Mapping[int, int]) -> None:
        """Publish *files* in *view*, which then reaches to *hi*."""
        stage, bound = (Stage.TIER, "stream_hi") if view == "stream" else (Stage.OTREE, "batch_hi")
        claim = self.rig.claim(self.row, stage)
        lo = {p: getattr(self.head.bounds[p], bound) for p in hi}
        draft = MoveDraft(
            stage=stage,
            shard=0,
            lo=lo,
            hi=hi,
            base_version=self.head.version,
            schema_version=1,
            trigger="test",
        )
        move = self.rig.ledger.plan_move(claim, draft)
        self.stores.lake.make_branch(self.row, move, self.head.views[view])
        for records in files:
            for partition in (0, 1) if view == "stream" else (None,):
                mine = [r for r in records if partition in (None, r[1] % 2)]
                if mine:
                    self._append(view, move, mine)
        rows = sum(map(len, files))
        live = self._staged(view, move)

        def build(base: str) -> Swap:
            return self.stores.lake.build_append(self.row, move, live, base=base, keep=50)

        self.rig.ledger.publish(self.row, Boundary(claim=claim, move=move, rows=rows, bytes=1), build)
        self.rig.ledger.release(claim)

    def _append(self, view: ViewName, move: Move, records: list[Record]) -> None:
        current = self.stores.lake.current(self.row, view)
        old, schema = current.metadata_location, current.schema().as_arrow()
        columns = {
            "id": [r[1] for r in records],
            "s": [r[2] for r in records],
            "_kafka_partition": [r[1] % 2 for r in records],
            "_kafka_offset": [r[0] for r in records],
            "_kafka_timestamp": [None] * len(records),
            "_op": ["delete" if r[2] is None else "put" for r in records],
            "_schema_version": [1] * len(records),
        }
        rows = pa.table([pa.array(columns[f.name], f.type) for f in schema], schema=schema)
        summary = {MOVE: str(move.move_id), ATTEMPT: str(move.attempt)}
        current.append(rows, snapshot_properties=summary, branch=move.branch)
        key = {"catalog": CATALOG, "namespace": self.row.spec.namespace, "view": self.row.views[view]}
        where = {**key, "old": old, "new": current.metadata_location}
        assert self.rig.database.run("ledger/move_pointer", where) == 1

    def _staged(self, view: ViewName, move: Move) -> Any:
        from harness_pipelines.ports.lake import Staged

        current = self.stores.lake.current(self.row, view)
        snapshot = current.metadata.snapshot_by_name(move.branch)
        assert snapshot is not None
        base = {f.path for f in pinned(self.head.views[view].metadata).files}
        files = [
            entry.data_file
            for manifest in snapshot.manifests(current.io)
            for entry in manifest.fetch_manifest_entry(current.io, discard_deleted=True)
            if entry.data_file.file_path not in base
        ]
        found = tuple(staged_file(f, low=0, high=2**63 - 1) for f in files)
        return Staged(files=found, rows=sum(f.stored for f in found), bytes=1, written=tuple(files))

    def buffer(self, hi: Mapping[int, int]) -> None:
        """Ingest has come so far; what it wrote is in the lake by now."""
        for partition, high in hi.items():
            self.rig.ask(
                "UPDATE harness.ingest_positions SET buffer_hi = %s WHERE table_id = %s AND partition = %s",
                [high, self.row.table_id, partition],
            )

    def ask(self, act: OverlayRequest = OverlayRequest.RECALL, where: str | None = None) -> int:
        return self.stores.recalls.ask(self.row, act, where=where, by="test").recall_id

    def otree(self) -> Version | None:
        claim = self.rig.claim(self.row, Stage.OTREE)
        try:
            return otree_once(self.stores, self.row, claim, trigger="request")
        finally:
            self.rig.ledger.release(claim)

    def recall(self, where: str) -> Version | None:
        self.ask(where=where)
        return self.otree()

    def read(self, **more: Any) -> dict[int, str | None]:
        found = self.table.read(columns=["id", "s"], **more)
        ids = found.column("id").to_pylist()
        assert len(set(ids)) == len(ids), "a key is there twice"
        return dict(zip(ids, found.column("s").to_pylist(), strict=True))

    def in_lake(self, version: Version | None = None) -> list[int]:
        batch = (version or self.head).batch
        assert batch is not None
        found = static(batch.metadata).scan().to_arrow()
        return sorted(found.column("id").to_pylist())

    def in_postgres(self, version: Version | None = None) -> list[int]:
        found = self.stores.overlays.read(self.row, (version or self.head).overlays)
        return sorted(found.column("id").to_pylist())


def fill(lake: Lake) -> None:
    """Ids 0 .. 19 at the offset of their number, in two files of the batch view, which has all that is there."""
    records: list[Record] = [(i, i, f"row {i}") for i in range(20)]
    lake.buffer({0: 20, 1: 20})
    lake.add("stream", [records], {0: 20, 1: 20})
    lake.add("batch", [records[:10], records[10:]], {0: 20, 1: 20})


ALL = {i: f"row {i}" for i in range(20)}
