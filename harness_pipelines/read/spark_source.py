"""What the streaming source ``harness`` reads: the same sequence as `Table.stream`, as far as the table has it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from harness_pipelines.errors import UsageError
from harness_pipelines.protocol.streams import StreamToken
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.read.selection import Selection
    from harness_pipelines.stores.open import Stores
    from harness_pipelines.stores.ports import TableRow

OPTIONS = ("table", "columns", "where", "startingOffsets", "maxOffsetsPerTrigger")


@dataclass(frozen=True)
class OpenTables:
    """Opens tables by *settings* in whatever process it comes to."""

    settings: Settings

    def __call__(self, options: Mapping[str, str]) -> TableReads:
        known = {name.lower() for name in OPTIONS}
        if unknown := sorted(name for name in options if name.lower() not in known):
            raise UsageError(f"the source `harness` has no option {unknown[0]!r}; its options: {', '.join(OPTIONS)}")
        if "table" not in options:
            raise UsageError('the source `harness` needs .option("table", "namespace.name")')
        return TableReads(self.settings, options)


class TableReads:
    """`SourceReads` of one table; what it has opened stays in its process."""

    def __init__(self, settings: Settings, options: Mapping[str, str]) -> None:
        self._settings = settings
        self._table, self._begin = options["table"], options.get("startingOffsets", "earliest")
        self._columns, self._where = options.get("columns"), options.get("where")

    def __setstate__(self, state: dict[str, Any]) -> None:
        _stand_somewhere()
        self.__dict__.update(state)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_stores", "_row")}

    @cached_property
    def _stores(self) -> Stores:
        from harness_pipelines.stores.open import Stores

        return Stores(self._settings)

    @property
    def _selection(self) -> Selection:
        from harness_pipelines.read.selection import Selection

        columns = None if self._columns is None else [name.strip() for name in self._columns.split(",")]
        return Selection(columns=columns, where=self._where)

    @cached_property
    def _row(self) -> TableRow:
        return self._stores.tables.table(self._table)

    def schema(self) -> pa.Schema:
        from harness_pipelines.read.history import log_work
        from harness_pipelines.read.stream import leased_plan
        from harness_pipelines.stores.spark_kafka import spark_types

        with leased_plan(self._stores, self._row) as plan:
            return spark_types(log_work(plan, self._selection).schema)

    def starts(self) -> dict[int, int]:
        return {p.partition: p.bounds.start for p in self._stores.tables.positions(self._row)}

    def begin(self) -> dict[int, int]:
        from harness_pipelines.read.stream_start import stream_plan

        said = self._begin
        if said == "latest":  # of the table: what only Kafka has comes once it is ingested
            return self.reached()
        plan = stream_plan(
            self._stores,
            self._row,
            from_=int(said) if said.isdigit() else said,
            selection=self._selection,
            partitions=None,
            follow=True,
            state_first=False,
        )
        return dict(plan.start.offsets)

    def reached(self) -> dict[int, int]:
        from harness_pipelines.read.stream import answered

        return answered(self._row, {p.partition: p.bounds for p in self._stores.tables.positions(self._row)})

    def rows(self, partition: int, low: int, high: int) -> Iterator[pa.RecordBatch]:
        from harness_pipelines.read.stream import Stream, StreamPlan
        from harness_pipelines.stores.spark_kafka import for_spark

        start = StreamToken(topic_id=self._row.identity.topic_id, offsets={partition: low})
        plan = StreamPlan(
            table=self._row, start=start, selection=self._selection, ends={partition: high}, follows_all=False
        )
        try:
            for batch in Stream(self._stores, plan):
                yield from for_spark(batch.rows).to_batches()
        finally:
            self._stores.close()
            self.__dict__.pop("_stores")  # a task may be followed by another one in its process


def _stand_somewhere() -> None:
    """An executor may have removed the folder that its Python processes stand in, see `stores.spark_python`."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir(os.sep)
