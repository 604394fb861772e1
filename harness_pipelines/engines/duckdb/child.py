"""The process of the queries of one session. It asks the process that it belongs to for the rows of tables.

The address of no server and no credential is needed here, and what DuckDB takes beyond the memory that it counts ends
this process alone: text that a function makes, the state of some aggregates, rows on their way to Arrow.
"""

from __future__ import annotations

import os
import resource
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from harness_pipelines.engines.duckdb.database import Database, Limits, too_large
from harness_pipelines.engines.duckdb.statements import Statement
from harness_pipelines.engines.duckdb.wire import Line
from harness_pipelines.errors import HarnessError

UNCOUNTED_BYTES = 256 << 20  #: beside what DuckDB counts: batches on their way, and what its allocator keeps
UNCOUNTED_SHARE = 4  #: or a quarter of the memory, if that is more
STACK_BYTES = 16 << 20  #: of a thread and its part of the allocator
SCAN, ROWS_END, RAISED, BROKEN = "scan", "end", "raised", "broken"


@dataclass(frozen=True, slots=True)
class Shape:
    """What this process knows of a table."""

    schema: pa.Schema
    select_list: str


class RemoteTable(pyarrow.dataset.Dataset):  # type: ignore[misc]  # PyArrow has no types
    """A table whose rows come from the other process (`tables.TableDataset`)."""

    def __init__(self, line: Line, name: str, shape: Shape) -> None:
        self._line, self._name, self._shape = line, name, shape

    @property
    def schema(self) -> pa.Schema:
        return self._shape.schema

    @property
    def select_list(self) -> str:
        return self._shape.select_list

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> Scan:
        names = self.schema.names if columns is None else list(columns)
        return Scan(self._line, self._name, pa.schema([self.schema.field(name) for name in names]), filter)


@dataclass(frozen=True, slots=True)
class Scan:
    """What DuckDB needs of a scanner."""

    line: Line
    name: str
    schema: pa.Schema
    filter: pc.Expression | None

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        mine, theirs = socket.socketpair()
        with mine:
            with theirs:
                self.line.send((SCAN, self.name, self.schema.names, self.filter), files=[theirs.fileno()])
            rows = Line(mine)
            while (
                found := rows.receive().said
            ) != ROWS_END:  # EOFError: the scan failed, and the other process knows why
                yield found


def serve(line: Line, limits: Limits, spill: str) -> None:
    """Answer what the other process asks, until it is gone."""
    _bound(limits)
    database = Database(limits, spill)
    answers: Mapping[str, Callable[..., None]] = {"split": _split, "read": _read, "schema": _schema, "run": _run}
    while True:
        try:
            (asked, *args), _ = line.receive()
        except EOFError:
            return
        try:
            answers[asked](line, database, *args)
        except HarnessError as error:
            line.send((RAISED, error))
        except MemoryError:
            line.send((RAISED, too_large(limits)))
        except Exception:  # the outer edge of this process: the one that asked raises it, with the trace
            line.send((BROKEN, traceback.format_exc()))


def _split(line: Line, database: Database, text: str) -> None:
    line.send(database.split(text))


def _read(line: Line, database: Database, text: str) -> None:
    line.send(database.read(text))


def _schema(line: Line, database: Database, tables: Mapping[str, Shape], statement: Statement, values: Any) -> None:
    with database.tables(_remote(line, tables)):
        line.send(database.schema(statement, values))


def _run(line: Line, database: Database, tables: Mapping[str, Shape], statement: Statement, values: Any) -> None:
    with ExitStack() as held:
        held.enter_context(database.tables(_remote(line, tables)))
        reader = database.run(statement, values)
        line.send(reader.schema)
        while True:
            with database.explained():
                batch = next(reader, None)
            if batch is None:
                break
            line.send_rows(batch)
        del reader
    line.send(ROWS_END)


def _remote(line: Line, tables: Mapping[str, Shape]) -> dict[str, RemoteTable]:
    return {name: RemoteTable(line, name, shape) for name, shape in tables.items()}


def _bound(limits: Limits) -> None:
    """Let this process have the memory of a query and little more: an allocation beyond it fails.

    What the system counts is the memory that the process may write to (``RLIMIT_DATA``); only Linux counts all of it.
    If the machine has no memory left all the same, the system ends this process before others.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it has rows
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(FileNotFoundError):
        taken = _data_bytes(Path("/proc/self/status").read_text())
        threads = limits.threads or os.cpu_count() or 1
        uncounted = max(UNCOUNTED_BYTES, limits.memory_bytes // UNCOUNTED_SHARE) + threads * STACK_BYTES
        most = taken + limits.memory_bytes + uncounted
        _, allowed = resource.getrlimit(resource.RLIMIT_DATA)
        most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _data_bytes(status: str) -> int:
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))
