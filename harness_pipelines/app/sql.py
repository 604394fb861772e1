"""SQL over the tables of one installation, in this process: each table that a query names is read as one cut of now."""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from harness_pipelines.errors import UsageError
from harness_pipelines.ports.ledger import TableRow, TableUnknown, new_lease
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.reading.reads import At

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.app.installation import Stores
    from harness_pipelines.engines.duckdb.database import Limits
    from harness_pipelines.engines.duckdb.processes import Spares
    from harness_pipelines.engines.duckdb.session import Session
    from harness_pipelines.engines.duckdb.tables import TableDataset


class TableNotFound(UsageError):
    """A query names a table that does not exist, or that its reader may not see; nothing was read."""


class Sql:
    """Runs queries one after the other, each over the tables as they are then.

    *may_see* says which tables there are for the reader. *spares* are as for `Session`.
    """

    def __init__(
        self,
        stores: Stores,
        limits: Limits | None = None,
        *,
        may_see: Callable[[str], bool] = lambda name: True,
        spares: Spares | None = None,
    ) -> None:
        from harness_pipelines.engines.duckdb.session import Session

        self._stores, self._may_see = stores, may_see
        self.session: Session = Session(limits, spares=spares)

    def __enter__(self) -> Sql:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    @contextmanager
    def run(
        self, text: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, at: At | None = None
    ) -> Iterator[pa.RecordBatchReader]:
        """The rows of one statement, as DuckDB makes them. Every table is leased as long as the block lasts.

        *at* is the name of a snapshot, a time or, for a query of one table, a version.
        Raises: StatementRefused, TableNotFound, QueryFailed, QueryTooLarge, QueryTooSlow, and as `Table.read`.
        """
        statement = self.session.read(text)
        with ExitStack() as held:
            names = list(dict.fromkeys(statement.reads))
            if isinstance(at, int) and not isinstance(at, bool) and len(names) > 1:
                raise UsageError(
                    f"--at {at}: a version is a number of one table, and the query reads {len(names)}; name a snapshot "
                    "or a time"
                )
            rows = [self._row(name) for name in names]  # an unknown name is reported before anything is leased
            cuts = {row.name: held.enter_context(leased_cut(self._stores, row, at=at)) for row in rows}
            held.enter_context(self.session.tables(cuts))
            yield held.enter_context(self.session.run(statement, parameters))

    def schema(self, text: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> pa.Schema:
        """The columns of the result of one statement, without reading a row. Raises: as `run`."""
        statement = self.session.read(text)
        rows = [self._row(name) for name in dict.fromkeys(statement.reads)]
        with self.session.tables({row.name: empty_table(row) for row in rows}):
            return self.session.schema(statement, parameters)

    def tables(self) -> list[TableRow]:
        """All tables that the reader may see, by name."""
        return sorted(
            (row for row in self._stores.tables.tables() if self._may_see(row.name)), key=lambda row: row.name
        )

    def names(self) -> list[str]:
        return [row.name for row in self.tables()]

    def _row(self, name: str) -> TableRow:
        if name.count(".") == 1 and self._may_see(name):
            try:
                return self._stores.tables.table(name)
            except TableUnknown:
                pass
        raise TableNotFound(self._unknown(name))

    def _unknown(self, name: str) -> str:
        known = self.names()
        by_name = [table for table in known if "." not in name and table.partition(".")[2] == name]
        near = by_name or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(sorted(near))}?" if near else f"tables: {', '.join(known[:20]) or 'none yet'}"
        )
        return f"the query names {name!r}, which is neither a table of the harness nor a CTE; {hint}"


@contextmanager
def leased_cut(stores: Stores, row: TableRow, *, at: At | None) -> Iterator[TableDataset]:
    """One cut of a table for DuckDB; its lease is renewed until the block ends."""
    from harness_pipelines.read.lease import Hold
    from harness_pipelines.read.plan import given_back

    lease, lease_id = timedelta(seconds=row.spec.retention.lease), new_lease()
    with given_back(stores, lease_id):
        plan = plan_cut(stores, row, at=at, lease=lease, lease_id=lease_id)
        hold = Hold(stores, plan, lease)
        try:
            yield dataset(stores, row, plan, check_lease=hold.check)
        finally:
            hold.end()


def plan_cut(stores: Stores, row: TableRow, *, at: At | None, lease: timedelta, lease_id: str) -> ReadPlan:
    """The plan of a cut. *row* is of now: its spec decodes what only Kafka has. Raises: as `Table.read`."""
    from harness_pipelines.read.plan import make_plan

    tail = not row.intake.buffered
    holder = f"{socket.gethostname()}:{os.getpid()}"
    return make_plan(stores, row, at=at, tail=tail, holder=holder, lease=lease, lease_id=lease_id)


def dataset(stores: Stores, row: TableRow, plan: ReadPlan, *, check_lease: Callable[[], None]) -> TableDataset:
    """The rows of *plan* as DuckDB scans them."""
    from harness_pipelines.engines.duckdb.tables import TableDataset
    from harness_pipelines.protocol.reading.selection import table_columns
    from harness_pipelines.read.tail import read_tail
    from harness_pipelines.read.union import ArrowReader

    reader = ArrowReader.of(stores, lambda part: read_tail(stores, row, part))
    columns = [column for column in table_columns(plan).values() if column.field_id is not None]
    return TableDataset(columns, partial(reader.batches, plan, check_lease=check_lease))


def empty_table(row: TableRow) -> TableDataset:
    """A table with the columns of *row* and no rows."""
    from harness_pipelines.engines.duckdb.tables import TableDataset
    from harness_pipelines.protocol.reading.selection import ReadColumn

    columns = [
        ReadColumn(name=column.name, type=column.type, required=column.required, field_id=number)
        for number, column in enumerate(row.spec.columns)
    ]
    return TableDataset(columns, lambda selection: iter(()))
