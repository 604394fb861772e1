"""A database in memory for one query after the other, which reaches nothing outside and takes bounded memory.

It holds no rows: tables are views over scans of ours. What a query sorts or joins beyond the memory goes to a folder
that only this session has. All settings are locked before the first query.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from harness_pipelines.engines.duckdb.aside import Aside
from harness_pipelines.engines.duckdb.statements import Statement, StatementRefused, read_statement, said, split
from harness_pipelines.engines.duckdb.tables import TableDataset, quoted
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import QueryFailed

MEMORY_BYTES = 1 << 30
SPILL_MAX = "32GiB"
BATCH_ROWS = 65_536
MAIN = "main"  #: the schema that every database has
#: DuckDB takes these for schemas and databases that it has itself.
NAMESPACES_TAKEN = frozenset({"information_schema", "memory", "pg_catalog", "system", "temp"})
#: A bit string and a big number come as DuckDB's own bytes, the largest integers with another sign, times without zone.
TYPES_REFUSED = frozenset({"bignum", "bit", "time with time zone", "uhugeint", "union", "variant"})
EXPLAINED = pa.schema([("explain_key", pa.string()), ("explain_value", pa.string())])  #: what EXPLAIN returns


class QueryTooLarge(HarnessError):
    """A query needs more memory than it may have."""

    way_on = "select fewer rows or columns, or give more memory: `harness sql --memory`"


class QueryTooSlow(HarnessError):
    """A query ran longer than it may."""

    way_on = "select fewer rows, or give more time: `harness sql --timeout`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one query may take."""

    memory_bytes: int = MEMORY_BYTES  #: above it, DuckDB writes to disk what it can
    time_s: float | None = None
    threads: int | None = None  #: None: one for each core


class Session:
    """One database; one query at a time. Close it, or use it as a context manager."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._spill = TemporaryDirectory(prefix="harness-sql-", ignore_cleanup_errors=True)
        self._database = _database(self._limits, self._spill.name)
        self._tables: dict[str, TableDataset] = {}
        self._stopped: HarnessError | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()
        self._spill.cleanup()

    def split(self, text: str) -> list[str]:
        """The statements of *text*. Raises: StatementRefused."""
        return split(self._database, text)

    def read(self, text: str) -> Statement:
        """What one statement reads. Raises: StatementRefused."""
        return read_statement(self._database, text)

    @contextmanager
    def tables(self, tables: Mapping[str, TableDataset]) -> Iterator[None]:
        """Let queries read *tables* (``namespace.name``) while the block lasts. Raises: StatementRefused."""
        _check_namespaces(tables)
        self._tables = dict(tables)
        with ExitStack() as held:
            for schema in {name.partition(".")[0] for name in tables} - {MAIN}:
                self._database.execute(f"CREATE SCHEMA {quoted(schema)}")
                held.callback(self._database.execute, f"DROP SCHEMA {quoted(schema)}")
            for number, (name, table) in enumerate(tables.items()):
                schema, _, short = name.partition(".")
                view = f"{quoted(schema)}.{quoted(short)}"
                self._database.register(f"harness_{number}", table)
                held.callback(self._database.unregister, f"harness_{number}")
                self._database.execute(f"CREATE VIEW {view} AS SELECT {table.select_list} FROM temp.harness_{number}")
                held.callback(self._database.execute, f"DROP VIEW {view}")
            held.callback(self._tables.clear)
            yield

    @contextmanager
    def run(
        self, statement: Statement, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> Iterator[pa.RecordBatchReader]:
        """The rows of *statement*, batch by batch as DuckDB makes them.

        Raises here and while rows are taken: QueryFailed, QueryTooLarge, QueryTooSlow, and what a read of a table
        raises.
        """

        def begun() -> pa.RecordBatchReader:
            found = self._database.execute(statement.text, parameters or None)
            _check_types(found.description)
            return found.to_arrow_reader(BATCH_ROWS)

        with self._in_time(), Aside(self._database.interrupt) as aside:
            with self._explained():
                found = aside.call(begun)
            yield pa.RecordBatchReader.from_batches(found.schema, self._rows(found, aside))

    def schema(self, statement: Statement, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> pa.Schema:
        """The columns of the result. Nothing is run for it. Raises: QueryFailed, QueryTooLarge, QueryTooSlow."""
        if statement.is_explain:
            return EXPLAINED
        with self._in_time(), self._explained():
            found = self._database.execute(f"FROM ({statement.bare}\n) LIMIT 0", parameters or None)
            _check_types(found.description)
            schema: pa.Schema = found.to_arrow_reader(1).schema
            names = self._names(statement, parameters)
            if names:  # of two that are equal a subquery renames one
                schema = pa.schema([field.with_name(name) for name, field in zip(names, schema, strict=True)])
        return schema

    def _names(self, statement: Statement, parameters: Sequence[Any] | Mapping[str, Any]) -> list[str]:
        """The names of the columns; none for a statement whose columns are always the same ones."""
        import duckdb

        try:
            found = self._database.execute(f"DESCRIBE {statement.bare}", parameters or None).fetchall()
        except duckdb.ParserException:  # it is DESCRIBE or SUMMARIZE itself
            return []
        return [str(name) for name, *_ in found]

    def end(self, why: HarnessError) -> None:
        """End the running query; another thread calls it. The rows that are taken next raise *why*."""
        self._stopped = why
        self._database.interrupt()

    def _rows(self, found: pa.RecordBatchReader, aside: Aside) -> Iterator[pa.RecordBatch]:
        while True:
            if self._stopped is not None:  # DuckDB forgets an interrupt that comes between two batches
                raise self._stopped
            with self._explained():
                batch = aside.call(next, found, None)
            if batch is None:
                return
            yield batch

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        self._stopped = None
        if self._limits.time_s is None:
            yield
            return
        late = QueryTooSlow(f"the query ran longer than {self._limits.time_s:g} s and was ended")
        timer = threading.Timer(self._limits.time_s, self.end, [late])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Give errors their names: Arrow passes on those of DuckDB and of our reads as text."""
        import duckdb

        try:
            yield
        except (duckdb.Error, RuntimeError, OSError, pa.ArrowException) as error:
            raise self._reason(error) from error

    def _reason(self, error: Exception) -> BaseException:
        failed = [table.failed for table in self._tables.values() if table.failed is not None]
        if self._stopped is not None:
            return self._stopped
        if failed:
            return failed[0]
        text = str(error)
        if "Out of Memory Error" in text:
            return QueryTooLarge(
                f"the query needs more than {self._limits.memory_bytes >> 20} MiB of memory, and cannot do with less"
            )
        return QueryFailed(said(error))


def _check_namespaces(tables: Iterable[str]) -> None:
    """Raises: StatementRefused."""
    for name in tables:
        if (namespace := name.partition(".")[0]) in NAMESPACES_TAKEN:
            raise StatementRefused(
                f"{name} cannot be read by DuckDB, which has a {namespace!r} itself: read it by `harness sql --engine "
                "spark`, `harness read` or Python"
            )


def _check_types(columns: Iterable[tuple[Any, ...]]) -> None:
    """Raises: QueryFailed for types of which Arrow would get other values, or bytes that only DuckDB can read."""
    for name, kind, *_ in columns:
        left = [kind]
        while left:
            one = left.pop()
            if str(one.id) in TYPES_REFUSED:
                raise QueryFailed(f"the column {name} has values of the type {one}: cast them to VARCHAR")
            if str(one.id) in ("array", "list", "map", "struct"):
                left += [part for _, part in one.children if hasattr(part, "id")]


def _database(limits: Limits, spill: str) -> Any:
    import duckdb

    config: dict[str, Any] = {
        "allow_community_extensions": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "enable_external_access": False,
        "memory_limit": f"{limits.memory_bytes}B",
        "max_temp_directory_size": SPILL_MAX,
        "preserve_insertion_order": False,  # a table has no order, and keeping one takes memory
        "python_enable_replacements": False,
        "temp_directory": spill,
    }
    if limits.threads is not None:
        config["threads"] = limits.threads
    made = duckdb.connect(":memory:", config=config)
    made.execute("SET GLOBAL TimeZone = 'UTC'")
    made.execute("SET lock_configuration = true")
    return made
