"""The source ``harness`` of Spark SQL, for streams and for batches.

Of a stream an offset is a vector, and a micro-batch is a range of each partition. A batch is one consistent cut. The
classes run in Python processes of Spark's: one beside the driver, which plans, and one per task. What they ask of a
table they ask by `SourceReads`, which is opened there from the options of the query.

Such a process may stand in a folder that Spark has removed (`stores.spark_python` says why), in which PyIceberg cannot
be imported. So this module imports little, and what is sent there beside it are bytes, unpacked where it can stand.
"""

from __future__ import annotations

import os
import pickle
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from harness_pipelines.errors import UsageError
from harness_pipelines.protocol.bounds import OffsetRange, vector_from_json, vector_to_json
from harness_pipelines.protocol.lake.wide import task_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "harness"
MAX_OFFSETS = "maxOffsetsPerTrigger"
_OF_STREAMS = ("startingoffsets", MAX_OFFSETS.lower())


class SourceColumns(Protocol):
    """The columns that a query is planned with, to be pickled: it reads these, whatever became of them since."""

    @property
    def schema(self) -> pa.Schema: ...

    def named(self, names: Sequence[str]) -> SourceColumns:
        """Only *names*, in this order."""
        ...


class SourceReads(Protocol):
    """A table as the source reads it."""

    def columns(self) -> SourceColumns:
        """As they are now."""
        ...

    def starts(self) -> dict[int, int]:
        """Where the log of each partition begins."""
        ...

    def begin(self) -> dict[int, int]:
        """Where a new query begins."""
        ...

    def reached(self) -> dict[int, int]:
        """Below which offsets the table has everything, now."""
        ...

    def rows(self, partition: int, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """The records ``[low, high)`` of one partition, in order, with the columns of the query."""
        ...

    def pieces(self) -> Sequence[Any]:
        """The rows of one cut in parts to be pickled."""
        ...

    def rows_of(self, piece: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a piece, with the columns of the query."""
        ...


class OpenReads(Protocol):
    @abstractmethod
    def __call__(self, options: Mapping[str, str], columns: Any = None) -> SourceReads:
        """*columns*: those that the query was planned with."""
        ...


class Lazy:
    """`SourceReads` that each process opens for itself when it first asks."""

    def __init__(self, packed: bytes, options: Mapping[str, str], columns: bytes | None = None) -> None:
        self._packed, self._options = packed, options  # whose names Spark lets be written in any case
        self._columns = columns
        self._opened: SourceReads | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def reads(self) -> SourceReads:
        if self._opened is None:
            open_reads: OpenReads = unpacked(self._packed)
            columns = None if self._columns is None else unpacked(self._columns)
            self._opened = open_reads(self._options, columns)
        return self._opened


def unpacked(packed: bytes) -> Any:
    """What was pickled, its modules imported from where the process can stand."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir(os.sep)
    return pickle.loads(packed)


def register(spark: SparkSession, open_reads: OpenReads) -> None:
    """Let *spark* know the source; *open_reads* goes to its processes, with what it holds."""
    from harness_pipelines.engines.spark.executors.tasks import ship

    ship(spark)
    spark.dataSource.register(source_class(open_reads))


def source_class(open_reads: OpenReads) -> type[TableSource]:
    """The source of tables that *open_reads* opens."""
    return type("HarnessSource", (TableSource,), {"packed": pickle.dumps(open_reads)})


class TableSource(DataSource):
    """What ``spark.read.format("harness")`` makes, and `readStream`; `source_class` says what it opens tables by."""

    packed: ClassVar[bytes]
    _columns: bytes | None = None  #: that Spark was shown; it keeps the source with them for the query

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        columns = self._lazy().reads.columns()
        self._columns = pickle.dumps(columns)
        return _struct(columns.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        if wrong := next((name for name in self.options if name.lower() in _OF_STREAMS), None):
            raise UsageError(f"{wrong} is an option of spark.readStream; a batch takes `at`")
        return TableReader(self._planned(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if "at" in self.options:
            raise UsageError("`at` is an option of spark.read; a stream takes `startingOffsets`")
        limit = self.options.get(MAX_OFFSETS)
        if limit is not None and (not limit.isdigit() or int(limit) == 0):
            raise UsageError(f"{MAX_OFFSETS} is {limit!r}; write how many offsets of all partitions a batch takes")
        return TableStreamReader(self._planned(schema), max_offsets=None if limit is None else int(limit))

    def _lazy(self) -> Lazy:
        return Lazy(type(self).packed, self.options)

    def _planned(self, schema: StructType) -> Lazy:
        """With the columns of *schema*: what Spark was shown, or of a schema that the user gave those it names."""
        lazy = self._lazy()
        columns: SourceColumns = lazy.reads.columns() if self._columns is None else unpacked(self._columns)
        kinds = {field.name: field.dataType.simpleString() for field in _struct(columns.schema)}
        for field in schema:
            if (kind := kinds.get(field.name)) != field.dataType.simpleString():
                found = f"column {field.name!r} is {kind}" if kind else f"there is no column {field.name!r}"
                raise UsageError(
                    f"{self.options['table']}: the schema that was given asks for {field.name!r} as "
                    f"{field.dataType.simpleString()}; {found}. The columns: "
                    f"{', '.join(f'{name} {kind}' for name, kind in kinds.items())}"
                )
        return Lazy(type(self).packed, self.options, pickle.dumps(columns.named(schema.fieldNames())))


def _struct(schema: pa.Schema) -> StructType:
    from harness_pipelines.engines.spark.kafka import spark_struct

    return spark_struct(schema)


class TableReader(DataSourceReader):
    """Reads one cut: that of the first query of its frame or view, for Spark keeps what it planned for that one.

    It takes no filters from Spark, which up to 4.2 keeps those too: the rows that one query leaves out would be missing
    in a later one of the same view that has no filter.
    """

    def __init__(self, lazy: Lazy) -> None:
        self._lazy = lazy

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(pickle.dumps(piece)) for piece in self._lazy.reads.pieces()]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        if partition is None:  # there were none: Spark has one task all the same
            return iter(())
        return self._lazy.reads.rows_of(unpacked(partition.value))


class OffsetsOfOne(InputPartition):
    """A range of one partition: the work of one task."""

    def __init__(self, partition: int, low: int, high: int) -> None:
        super().__init__((partition, low, high))
        self.partition, self.low, self.high = partition, low, high


class TableStreamReader(DataSourceStreamReader):
    """Plans micro-batches; a batch that is done again has the same records, for offsets never change theirs."""

    def __init__(self, lazy: Lazy, *, max_offsets: int | None) -> None:
        self._lazy, self._max_offsets = lazy, max_offsets
        self._at: dict[int, int] | None = None  #: the last report

    def initialOffset(self) -> dict[str, int]:
        return vector_to_json(self._lazy.reads.begin())

    def latestOffset(self) -> dict[str, int]:
        """Where the next batch ends. The first one of a run is not limited: where it begins Spark does not tell yet."""
        reached = self._lazy.reads.reached()
        if self._at is not None and self._max_offsets is not None:
            reached = _limited({**self._lazy.reads.starts(), **self._at}, reached, self._max_offsets)
        self._at = reached
        return vector_to_json(reached)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        reads = self._lazy.reads  # first: it lets the process stand where the import works

        highs = vector_from_json(end)
        lows = {**reads.starts(), **vector_from_json(start)}  # a partition that joined begins at its start
        ranges = [OffsetRange(partition=p, low=lows[p], high=high) for p, high in highs.items() if high > lows[p]]
        return [OffsetsOfOne(r.partition, r.low, r.high) for one in ranges for r in task_ranges(one)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, OffsetsOfOne):
            raise PySparkException(f"{partition} is no range of the source {NAME}")
        return self._lazy.reads.rows(partition.partition, partition.low, partition.high)


def _limited(at: Mapping[int, int], reached: Mapping[int, int], offsets: int) -> dict[int, int]:
    """*reached* cut to some *offsets* above *at*, of each partition in proportion to what it has."""
    ahead = {p: high - at[p] for p, high in reached.items()}
    total = sum(ahead.values())
    if total <= offsets:
        return dict(reached)
    return {p: at[p] + -(-count * offsets // total) for p, count in ahead.items()}
