"""Cuts in memory: a book and files of cuts, for tests of what a server does with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.ports.serving.cuts import Cut, CutDraft, CutOvertaken, Newest
from harness_pipelines.protocol.cuts import Chunk, CutBounds, next_sequence, snapshot_id
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.reading.selection import table_columns

NOW = datetime(2026, 1, 2, tzinfo=UTC)
Row = tuple[int, int, Any, Any]  #: partition, offset, values


@dataclass
class Book:
    """`CutBook`; *before_publish* is what others do in between."""

    cuts: list[Cut] = field(default_factory=list)
    now: datetime = NOW
    before_publish: Callable[[], object] = lambda: None

    def newest(self, table: Any) -> Newest:
        no_state: Any = None  # the ledger's is asked for by nothing: what is above the lake is in the log alone
        return Newest(self.cuts[-1] if self.cuts else None, self.now, no_state)

    def is_there(self, table: Any) -> bool:
        return True

    def publish(self, table: Any, draft: CutDraft, *, previous: int | None, lease_id: str, keep: timedelta) -> Cut:
        happens, self.before_publish = self.before_publish, lambda: None
        happens()
        newest = self.cuts[-1] if self.cuts else None
        if previous != (newest.sequence if newest else None):
            raise CutOvertaken("another server was faster")
        assert draft.snapshot_id not in {cut.snapshot_id for cut in self.cuts}, "F2: one id is one cut"
        words = {word: getattr(draft, word) for word in CutDraft.__dataclass_fields__}
        now = self.now
        cut = Cut(**words, table_id=table.table_id, looked_at=now, published_at=now, served_at=now, until=now + keep)
        self.cuts.append(cut)
        return cut

    def serve(self, cut: Cut, *, keep: timedelta) -> None: ...

    def retire(self, cut: Cut) -> None:
        raise AssertionError("no cut is damaged")

    def end(self) -> None:
        """The time of all cuts ends."""
        last = self.cuts[-1]
        gone = replace(last, snapshot_id=0, sequence=last.sequence + 1, chunks=(), parts={}, files=(), metadata="")
        self.cuts = [gone]


@dataclass
class Files:
    """`CutFiles`, with the rows of each chunk; *on_chunk* is called with each one that is written."""

    rows: dict[str, pa.Table] = field(default_factory=dict)
    on_chunk: Callable[[Chunk], None] = lambda chunk: None

    def write_chunk(
        self, table: Any, version: Any, rows: pa.Table, *, ranges: Ranges, maker: str, sequence: int
    ) -> Chunk:
        path = f"chunk {len(self.rows)}"
        rows = rows.sort_by([("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")])
        self.rows[path] = rows
        chunk = Chunk(
            path=path, ranges=dict(ranges), rows=rows.num_rows, bytes=1, sequence=sequence, maker=maker, entry=""
        )
        self.on_chunk(chunk)
        return chunk

    def read_chunk(self, table: Any, plan: ReadPlan, chunk: Chunk) -> pa.Table:
        columns = table_columns(plan)
        return conformed(
            self.rows[chunk.path].select(list(columns)), pa.schema([one.arrow for one in columns.values()])
        )

    def check(self, cut: Cut) -> None:
        assert self.rows.keys() >= {chunk.path for chunk in cut.chunks}

    def write_cut(
        self,
        table: Any,
        version: Any,
        plan: ReadPlan,
        *,
        chunks: Sequence[Chunk],
        previous: CutDraft | None,
        bounds: CutBounds,
        makers: Sequence[str],
        now_ms: int,
    ) -> CutDraft:
        sequence = next_sequence(previous.sequence if previous else None, ())
        return CutDraft(
            snapshot_id=snapshot_id(table.table_id, plan.version, bounds, sequence=sequence, makers=makers),
            sequence=sequence, timestamp_ms=now_ms, version=plan.version, schema_version=1, bounds=bounds,
            metadata="", chunks=tuple(chunks),
        )  # fmt: skip

    def seen(self, cut: Cut) -> Counter[Row]:
        """The rows that an engine finds above the lake."""
        return rows_of(pa.concat_tables([self.rows[chunk.path] for chunk in cut.chunks]))


def rows_of(rows: pa.Table) -> Counter[Row]:
    found = (rows.column(name).to_pylist() for name in ("_kafka_partition", "_kafka_offset", "id", "s"))
    return Counter(zip(*found, strict=True))


def offsets_of(chunks: Sequence[Chunk]) -> Mapping[tuple[int, int], int]:
    return Counter((p, o) for chunk in chunks for p, (low, high) in chunk.ranges.items() for o in range(low, high))
