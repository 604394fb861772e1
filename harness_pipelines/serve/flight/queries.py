"""Running queries and prepared statements: bounded in number and time, each owned by the login that began it."""

from __future__ import annotations

import itertools
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa
import structlog

from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.serve.auth import Principal

log = structlog.get_logger(__name__)
Interrupt = Callable[[HarnessError], None]
#: Begins a query: it puts what has to end with it on the stack, and says how it is interrupted before anything runs.
Open = Callable[[ExitStack, Callable[[Interrupt], None]], pa.RecordBatchReader]
WAIT_S = 10.0  #: for the end of another query
PREPARED_MAX = 1000  #: of each login; the oldest unused one goes
AGAIN_S = 0.05
GIVEN_UP_S = 10.0  #: a query that has not begun by then ends as soon as it has


class ServerBusy(TryAgain):
    """As many queries run as the server may run at once; this one was not begun."""

    way_on = "run it again, or let the server run more: `harness serve --flight-queries`"


class QueryCancelled(HarnessError):
    """Its client cancelled a query, or the server was stopped."""

    way_on = "nothing, or run it again at a server that runs"


class StatementUnknown(HarnessError):
    """A prepared statement was closed, went as the oldest of very many, or belongs to another login."""

    way_on = "prepare it again"


@dataclass(slots=True)
class Prepared:
    """A prepared statement and the values that are bound to its parameters."""

    sql: str
    values: Sequence[Any] = ()


class PreparedStatements:
    """Those of all logins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, OrderedDict[bytes, Prepared]] = {}

    def add(self, principal: Principal, sql: str) -> bytes:
        handle = uuid.uuid4().hex.encode()
        with self._lock:
            mine = self._known.setdefault(principal.name, OrderedDict())
            mine[handle] = Prepared(sql)
            if len(mine) > PREPARED_MAX:
                mine.popitem(last=False)
        return handle

    def get(self, principal: Principal, handle: bytes) -> Prepared:
        """Raises: StatementUnknown."""
        with self._lock:
            mine = self._known.get(principal.name, OrderedDict())
            if handle not in mine:
                raise StatementUnknown("this prepared statement is not known, or no more; prepare it again")
            mine.move_to_end(handle)
            return mine[handle]

    def close(self, principal: Principal, handle: bytes) -> None:
        with self._lock:
            mine = self._known.get(principal.name, OrderedDict())
            mine.pop(handle, None)
            if not mine:
                self._known.pop(principal.name, None)


class Rows:
    """The batches of one query, for Flight to take. It ends with the last one, by `end`, or when it is dropped.

    A client that takes nothing holds the query no longer than its time. *held* is closed at the end.
    """

    def __init__(self, held: ExitStack) -> None:
        self._held, self._lock, self.rows = held, threading.Lock(), 0
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._interrupt: Interrupt | None = None
        self._is_open = threading.Event()
        self._why: HarnessError | None = None
        self.schema = pa.schema([])

    def open(self, open_: Open) -> None:
        """Begin it. It may take all of its time before there is a row. Raises: as *open_*, and what ended it."""
        try:
            reader = open_(self._held, self._interrupted_by)
            self.schema, self._batches = reader.schema, iter(reader)
            if self._why is not None:
                raise self._why
        except BaseException:
            self._is_open.set()
            with self._lock:
                self._held.close()
            raise
        self._is_open.set()

    def _interrupted_by(self, interrupt: Interrupt) -> None:
        """What ends the query from now on, while it begins, too."""
        self._interrupt = interrupt
        if self._why is not None:
            raise self._why

    def __iter__(self) -> Rows:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            if self._why is not None:
                raise self._why
            try:
                batch = next(self._batches)
            except BaseException:
                self._held.close()
                raise
            self.rows += batch.num_rows
            return batch

    def end(self, why: HarnessError) -> None:
        """End it from another thread: what runs is interrupted, and all that it holds is given back."""
        self._why = self._why or why
        for _ in range(int(GIVEN_UP_S / AGAIN_S)):  # an interrupt that comes before a call of DuckDB is forgotten
            if self._interrupt is not None:
                self._interrupt(why)
            if self._is_open.wait(AGAIN_S):
                with self._lock:
                    self._held.close()
                return

    def end_after(self, time_s: float, why: HarnessError) -> None:
        """End it when its time is over, also while its client takes nothing."""
        mine = weakref.ref(self)

        def late() -> None:
            if (rows := mine()) is not None:
                rows.end(why)

        timer = threading.Timer(time_s, late)
        timer.daemon = True
        self._held.callback(timer.cancel)
        timer.start()

    def __del__(self) -> None:
        self._held.close()


@dataclass(slots=True)
class Running:
    """All queries of the server."""

    slots: threading.BoundedSemaphore
    wait_s: float = WAIT_S
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    #: Weakly: a stream that its client dropped ends, as Flight lets go of it. A ticket may be used twice at once.
    _rows: WeakValueDictionary[tuple[str, str, int], Rows] = field(default_factory=WeakValueDictionary)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """A place among the queries that may run at once. Raises: ServerBusy."""
        if not self.slots.acquire(timeout=self.wait_s):
            raise ServerBusy(f"other queries took all places for {self.wait_s:g} s")
        try:
            yield
        finally:
            self.slots.release()

    def begin(self, principal: Principal, number: str, open_: Open, *, place: AbstractContextManager[None]) -> Rows:
        """Run a query. Raises: as *open_*."""
        held = ExitStack()
        made = Rows(held)
        with self._lock:
            key = (principal.name, number, next(self._numbers))
            self._rows[key] = made
        held.callback(self._forget, key)
        made.open(lambda stack, interrupted_by: _placed(place, open_, stack, interrupted_by))
        return made

    def cancel(self, principal: Principal, number: str) -> bool:
        """Whether there was such a query of the same login."""
        with self._lock:
            found = [rows for (name, own, _), rows in self._rows.items() if (name, own) == (principal.name, number)]
        for rows in found:
            rows.end(QueryCancelled("the query was cancelled by its client"))
        return bool(found)

    def end_all(self, why: HarnessError) -> None:
        """End all that run."""
        with self._lock:
            found = list(self._rows.values())
        for rows in found:
            rows.end(why)

    def _forget(self, key: tuple[str, str, int]) -> None:
        with self._lock:
            self._rows.pop(key, None)


def _placed(
    place: AbstractContextManager[None], open_: Open, held: ExitStack, interrupted_by: Callable[[Interrupt], None]
) -> pa.RecordBatchReader:
    held.enter_context(place)
    return open_(held, interrupted_by)
