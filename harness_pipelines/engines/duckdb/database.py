"""A database in memory for one query after the other, which reaches nothing outside. It runs in a process for them
alone (`child`).

It holds no rows: tables are views over scans of ours. What a query sorts or joins beyond the memory goes to a folder
that only this database has. All settings are locked before the first query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from harness_pipelines.engines.duckdb.statements import Statement, StatementRefused, read_statement, said, split
from harness_pipelines.engines.duckdb.tables import quoted
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import QueryFailed

MEMORY_BYTES = 1 << 30
SPILL_MAX = "32GiB"
BATCH_ROWS = 2048  #: as many as DuckDB makes at once: of wide rows they take memory that it does not count
MAIN = "main"  #: the schema that every database has
#: DuckDB takes these for schemas and databases that it has itself.
NAMESPACES_TAKEN = frozenset({"information_schema", "memory", "pg_catalog", "system", "temp"})
#: A bit string and a big number come as DuckDB's own bytes, the largest integers with another sign, times without zone.
TYPES_REFUSED = frozenset({"bignum", "bit", "time with time zone", "uhugeint", "union", "variant"})
_NO_MEMORY = ("Out of Memory Error", "bad_alloc", "bad allocation", "malloc of size", "Allocation failure")
EXPLAINED = pa.schema([("explain_key", pa.string()), ("explain_value", pa.string())])  #: what EXPLAIN returns


class QueryTooLarge(HarnessError):
    """A query needs more memory than it may have."""

    way_on = "select less, or give more memory: `harness sql --memory`, `harness serve --flight-memory`"


class QueryTooSlow(HarnessError):
    """A query ran longer than it may."""

    way_on = "select fewer rows, or give more time: `harness sql --timeout`, `harness serve --flight-timeout`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one query may take."""

    memory_bytes: int = MEMORY_BYTES  #: above it, DuckDB writes to disk what it can; its process gets little more
    time_s: float | None = None
    threads: int | None = None  #: None: one for each core


class Scanned(Protocol):
    """A table as DuckDB gets it: a dataset of Arrow."""

    @property
    def select_list(self) -> str: ...


class Database:
    """One database; one query at a time. *spill* is a folder for what does not fit in memory."""

    def __init__(self, limits: Limits, spill: str) -> None:
        self._limits = limits
        self.connection = _connected(limits, spill)

    def split(self, text: str) -> list[str]:
        """The statements of *text*. Raises: StatementRefused."""
        return split(self.connection, text)

    def read(self, text: str) -> Statement:
        """What one statement reads. Raises: StatementRefused."""
        return read_statement(self.connection, text)

    @contextmanager
    def tables(self, tables: Mapping[str, Scanned]) -> Iterator[None]:
        """Let queries read *tables* (``namespace.name``) while the block lasts. Raises: StatementRefused."""
        _check_namespaces(tables)
        with ExitStack() as held:
            for schema in {name.partition(".")[0] for name in tables} - {MAIN}:
                self.connection.execute(f"CREATE SCHEMA {quoted(schema)}")
                held.callback(self.connection.execute, f"DROP SCHEMA {quoted(schema)}")
            for number, (name, table) in enumerate(tables.items()):
                schema, _, short = name.partition(".")
                view = f"{quoted(schema)}.{quoted(short)}"
                self.connection.register(f"harness_{number}", table)
                held.callback(self.connection.unregister, f"harness_{number}")
                self.connection.execute(f"CREATE VIEW {view} AS SELECT {table.select_list} FROM temp.harness_{number}")
                held.callback(self.connection.execute, f"DROP VIEW {view}")
            yield

    def run(self, statement: Statement, parameters: Sequence[Any] | Mapping[str, Any]) -> pa.RecordBatchReader:
        """The rows of *statement*, batch by batch as DuckDB makes them. Raises: QueryFailed, QueryTooLarge."""
        with self.explained():
            found = self.connection.execute(statement.text, parameters or None)
            _check_types(found.description)
            return found.to_arrow_reader(BATCH_ROWS)

    def schema(self, statement: Statement, parameters: Sequence[Any] | Mapping[str, Any]) -> pa.Schema:
        """The columns of the result. Nothing is run for it. Raises: QueryFailed, QueryTooLarge."""
        if statement.is_explain:
            return EXPLAINED
        with self.explained():
            found = self.connection.execute(f"FROM ({statement.bare}\n) LIMIT 0", parameters or None)
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
            found = self.connection.execute(f"DESCRIBE {statement.bare}", parameters or None).fetchall()
        except duckdb.ParserException:  # it is DESCRIBE or SUMMARIZE itself
            return []
        return [str(name) for name, *_ in found]

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Give errors their names: Arrow passes on those of DuckDB and of our reads as text."""
        import duckdb

        try:
            yield
        except (duckdb.Error, RuntimeError, OSError, MemoryError, pa.ArrowException) as error:
            text = str(error)
            if isinstance(error, MemoryError) or any(word in text for word in _NO_MEMORY):
                raise too_large(self._limits) from error
            raise QueryFailed(said(error)) from error


def too_large(limits: Limits) -> QueryTooLarge:
    return QueryTooLarge(
        f"the query needs more than {limits.memory_bytes >> 20} MiB of memory, and cannot do with less"
    )


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


def _connected(limits: Limits, spill: str) -> Any:
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
