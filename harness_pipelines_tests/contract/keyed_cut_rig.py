"""A keyed table over real files and a real Postgres, moved by hand as a worker moves it, and its cuts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from harness_pipelines.lakes.iceberg.read.scan import located
from harness_pipelines.ports.decoded import DecodedRange, with_coordinates
from harness_pipelines.ports.lake_writes import Replacement
from harness_pipelines.ports.ledger import Boundary, MoveDraft, Swap
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery, LakeStats
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.contract.cut_rig import CutWorld
from harness_pipelines_tests.contract.recall_rig import KEYED
from harness_pipelines_tests.contract.stores_rig import RealRig, agrees

KEYS = 11  #: of each partition
ALL = (0, 2**62)


def key_at(partition: int, offset: int) -> int:
    return 2 * (offset * 7 % KEYS) + partition


def is_delete(offset: int) -> bool:
    return offset % 5 == 4


class KeyedWorld(CutWorld):
    """A table whose record at each offset is a version of one of a few keys, and each fifth one deletes."""

    def __init__(self, rig: RealRig, folder: Path, **spec: Any) -> None:
        super().__init__(rig, folder, **{**KEYED, **spec})

    @property
    def key(self) -> str:
        return self.row.spec.key[0]

    def _rows(self, partition: int, offsets: list[int]) -> pa.Table:
        values: dict[str, list[Any]] = {c.name: [None] * len(offsets) for c in self.row.spec.columns}
        values[self.key] = [key_at(partition, o) for o in offsets]
        values["s"] = [None if is_delete(o) else f"row {o}" for o in offsets]
        kinds = {c.name: pa.int64() if c.name == self.key else pa.string() for c in self.row.spec.columns}
        columns = {name: pa.array(of, kinds[name]) for name, of in values.items()}
        columns["_op"] = pa.array(["delete" if is_delete(o) else "put" for o in offsets], pa.string())
        return with_coordinates(
            pa.table(columns),
            partition=partition,
            offsets=pa.array(offsets, pa.int64()),
            timestamps_ms=pa.array([1_700_000_000_000] * len(offsets), pa.int64()),
            columns=self.row.spec.columns,
        )

    def _lake_rows(self, partition: int, offsets: list[int]) -> pa.Table:
        rows = self._rows(partition, offsets)
        number = pa.scalar(self.row.schema_version, pa.int32())
        return rows.append_column("_schema_version", pa.repeat(number, rows.num_rows))

    def ingest(self, to: Mapping[int, int]) -> None:
        claim = self.rig.claim(self.row, Stage.INGEST)
        at = {p: position.buffer_hi for p, position in self.stores.segments.positions(self.row).items()}
        found = [
            DecodedRange(
                partition=p,
                low=at[p],
                high=high,
                rows=self._rows(p, list(range(at[p], high))),
                refused=[],
                leader_epoch=None,
            )
            for p, high in to.items()
        ]
        writer = self.rig.writer(self.row, claim)
        writer.commit(self.rig.segments.open_segment(self.row), found, confirm=agrees)
        writer.close()
        self.rig.ledger.release(claim)

    def merge(self, to: Mapping[int, int], *, files: int = 1) -> None:
        """The newest put of each key is added, older ones are hidden where they are."""
        at = {p: self.head.bounds[p].batch_hi for p in to}
        for number in range(1, files + 1):
            self._merge({p: at[p] + (to[p] - at[p]) * number // files for p in to})

    def _merge(self, to: Mapping[int, int]) -> None:
        rig, row, head, lake = self.rig, self.row, self.head, self.stores.lake
        assert head.batch is not None
        claim = rig.claim(row, Stage.OTREE)
        lo = {p: head.bounds[p].batch_hi for p in to}
        draft = MoveDraft(
            stage=Stage.OTREE, shard=0, lo=lo, hi=to, base_version=head.version, schema_version=row.schema_version,
            trigger="test",
        )  # fmt: skip
        move = rig.ledger.plan_move(claim, draft)
        lake.make_branch(row, move, head.batch)
        newest = {(p, key_at(p, o)): o for p in to for o in range(lo[p], to[p])}
        puts = [(p, o) for (p, _), o in newest.items() if not is_delete(o)]
        if puts:
            rows = [self._lake_rows(p, [o]) for p, o in sorted(puts, key=lambda at: (key_at(*at), at))]
            lake.append_to_branch(row, move, pa.concat_tables(rows))
        staged = lake.staged(row, move, rows=len(puts))
        positions = dict(self._places(head.batch.metadata, {key for _, key in newest}))
        hidden = lake.hide(row, head.batch.metadata, positions) if positions else None

        def build(base: str) -> Swap:
            if hidden is None:
                return lake.build_append(row, move, staged, base=base, keep=50)
            change = Replacement(removed={}, added=staged.written, hidden=hidden, same_rows=False)
            return lake.build_change(row, move, change, base=base, keep=50)

        rig.ledger.publish(row, Boundary(claim=claim, move=move, rows=len(puts), bytes=1), build)
        rig.ledger.release(claim)

    def _places(self, metadata: str, keys: set[int]) -> Iterator[tuple[str, Any]]:
        field = next(f["id"] for f in self.row.fields if f["name"] == self.key)
        query = LakeQuery(
            table="t", version=1, ranges=dict.fromkeys(self.head.bounds, ALL),
            columns=[LakeColumn(name=self.key, field_id=field)],
        )  # fmt: skip
        for part in located(metadata, query, LakeStats()):
            found = part.positions[np.isin(part.rows.column(self.key).to_numpy(), list(keys))]
            if len(found):
                yield part.file.path, found

    def evolve(self, changes: ColumnChanges) -> None:
        self.table.evolve(changes)
        self.row = self.table.row

    def revert(self, to: int) -> None:
        revert_table(self.stores, self.row, to=to)

    def recall(self, where: str) -> None:
        """Move rows of the batch view to Postgres, as a worker does."""
        from harness_pipelines.protocol.lake.overlays import OverlayRequest
        from harness_pipelines.stages.otree.otree import otree_once

        self.stores.recalls.ask(self.row, OverlayRequest.RECALL, where=where, by="test")
        claim = self.rig.claim(self.row, Stage.OTREE)
        otree_once(self.stores, self.row, claim, trigger="request")
        self.rig.ledger.release(claim)
