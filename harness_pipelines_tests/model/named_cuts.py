"""Cuts of a named snapshot (decision 0057): two servers make and serve them while the name comes to stand for others.

A state is the version that the name pinned when it was made. A cut is its file, and a row of the ledger with the state
that it is of. Times are as in `cut_files`: a maker's lease (`late`), and what a row promises (`over`). The chain of
newest cuts is not here, since neither kind of cut names a file, a row or a number of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol.cuts import may_condemn, may_forget
from harness_pipelines.protocol.versions import reached_versions
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import GRACE, NOW, Published
from harness_pipelines_tests.model.explorer import Step

IDLE, FOUND, LOOKED, WRITTEN = range(4)
Names = tuple[int, ...]


class Row(NamedTuple):
    file: int
    state: int
    over: bool = False  #: what it promised has ended


class Server(NamedTuple):
    pc: int = IDLE
    stood: Names = ()  #: the states that the name stood for since the load began
    row: Row | tuple[()] = ()
    state: int = 0  #: that its lease names
    late: bool = False  #: its lease has ended
    file: int = 0


class Query(NamedTuple):
    """An engine that was answered less than `keep` ago."""

    file: int
    state: int
    is_first: bool


class State(NamedTuple):
    head: int
    pin: int  #: the state that the name stands for; 0: there is no such name
    lake: Names  #: versions whose files exist
    rows: tuple[Row, ...]
    files: Names
    wrote: int  #: how many files were written
    servers: tuple[Server, ...]
    queries: tuple[Query, ...]
    going: Names  #: files that expire is going to delete
    compactions: int
    names: int  #: how often the name may still be made
    loads: int
    astray: int = 0  #: a state that a load was answered with, and that the name did not stand for


@cache
def _reached(head: int, kept: Names) -> Names:
    known = build.versions(tuple(Published((0,), (0,), number) for number in range(1, head + 1)))
    return tuple(v.version for v in reached_versions(known, retained_from=head, leased=kept, bases=()))


@dataclass(frozen=True, slots=True)
class NamedCuts:
    """*loads* loads, *compactions* that take the files of the version before; *bad*: see `mutants`."""

    loads: int = 3
    names: int = 2
    compactions: int = 1
    servers: int = 2
    bad: frozenset[str] = frozenset()
    name: str = "named_cuts"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a cut outlives its name": lambda s: not s.pin and any(not row.over for row in s.rows),
            "a cut keeps a version that nothing else does": lambda s: any(
                row.state in s.lake and row.state not in (s.head, s.pin) for row in s.rows
            ),
            "the name stands for another state than a cut": lambda s: any(
                row.state != s.pin and bool(s.pin) for row in s.rows
            ),
            "two servers make the cut of one state": lambda s: (
                len({one.file for one in s.servers if one.pc == WRITTEN and one.state == s.pin}) == 2
            ),
            "a cut is served again": lambda s: any(not query.is_first for query in s.queries),
            "the name is gone while its cut is made": lambda s: any(
                one.pc == WRITTEN and one.state != s.pin for one in s.servers
            ),
        }

    def first(self) -> State:
        return State(
            head=1,
            pin=1,
            lake=(1,),
            rows=(),
            files=(),
            wrote=0,
            servers=(Server(),) * self.servers,
            queries=(),
            going=(),
            compactions=self.compactions,
            names=self.names - 1,
            loads=self.loads,
        )

    def canonical(self, state: State) -> State:
        return state._replace(servers=tuple(sorted(state.servers)), queries=tuple(sorted(state.queries)))

    # -- safety ---------------------------------------------------------------------------------------------

    def broken(self, s: State) -> str | None:
        if s.astray:
            return f"S2: a load was answered with state {s.astray}, which the name did not stand for"
        for row in s.rows:
            if not row.over and (row.file not in s.files or row.state not in s.lake):
                return f"F3: the cut of state {row.state} is in the ledger, its file or its version is gone"
        for query in s.queries:
            if query.file not in s.files or query.state not in s.lake:
                return f"S11: a file or a version is gone under an engine that reads state {query.state}"
        alive = [row.state for row in s.rows if not row.over]
        return None if len(alive) == len(set(alive)) else f"F2: states {alive} have cuts that are alive"

    def broke(self, before: State, step: Step[State]) -> str | None:
        del before, step
        return None

    def is_goal(self, s: State) -> bool:
        """Nothing is kept but what the head and the name need."""
        needed = tuple(sorted({s.head, s.pin} - {0}))
        return all(one.pc == IDLE for one in s.servers) and not (s.rows or s.files) and s.lake == needed

    def show(self, s: State) -> str:
        rows = [f"{row.file} of v{row.state}{' over' if row.over else ''}" for row in s.rows]
        return f"head v{s.head} name v{s.pin} lake {list(s.lake)} rows {rows} files {list(s.files)}"

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        if s.compactions:
            then = s._replace(head=s.head + 1, lake=(*s.lake, s.head + 1), compactions=s.compactions - 1)
            yield Step("compact", "compact.publish", then)
        yield from self._named(s)
        for at, one in enumerate(s.servers):
            yield from self._serve(s, at, one)
        for at, query in enumerate(s.queries):
            left = (*s.queries[:at], *s.queries[at + 1 :])
            yield Step("engine", f"query.end v{query.state}", s._replace(queries=left))
        yield from self._time(s)
        yield from self._expire(s)

    @staticmethod
    def _named(s: State) -> Iterator[Step[State]]:
        if not s.pin and s.names:
            servers = tuple(
                one if one.pc == IDLE else one._replace(stood=tuple(sorted({*one.stood, s.head}))) for one in s.servers
            )
            yield Step("operator", "snapshot.create", s._replace(pin=s.head, names=s.names - 1, servers=servers))
        if s.pin and s.pin not in _leased(s):
            yield Step("operator", "snapshot.drop", s._replace(pin=0))

    def _serve(self, s: State, at: int, one: Server) -> Iterator[Step[State]]:
        who = f"server{at + 1}"
        if one.pc == IDLE and s.loads and s.pin:
            found = self._alive(s)
            asked = Server(FOUND, (s.pin,), row=found) if found else Server(LOOKED, (s.pin,), state=s.pin)
            yield Step(who, "load.ask", _with(s._replace(loads=s.loads - 1), at, asked))
        if one.pc == FOUND:
            yield self._given_out(s, at, one)
        if one.pc == LOOKED:
            number = s.wrote + 1
            written = one._replace(pc=WRITTEN, file=number)
            then = s._replace(files=(*s.files, number), wrote=number)
            yield Step(who, "load.write", _with(then, at, written))
        if one.pc == WRITTEN:
            yield self._published(s, at, one)

    def _alive(self, s: State) -> Row | tuple[()]:
        """The cut of the state that the name stands for, or of any with a mutant that finds it by the name."""
        for row in s.rows:
            if not row.over and (row.state == s.pin or "named_by_its_name" in self.bad):
                return row
        return ()

    def _given_out(self, s: State, at: int, one: Server) -> Step[State]:
        """The row is prolonged where it is alive and pinned; else the load begins again, which is another load here."""
        who, row = f"server{at + 1}", one.row
        assert row
        if row not in s.rows or (row.state != s.pin and "named_by_its_name" not in self.bad):
            return Step(who, "load.gone", _with(s, at, Server()))
        rows = s.rows
        if "named_not_prolonged" not in self.bad:
            rows = tuple(known._replace(over=False) if known == row else known for known in s.rows)
        then = _with(s._replace(rows=rows), at, Server())
        return Step(who, f"load.serve v{row.state}", _answered(then, one, row, is_first=False))

    def _published(self, s: State, at: int, one: Server) -> Step[State]:
        who = f"server{at + 1}"
        is_there = any(row.state == one.state and not row.over for row in s.rows)
        may = one.state == s.pin and (not is_there or "named_twice" in self.bad)
        if not may or (one.late and "named_lease_unchecked" not in self.bad):
            return Step(who, "load.overtaken", _with(s, at, Server()))
        row = Row(one.file, one.state)
        then = _with(s._replace(rows=(*s.rows, row)), at, Server())
        return Step(who, f"load.publish v{one.state}", _answered(then, one, row, is_first=True))

    # -- time and expire ------------------------------------------------------------------------------------

    def _time(self, s: State) -> Iterator[Step[State]]:
        for at, one in enumerate(s.servers):
            if one.pc in (LOOKED, WRITTEN) and not one.late:
                yield Step("time", f"time.lease_ends of server{at + 1}", _with(s, at, one._replace(late=True)))
        for at, row in enumerate(s.rows):
            counted = [q for q in s.queries if q.is_first or "named_not_prolonged" not in self.bad]
            if not row.over and all(query.file != row.file for query in counted):
                rows = (*s.rows[:at], row._replace(over=True), *s.rows[at + 1 :])
                yield Step("time", f"time.over for v{row.state}", s._replace(rows=rows))

    def _expire(self, s: State) -> Iterator[Step[State]]:
        kept = tuple(row for row in s.rows if not may_forget(_until(row), now=NOW, grace=GRACE))
        if kept != s.rows and not s.going:
            yield Step("expire", "expire.forget", s._replace(rows=kept))
        of_rows = () if "named_version_unprotected" in self.bad else tuple(row.state for row in s.rows)
        lake = _reached(s.head, tuple(sorted({*_leased(s), *of_rows, s.pin} - {0})))
        if lake != s.lake and {*lake} <= {*s.lake}:
            yield Step("expire", f"expire.trim to {list(lake)}", s._replace(lake=lake))
        named = () if "named_files_unprotected" in self.bad else tuple(row.file for row in s.rows)
        going = tuple(file for file in s.files if file not in named and self._is_orphan(s, file))
        if going and not s.going:
            yield Step("expire", f"expire.look {list(going)}", s._replace(going=going))
        if s.going:
            files = tuple(file for file in s.files if file not in s.going)
            yield Step("expire", f"expire.delete {list(s.going)}", s._replace(files=files, going=()))

    @staticmethod
    def _is_orphan(s: State, file: int) -> bool:
        young = any(one.pc == WRITTEN and one.file == file and not one.late for one in s.servers)
        return may_condemn(NOW - timedelta(minutes=1 if young else 60), now=NOW, grace=GRACE)


def _answered(s: State, one: Server, row: Row, *, is_first: bool) -> State:
    then = s._replace(queries=(*s.queries, Query(row.file, row.state, is_first)))
    return then if row.state in one.stood else then._replace(astray=row.state)


def _leased(s: State) -> Names:
    return tuple(one.state for one in s.servers if one.pc in (LOOKED, WRITTEN) and not one.late)


def _until(row: Row) -> datetime:
    """Far behind, or ahead."""
    return NOW - timedelta(hours=1) if row.over else NOW + timedelta(minutes=1)


def _with(s: State, at: int, one: Server) -> State:
    return s._replace(servers=(*s.servers[:at], one, *s.servers[at + 1 :]))
