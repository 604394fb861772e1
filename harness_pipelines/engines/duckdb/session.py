"""Queries one after the other, each in a process that is bounded in memory and can be ended at any time.

The tables stay here: that process asks for a scan, and gets its rows. A query that is ended, or not read to its end,
takes its process with it; the next one gets another.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.engines.duckdb.child import BROKEN, RAISED, ROWS_END, SCAN, Shape
from harness_pipelines.engines.duckdb.database import Limits, QueryTooLarge, QueryTooSlow
from harness_pipelines.engines.duckdb.processes import Child, Spares, prepare
from harness_pipelines.engines.duckdb.statements import Statement
from harness_pipelines.engines.duckdb.tables import TableDataset
from harness_pipelines.engines.duckdb.wire import Line
from harness_pipelines.errors import HarnessError

GIVEN_UP_S = 10.0  #: a scan that waits for a server ends after the query: its thread is left behind


class QueryDied(HarnessError):
    """The process of a query ended by itself: DuckDB got no memory where it cannot do without, or broke."""

    way_on = QueryTooLarge.way_on


class Session:
    """One query at a time. Close it, or use it as a context manager.

    *spares*, of the same limits, have processes for it.
    """

    def __init__(self, limits: Limits | None = None, *, spares: Spares | None = None) -> None:
        self._limits, self._spares = limits or Limits(), spares
        self._child: Child | None = None
        self._tables: Mapping[str, TableDataset] = {}
        self._scans: list[threading.Thread] = []
        self._stopped: HarnessError | None = None
        self._is_over = True  #: the query that runs, or ran last
        prepare()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._drop()

    def split(self, text: str) -> list[str]:
        """The statements of *text*. Raises: StatementRefused, and as `run`."""
        with self._in_time():
            return list(self._ask("split", text))

    def read(self, text: str) -> Statement:
        """What one statement reads. Raises: StatementRefused, and as `run`."""
        with self._in_time():
            found = self._ask("read", text)
        assert isinstance(found, Statement)
        return found

    @contextmanager
    def tables(self, tables: Mapping[str, TableDataset]) -> Iterator[None]:
        """Let queries read *tables* (``namespace.name``) while the block lasts."""
        self._tables = dict(tables)
        try:
            yield
        finally:
            self._tables = {}
            for scan in self._scans:
                scan.join(GIVEN_UP_S)
            self._scans.clear()

    @contextmanager
    def run(
        self, statement: Statement, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> Iterator[pa.RecordBatchReader]:
        """The rows of *statement*, batch by batch as DuckDB makes them.

        Raises here and while rows are taken: StatementRefused, QueryFailed, QueryTooLarge, QueryTooSlow, QueryDied,
        EngineAway, and what a read of a table raises.
        """
        with self._in_time():
            schema = self._ask("run", self._shapes(), statement, parameters)
            self._is_over = False
            try:
                yield pa.RecordBatchReader.from_batches(schema, self._rows())
            finally:
                if not self._is_over:
                    self._drop()

    def schema(self, statement: Statement, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> pa.Schema:
        """The columns of the result. Nothing is run for it. Raises: as `run`."""
        with self._in_time():
            return self._ask("schema", self._shapes(), statement, parameters)

    def end(self, why: HarnessError) -> None:
        """End the running query; another thread calls it. The rows that are taken next raise *why*."""
        self._stopped = why
        if (child := self._child) is not None:
            child.kill(why)

    def _shapes(self) -> dict[str, Shape]:
        return {name: Shape(table.schema, table.select_list) for name, table in self._tables.items()}

    def _rows(self) -> Iterator[pa.RecordBatch]:
        while (found := self._said()) != ROWS_END:
            yield found
        self._is_over = True

    def _ask(self, *asked: object) -> Any:
        assert self._is_over, "one query at a time"
        child = self._child = self._child or self._start()
        try:
            child.line.send(asked)
        except OSError as error:
            raise self._died() from error
        except BaseException:  # a part of it may be on its way
            self._drop()
            raise
        return self._said()

    def _start(self) -> Child:
        return Child(self._limits) if self._spares is None else self._spares.take()

    def _said(self) -> Any:
        """What the process says next; the scans that it asks for begin. Raises: as `run`."""
        if self._stopped is not None:  # it may have come before there was a process to end
            self._drop()
            raise self._stopped
        try:
            said = self._received()
        except EOFError as error:
            raise self._died() from error
        except BaseException:
            self._drop()
            raise
        if isinstance(said, tuple) and said[0] == RAISED:
            self._is_over = True
            if isinstance(said[1], QueryTooLarge):  # the allocator keeps what it has, and the next query needs it
                self._drop()
            raise self._reason(said[1])
        if isinstance(said, tuple) and said[0] == BROKEN:
            raise RuntimeError(f"the process of a query met an error of ours:\n{said[1]}")
        return said

    def _received(self) -> Any:
        assert self._child is not None
        while True:
            said, files = self._child.line.receive()
            if not (isinstance(said, tuple) and said[0] == SCAN):
                return said
            self._begin_scan(*said[1:], file=files[0])

    def _died(self) -> BaseException:
        """What to raise for a process that is gone."""
        assert self._child is not None
        why, status = self._child.ended_for, self._drop()
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "itself"
        return why or self._reason(
            QueryDied(
                f"the process of the query was ended by {how}. It may have {self._limits.memory_bytes >> 20} MiB of "
                "memory: one that needs more can end like this"
            )
        )

    def _reason(self, error: BaseException) -> BaseException:
        """*error*, or what it is a consequence of."""
        if self._stopped is not None:
            return self._stopped
        return next((table.failed for table in self._tables.values() if table.failed is not None), error)

    def _drop(self) -> int:
        """End the process, if there is one; how it ended."""
        child, self._child, self._is_over = self._child, None, True
        return child.end() if child is not None else 0

    def _begin_scan(self, name: str, columns: Sequence[str], where: pc.Expression | None, *, file: int) -> None:
        args = (self._tables[name], columns, where, socket.socket(fileno=file))
        scan = threading.Thread(target=_scan, args=args, name=f"scan {name}", daemon=True)
        self._scans.append(scan)
        scan.start()

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        self._stopped = None
        if self._child is not None and self._child.ended_for is not None:  # as the call before was over already
            self._drop()
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


def _scan(table: TableDataset, columns: Sequence[str], where: pc.Expression | None, end: socket.socket) -> None:
    """Send the rows of a scan, until there are no more or none is wanted. What a read raises is kept for the query."""
    with end:
        line = Line(end)
        try:
            with closing(cast(Any, table.scanner(columns, where).batches())) as batches:
                for batch in batches:
                    if not _is_taken(line, batch):
                        return
            line.send(ROWS_END)
        except Exception as error:  # the outer edge of a thread: the query raises it
            table.failed = table.failed or error


def _is_taken(line: Line, batch: pa.RecordBatch) -> bool:
    """Whether the query wants more rows."""
    try:
        line.send_rows(batch)
    except OSError:
        return False
    return True
