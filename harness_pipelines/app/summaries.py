"""What a table looks like: its columns, its first rows, and figures of its values."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from math import isnan
from typing import TYPE_CHECKING, Protocol

from harness_pipelines.app.frames import Rows
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.coordinates import OFFSET
from harness_pipelines.protocol.reading.reads import At
from harness_pipelines.spec.table import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

VALUE_CHARS_MAX = 60  #: of a least or greatest value


class Reads(Rows, Protocol):
    """What `Table` gives."""

    row: TableRow

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> TableSpec: ...

    def reader(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: At | None = None,
        limit: int | None = None,
        tail: bool = False,
    ) -> AbstractContextManager[pa.RecordBatchReader]: ...


class Summaries:
    """The part of `Table` that shows it to people. What is shown without a call needs no server."""

    def __repr__(self: Reads) -> str:
        key = f", key ({', '.join(self.spec.key)})" if self.spec.key else ""
        return f"<Table {self.name}: topic {self.spec.topic}{key}, {len(self.spec.columns)} columns>"

    def _repr_html_(self: Reads) -> str:
        """The table's columns, as notebooks show them."""
        spec = self.spec
        about = f"<p>{escape(spec.description)}</p>" if spec.description else ""
        rows = "".join(
            f"<tr><td>{escape(c.name)}{' (key)' if c.name in spec.key else ''}</td><td>{escape(str(c.type))}"
            f"{' required' if c.required else ''}</td><td>{escape(c.description or '')}</td></tr>"
            for c in spec.columns
        )
        head = f"<p><b>{escape(self.name)}</b>, topic {escape(spec.topic)}</p>"
        return f"{head}{about}<table><tr><th>column</th><th>type</th><th>description</th></tr>{rows}</table>"

    @property
    def columns(self: Reads) -> tuple[str, ...]:
        """The names of the user's columns."""
        return tuple(column.name for column in self.spec.columns)

    @property
    def schema(self: Reads) -> pa.Schema:
        """The Arrow schema of `read` without arguments."""
        from harness_pipelines.spec.arrow import arrow_schema

        return arrow_schema(self.spec.stored)

    def count(self: Reads, where: str | None = None, *, at: At | None = None, tail: bool = False) -> int:
        """Return the number of rows that `read` would return; reads one column. Raises: as `read`."""
        with self.reader(columns=[OFFSET], where=where, at=at, tail=tail) as batches:
            return sum(batch.num_rows for batch in batches)

    def head(self: Reads, rows: int = 5, *, at: At | None = None, tail: bool = False) -> pa.Table:
        """Return some rows, *rows* at most. Raises: as `read`."""
        return self.read(limit=rows, at=at, tail=tail)

    def describe(
        self: Reads,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: At | None = None,
        tail: bool = False,
    ) -> pa.Table:
        """Return a row for each column: its name, type, rows, NULLs, least and greatest value, and mean.

        Reads all rows in bounded memory. Least and greatest are text, NULL for types without an order; dates and
        times beyond Python's years are days or microseconds since 1970. The mean is that of numbers. Raises: as `read`.
        """
        import pyarrow as pa

        with self.reader(columns=columns, where=where, at=at, tail=tail) as batches:
            figures = [_Figures(field) for field in batches.schema]
            for batch in batches:
                for figure, values in zip(figures, batch.columns, strict=True):
                    figure.add(values)
        return pa.table(
            {
                "column": pa.array([one.field.name for one in figures], pa.string()),
                "type": pa.array([str(one.field.type) for one in figures], pa.string()),
                "rows": pa.array([one.rows for one in figures], pa.int64()),
                "nulls": pa.array([one.nulls for one in figures], pa.int64()),
                "least": pa.array([one.end(0) for one in figures], pa.string()),
                "greatest": pa.array([one.end(1) for one in figures], pa.string()),
                "mean": pa.array([one.mean for one in figures], pa.float64()),
            }
        )


@dataclass(slots=True)
class _Figures:
    """Of the values of one column so far."""

    field: pa.Field
    rows: int = 0
    nulls: int = 0
    total: float = 0.0
    ends: pa.Array | None = None  #: least and greatest

    @property
    def _is_number(self) -> bool:
        import pyarrow.types as kinds

        kind = self.field.type
        return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))

    @property
    def _is_ordered(self) -> bool:
        import pyarrow.types as kinds

        kind = self.field.type
        return self._is_number or bool(kinds.is_temporal(kind) or kinds.is_string(kind) or kinds.is_boolean(kind))

    @property
    def mean(self) -> float | None:
        known = self.rows - self.nulls
        return self.total / known if self._is_number and known else None

    def end(self, at: int) -> str | None:
        """The least value (0) or the greatest one (1) as text."""
        return None if self.ends is None else _shown(self.ends[at])

    def add(self, values: pa.Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.rows, self.nulls = self.rows + len(values), self.nulls + values.null_count
        if values.null_count == len(values):
            return
        if self._is_number:
            self.total += pc.sum(values.cast(pa.float64())).as_py()
        if self._is_ordered:
            known = values if self.ends is None else pa.concat_arrays([values, self.ends])
            ends = pc.min_max(known)  # compared in Arrow: the lake has dates that Python has not
            self.ends = pa.array([ends["min"], ends["max"]], values.type)


def _shown(end: pa.Scalar) -> str | None:
    """An end as text; None of NaN, which is neither least nor greatest."""
    import pyarrow as pa

    try:
        value = end.as_py()
    except (OverflowError, ValueError):  # beyond the years of Python
        value = end.cast(pa.int32() if pa.types.is_date32(end.type) else pa.int64()).as_py()
    text = None if value is None or (isinstance(value, float) and isnan(value)) else str(value)
    return text if text is None or len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 3]}..."
