"""A table in the forms of other libraries: DuckDB, Polars, pandas, and any that takes a stream of Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from harness_pipelines.extras import needs
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.reading.reads import At

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from harness_pipelines.app.client import Harness
    from harness_pipelines.protocol.reading.plan import ReadPlan
    from harness_pipelines.read.union import ArrowReader


class Rows(Protocol):
    """What has rows to read, as `Table`."""

    def read(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: At | None = None,
        limit: int | None = None,
        tail: bool = False,
    ) -> pa.Table: ...


class Reads(Rows, Protocol):
    """What `Table` gives."""

    harness: Harness
    row: TableRow

    def plan(self, *, at: At | None = None, tail: bool = False, lease: timedelta | None = None) -> ReadPlan: ...

    def _arrow(self) -> ArrowReader: ...


class Frames:
    """The part of `Table` that hands rows to other libraries."""

    def to_polars(
        self: Reads,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: At | None = None,
        limit: int | None = None,
        tail: bool = False,
    ) -> pl.DataFrame:
        """Return the rows of `read` as a DataFrame of Polars. Raises: ExtraMissing, and as `read`."""
        with needs("polars", "`to_polars`"):
            import polars as pl
        rows = self.read(columns=columns, where=where, at=at, limit=limit, tail=tail)
        frame = pl.from_arrow(rows)
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_pandas(
        self: Reads,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: At | None = None,
        limit: int | None = None,
        tail: bool = False,
    ) -> pd.DataFrame:
        """Return the rows of `read` as a DataFrame of pandas, in Arrow's types: integers with NULLs stay integers.

        Raises: ExtraMissing, and as `read`.
        """
        with needs("pandas", "`to_pandas`"):
            import pandas as pd
        rows = self.read(columns=columns, where=where, at=at, limit=limit, tail=tail)
        frame: pd.DataFrame = rows.to_pandas(types_mapper=pd.ArrowDtype)
        return frame

    def to_duckdb(
        self: Reads,
        connection: DuckDBPyConnection | None = None,
        *,
        at: At | None = None,
        lease_s: float | None = None,
        view: str | None = None,
    ) -> DuckDBPyRelation:
        """Return one cut as a lazy relation of DuckDB, in *connection* or in a database of this relation.

        Rows are read when a query runs, and only its columns and, where a filter allows, its rows. All queries see the
        same cut. Each renews the lease; after *lease_s* (default: ``retention.lease`` of the spec) without one, a query
        fails with `LeaseEnded`. With *view* the cut is also registered under this name, for SQL.
        Raises: ExtraMissing, and as `read`.
        """
        with needs("sql", "`to_duckdb`"):
            import duckdb

            from harness_pipelines.app.sql import dataset
            from harness_pipelines.engines.duckdb.tables import quoted
        stores = self.harness.stores
        lease = timedelta(seconds=lease_s or self.row.spec.retention.lease)
        plan = self.plan(at=at, lease=lease)
        cut = dataset(stores, self.row, plan, check_lease=lambda: _renew(self, plan, lease))
        database = connection or duckdb.connect(":memory:")
        if view is not None:
            database.register(f"{view}__cut", cut)
            source = f"SELECT {cut.select_list} FROM {quoted(view + '__cut')}"
            database.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(view)} AS {source}")
        return database.from_arrow(cut).project(cut.select_list)

    def __arrow_c_stream__(self: Reads, requested_schema: object | None = None) -> object:
        """The newest rows as a stream of Arrow, for any library that takes one; read in bounded memory."""
        import pyarrow as pa

        from harness_pipelines.protocol.reading.selection import Selection, work_of

        lease, wanted = timedelta(seconds=self.row.spec.retention.lease), Selection()
        plan = self.plan(lease=lease)
        stream = pa.RecordBatchReader.from_batches(work_of(plan, wanted).schema, _leased(self, plan, wanted, lease))
        return stream.__arrow_c_stream__(requested_schema)


def _renew(table: Reads, plan: ReadPlan, lease: timedelta) -> None:
    table.harness.stores.leases.renew(plan.lease_id, lease=lease)


def _leased(table: Reads, plan: ReadPlan, wanted: Any, lease: timedelta) -> Iterator[pa.RecordBatch]:
    """The rows of a plan. A stream that is never begun leaves the lease to its time."""
    from harness_pipelines.read.lease import Hold

    hold = Hold(table.harness.stores, plan, lease)
    try:
        yield from table._arrow().batches(plan, wanted, check_lease=hold.check)
    finally:
        hold.end()
