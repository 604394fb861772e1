"""The files of cuts (decision 0057): two servers make and serve them, engines use them, expire removes the others.

A cut is named by the file that was written for it, which stands for its chunk, manifests and metadata; it names the
file of the cut before it too, whose chunk it keeps. A server that did not publish a cut remembers its file, and its
next cut names it instead. A version is named by its number, and its files are those of the lake. Times are what has
passed: a maker's lease (`late`), what a row promises (`over`), for how long a file may be remembered (`stale`). Nothing
depends on how these compare, but that a file is no orphan before it is stale and the cut that named it is late.
Numbers of cuts go on where no row is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol.cuts import (
    UNNAMED_MAX,
    check_newest,
    etag,
    may_begin_with,
    may_condemn,
    may_forget,
    next_sequence,
)
from harness_pipelines.protocol.versions import reached_versions
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import GRACE, NOW, Published
from harness_pipelines_tests.model.explorer import Step

IDLE, ASKED, SERVING, LOOKED, WRITTEN = range(5)
Names = tuple[int, ...]


class Cut(NamedTuple):
    number: int  #: of its own file
    sequence: int
    version: int
    kept: int  #: the file of the cut before; 0: none
    own: int = 0  #: a file that its server wrote for a cut that was not published; 0: none

    @property
    def names(self) -> Names:
        return tuple(name for name in (self.number, self.kept, self.own) if name)


class Row(NamedTuple):
    cut: Cut
    over: bool = False  #: what it promised has ended
    retired: bool = False  #: a server found a file of it lost


class Server(NamedTuple):
    pc: int = IDLE
    base: Cut | tuple[()] = ()  #: the newest cut, if it was alive
    last: int = 0  #: the highest sequence so far
    version: int = 0  #: that its lease names
    late: bool = False  #: its lease has ended
    draft: Cut | tuple[()] = ()
    unnamed: int = 0  #: a file that it wrote for a cut that was not published; 0: none
    stale: bool = False  #: that file is too old to begin a cut with
    taken: bool = False  #: its cut was begun with it
    aged: bool = False  #: the file of its draft is too old to be remembered


class Query(NamedTuple):
    """An engine that was answered less than `keep` ago."""

    cut: Cut
    is_first: bool  #: of the answers with this cut
    known_lost: bool = False  #: the cut was retired when it was given


class State(NamedTuple):
    head: int
    lake: Names  #: versions whose files exist
    rows: tuple[Row, ...]
    last: int  #: the highest sequence that was given
    files: Names  #: in the fresh folder
    wrote: int  #: how many were written
    servers: tuple[Server, ...]
    queries: tuple[Query, ...]
    cached: Cut | tuple[()]  #: what an engine was answered with last, and asks whether it is still so
    going: Names  #: files that expire is going to delete
    compactions: int
    loads: int
    crashes: int
    damages: int = 0  #: that are still to come
    lost: Names = ()  #: files that are damaged


@cache
def _reached(head: int, leased: Names) -> Names:
    known = build.versions(tuple(Published((0,), (0,), number) for number in range(1, head + 1)))
    return tuple(v.version for v in reached_versions(known, retained_from=head, leased=leased, bases=()))


@dataclass(frozen=True, slots=True)
class CutFiles:
    """*loads* loads, and *compactions* that take the files of the version before; *bad*: see `mutants`."""

    loads: int = 3
    compactions: int = 1
    crashes: int = 0
    damages: int = 0
    servers: int = 2
    caches: bool = False
    remembers: bool = False
    bad: frozenset[str] = frozenset()
    name: str = "cut_files"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a cut outlives its version": lambda s: any(row.cut.version < s.head for row in s.rows),
            "an old version is gone": lambda s: 1 not in s.lake,
            "a cut is served again": lambda s: any(not query.is_first for query in s.queries),
            "a maker is too slow": lambda s: any(one.pc == WRITTEN and one.late for one in s.servers),
            "files that were never published are removed": lambda s: (
                bool(s.going) and any(one.late and one.draft and one.draft.number in s.going for one in s.servers)
            ),
            "a cut is made after one whose row is gone": lambda s: any(
                one.pc == WRITTEN and bool(one.base) and all(row.cut != one.base for row in s.rows) for one in s.servers
            ),
            "the time of a cut ends while it is served": lambda s: any(
                one.pc == SERVING and Row(one.base, over=True) in s.rows for one in s.servers if one.base
            ),
            "a cut names a file that was written for another one": lambda s: any(row.cut.own for row in s.rows),
            **self._of_damage(),
            "a file is kept by a newer cut alone": lambda s: any(
                row.cut.kept and all(row.cut.kept != other.cut.number for other in s.rows) for row in s.rows
            ),
        }

    @staticmethod
    def _of_damage() -> dict[str, Callable[[State], bool]]:
        return {
            "a cut is made after a retired one": lambda s: (
                len(s.rows) > 1 and s.rows[0].retired and not s.rows[-1].retired
            ),
            "a maker goes on from a cut that was retired meanwhile": lambda s: any(
                one.pc == WRITTEN and bool(one.base) and any(r.retired and r.cut == one.base for r in s.rows)
                for one in s.servers
            ),
            "a file is lost under an engine": lambda s: any({*q.cut.names} & {*s.lost} for q in s.queries),
        }

    def first(self) -> State:
        return State(
            head=1,
            lake=(1,),
            rows=(),
            last=0,
            files=(),
            wrote=0,
            servers=(Server(),) * self.servers,
            queries=(),
            cached=(),
            going=(),
            compactions=self.compactions,
            loads=self.loads,
            crashes=self.crashes,
            damages=self.damages,
        )

    def canonical(self, state: State) -> State:
        return state._replace(servers=tuple(sorted(state.servers)), queries=tuple(sorted(state.queries)))

    # -- safety ---------------------------------------------------------------------------------------------

    def broken(self, s: State) -> str | None:
        for row in s.rows:
            if not row.over and (lost := self._lost(s, row.cut)):
                return f"F3: cut {row.cut.sequence} is in the ledger, {lost} is gone"
        for query in s.queries:
            if query.known_lost:
                return f"S11: an engine was answered with cut {query.cut.sequence}, which was retired"
            if lost := self._lost(s, query.cut):
                return f"S11: {lost} is gone under an engine that was answered with cut {query.cut.sequence}"
        retired = set[int]()
        for row in s.rows:
            if retired & {*row.cut.names}:
                return f"F3: cut {row.cut.sequence} goes on from files of one that was retired"
            retired |= {*row.cut.names} if row.retired else set()
        sequences = [row.cut.sequence for row in s.rows]
        return None if sequences == sorted(set(sequences)) else f"F2: cuts have the sequences {sequences}"

    @staticmethod
    def _lost(s: State, cut: Cut) -> str | None:
        if gone := sorted({*cut.names} - {*s.files}):
            return f"file {gone[0]}"
        return None if cut.version in s.lake else f"version {cut.version}"

    def broke(self, before: State, step: Step[State]) -> str | None:
        del before, step
        return None

    def is_goal(self, s: State) -> bool:
        """Nothing is served, and nothing is kept for a cut."""
        return all(one.pc == IDLE for one in s.servers) and not (s.rows or s.files) and s.lake == (s.head,)

    def show(self, s: State) -> str:
        rows = [f"{r.cut.sequence}{r.cut.names}v{r.cut.version}{' over' if r.over else ''}" for r in s.rows]
        return f"head v{s.head} lake {list(s.lake)} rows {rows} files {list(s.files)} queries {len(s.queries)}"

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        if s.compactions:
            then = s._replace(head=s.head + 1, lake=(*s.lake, s.head + 1), compactions=s.compactions - 1)
            yield Step("compact", "compact.publish", then)
        for at, one in enumerate(s.servers):
            yield from self._serve(s, at, one)
        for at, query in enumerate(s.queries):
            left = (*s.queries[:at], *s.queries[at + 1 :])
            yield Step("engine", f"query.end cut {query.cut.sequence}", s._replace(queries=left))
        for name in s.files if s.damages else ():
            if any(name in row.cut.names for row in s.rows) and name not in s.lost:
                damaged = s._replace(damages=s.damages - 1, lost=(*s.lost, name))
                yield Step("storage", f"store.loses file {name}", damaged)
        yield from self._time(s)
        yield from self._expire(s)

    def _serve(self, s: State, at: int, one: Server) -> Iterator[Step[State]]:
        who = f"server{at + 1}"
        if one.pc == IDLE and s.loads:
            newest = _newest(s)
            asked = one._replace(pc=ASKED, base=newest or (), last=s.last)
            yield Step(who, "load.ask", _with(s._replace(loads=s.loads - 1), at, asked))
        if one.pc != IDLE and s.crashes:
            yield Step(who, "load.die", _with(s._replace(crashes=s.crashes - 1), at, Server()))
        if one.pc == ASKED:
            if one.base and {*one.base.names} & {*s.lost}:
                yield from self._retired(s, at, one.base)  # or it has looked a few seconds ago, and does not know
            if one.base:
                alive = Row(one.base) in s.rows or "served_without_its_row" in self.bad
                alive |= "retired_is_served" in self.bad and Row(one.base, retired=True) in s.rows
                begun = one._replace(pc=SERVING) if alive else _idle(one)
                yield Step(who, "load.serve begins" if alive else "load.gone", _with(s, at, begun))
            taken = bool(one.unnamed) and may_begin_with(_written(one.stale), now=NOW)
            yield Step(who, "load.look", _with(s, at, one._replace(pc=LOOKED, version=s.head, taken=taken)))
        if one.pc == SERVING:
            yield self._served(s, at, one.base)
        if one.pc == LOOKED:
            yield Step(who, "load.write", self._written(s, at, one))
        if one.pc == WRITTEN:
            yield self._published(s, at, one)

    def _retired(self, s: State, at: int, cut: Cut) -> Iterator[Step[State]]:
        """A server finds a file of the newest cut lost, and begins again. It waits for one that prolongs the cut."""
        if any(one.pc == SERVING and one.base == cut for one in s.servers):
            return
        newest = s.rows and s.rows[-1].cut == cut
        rows = (*s.rows[:-1], s.rows[-1]._replace(retired=True)) if newest else s.rows
        then = s._replace(rows=rows)
        yield Step(
            f"server{at + 1}",
            f"load.retire {cut.sequence}",
            _with(then, at, Server(ASKED, _newest(then) or (), s.last)),
        )

    def _served(self, s: State, at: int, cut: Cut | tuple[()]) -> Step[State]:
        """The statement that moves `until` ends: it had the row, which is locked as long."""
        assert cut
        rows = tuple(row._replace(over=False) if row.cut == cut else row for row in s.rows)
        then = _with(s if "until_not_moved" in self.bad else s._replace(rows=rows), at, _idle(s.servers[at]))
        then = self._answered(then, cut, is_first=False)
        if any(row.cut == cut and row.retired for row in s.rows):
            then = then._replace(
                queries=tuple(q._replace(known_lost=True) if q.cut == cut else q for q in then.queries)
            )
        return Step(f"server{at + 1}", f"load.serve {cut.sequence}", then)

    def _answered(self, s: State, cut: Cut, *, is_first: bool) -> State:
        """An engine that has this answer already is answered that nothing has changed."""
        if not self.caches:
            return s._replace(queries=(*s.queries, Query(cut, is_first)))
        if s.cached and self._etag(s.cached) == self._etag(cut):
            return s._replace(queries=(*s.queries, Query(s.cached, is_first)))
        return s._replace(queries=(*s.queries, Query(cut, is_first)), cached=cut)

    def _etag(self, cut: Cut) -> str:
        if "etag_of_the_state" in self.bad:
            return str(cut.version)
        return etag(f"{cut.number}.json")

    @staticmethod
    def _written(s: State, at: int, one: Server) -> State:
        number = s.wrote + 1
        kept, own = one.base.number if one.base else 0, one.unnamed if one.taken else 0
        draft = Cut(number, next_sequence(one.last, ()), one.version, kept, own if own != kept else 0)
        then = s._replace(files=(*s.files, number), wrote=number)
        return _with(then, at, one._replace(pc=WRITTEN, draft=draft))

    def _published(self, s: State, at: int, one: Server) -> Step[State]:
        assert one.draft
        alive = _newest(s, retired="retired_goes_on" in self.bad)
        newest, previous = alive and alive.sequence, one.base.sequence if one.base else None
        is_newest = build.verdict(lambda: check_newest("t", newest=newest, previous=previous)) is None
        is_above = one.draft.sequence > s.last or "follows_unchecked" in self.bad
        may = (is_newest or "previous_unchecked" in self.bad) and is_above
        if not may or (one.late and "lease_unchecked" not in self.bad):
            if "loser_answers" in self.bad:
                then = self._answered(_with(s, at, Server()), one.draft, is_first=True)
                return Step(f"server{at + 1}", "load.answer with what was not published", then)
            return Step(f"server{at + 1}", "load.overtaken", _with(s, at, self._unpublished(one)))
        rows = (*s.rows, Row(one.draft))
        then = _with(s._replace(rows=rows, last=max(s.last, one.draft.sequence)), at, Server())
        then = self._answered(then, one.draft, is_first=True)
        return Step(f"server{at + 1}", f"load.publish {one.draft.sequence}", then)

    def _unpublished(self, one: Server) -> Server:
        """It remembers what it wrote; what it remembered before the model forgets."""
        if not self.remembers or not one.draft:
            return Server()
        return Server(unnamed=one.draft.number, stale=one.aged)

    # -- time -----------------------------------------------------------------------------------------------

    def _time(self, s: State) -> Iterator[Step[State]]:
        for at, one in enumerate(s.servers):
            if one.pc in (LOOKED, WRITTEN) and not one.late:
                yield Step("time", f"time.lease_ends of server{at + 1}", _with(s, at, one._replace(late=True)))
            if self.remembers and one.pc == WRITTEN and one.late and not one.aged:
                yield Step("time", f"time.ages for server{at + 1}", _with(s, at, one._replace(aged=True)))
            if one.unnamed and not one.stale:
                yield Step("time", f"time.stale for server{at + 1}", _with(s, at, one._replace(stale=True)))
        for at, row in enumerate(s.rows):
            if not row.over and not self._promises(s, row):
                rows = (*s.rows[:at], row._replace(over=True), *s.rows[at + 1 :])
                yield Step("time", f"time.over for cut {row.cut.sequence}", s._replace(rows=rows))

    def _promises(self, s: State, row: Row) -> bool:
        if "lease_ends_at_the_answer" in self.bad:
            return False
        counted = [q for q in s.queries if q.is_first or "until_not_moved" not in self.bad]
        return any(query.cut == row.cut for query in counted)

    # -- expire ---------------------------------------------------------------------------------------------

    def _expire(self, s: State) -> Iterator[Step[State]]:
        served = [one.base for one in s.servers if one.pc == SERVING]  # their rows are locked
        kept = tuple(r for r in s.rows if r.cut in served or not may_forget(_until(r), now=NOW, grace=GRACE))
        if kept != s.rows and not s.going:
            last = 0 if "numbers_begin_again" in self.bad and not kept else s.last
            yield Step("expire", "expire.forget", s._replace(rows=kept, last=last))
        lake = _reached(s.head, self._leased(s))
        if lake != s.lake and {*lake} <= {*s.lake}:
            yield Step("expire", f"expire.trim to {list(lake)}", s._replace(lake=lake))
        named = {name for row in s.rows if not (row.over and "same_run" in self.bad) for name in row.cut.names}
        going = tuple(name for name in s.files if name not in named and self._is_orphan(s, name))
        if going and not s.going:
            yield Step("expire", f"expire.look {list(going)}", s._replace(going=going))
        if s.going:
            rows = kept if "same_run" in self.bad else s.rows
            files = tuple(name for name in s.files if name not in s.going)
            yield Step("expire", f"expire.delete {list(s.going)}", s._replace(rows=rows, files=files, going=()))

    def _is_orphan(self, s: State, name: int) -> bool:
        """A file is as old as its maker is slow, and as long as it is remembered."""
        young = any(
            one.pc == WRITTEN and one.draft and one.draft.number == name and not self._is_old(one) for one in s.servers
        )
        if "horizon_too_short" in self.bad:
            young = False
        kept = any(one.unnamed == name and (not one.stale or (one.taken and not one.late)) for one in s.servers)
        if "unnamed_are_orphans" in self.bad:
            kept = False
        age = UNNAMED_MAX if kept else timedelta(minutes=1) if young else timedelta(minutes=60)
        return may_condemn(NOW - age, now=NOW, grace=GRACE)

    def _is_old(self, one: Server) -> bool:
        """Whether the file of its draft is older than any that a cut may name."""
        return one.aged if self.remembers else one.late

    def _leased(self, s: State) -> Names:
        leased = [one.version for one in s.servers if one.pc in (LOOKED, WRITTEN) and not one.late]
        rows = s.rows
        if "cuts_by_the_clock" in self.bad:
            rows = tuple(row for row in s.rows if not row.over)
        if "version_unprotected" in self.bad:
            rows = ()
        return tuple(sorted({*leased, *(row.cut.version for row in rows)}))


def _newest(s: State, *, retired: bool = False) -> Cut | None:
    """The newest cut, if it is alive, and with *retired* not only if no server has retired it."""
    return s.rows[-1].cut if s.rows and not s.rows[-1].over and (retired or not s.rows[-1].retired) else None


def _idle(one: Server) -> Server:
    """After a load that wrote nothing."""
    return Server(unnamed=one.unnamed, stale=one.stale)


def _written(stale: bool) -> datetime:
    """When a file was written that is remembered."""
    return NOW - 2 * UNNAMED_MAX if stale else NOW - UNNAMED_MAX


def _until(row: Row) -> datetime:
    """Far behind, or ahead."""
    return NOW - timedelta(hours=1) if row.over else NOW + timedelta(minutes=1)


def _with(s: State, at: int, one: Server) -> State:
    return s._replace(servers=(*s.servers[:at], one, *s.servers[at + 1 :]))
