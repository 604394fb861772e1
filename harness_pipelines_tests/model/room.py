"""Ingest at the limits of the buffer, beside tier, which moves rows, and expire, which gives segments back.

Tables share one server. A row takes one unit of the disk until its segment is dropped, which happens to whole segments
that were closed, moved and retired. Ingest decides by sizes that it read some rows ago, as the rules of
`harness_pipelines.protocol.pressure` say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness_pipelines.protocol.pressure import LimitName, fills, full
from harness_pipelines_tests.model.explorer import Step

UNSEEN_MAX = 1  #: rows that are taken between two looks at the sizes


class Piece(NamedTuple):
    """A segment."""

    rows: int
    moved: int  #: of these rows, that tier has put into the lake
    state: str  #: "open", "closed", "retired"


class Table(NamedTuple):
    unread: int  #: records that only the log has
    pieces: tuple[Piece, ...]  #: the last one is open
    paused_by: LimitName | None

    @property
    def is_moved(self) -> bool:
        return all(piece.moved == piece.rows for piece in self.pieces)


class State(NamedTuple):
    tables: tuple[Table, ...]
    seen: tuple[int, ...]  #: rows of each table, when ingest looked last
    unseen: int  #: rows that were taken since


@dataclass(frozen=True, slots=True)
class Room:
    """Tables with *unread* records each; *bad* names what is left out or done wrong (`mutants`)."""

    unread: tuple[int, ...] = (5,)
    table_max: int | None = 3
    server_max: int = 9
    bad: frozenset[str] = frozenset()
    name: str = "room: the limit of a table"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "ingest pauses": lambda s: any(table.paused_by for table in s.tables),
            "ingest pauses beside rows that are all in the lake": lambda s: any(
                table.paused_by is not None and table.is_moved for table in s.tables
            ),
            "a paused table has a segment that waits to be dropped": lambda s: any(
                table.paused_by is not None and any(piece.state == "retired" for piece in table.pieces)
                for table in s.tables
            ),
            "everything was taken and given back": lambda s: self.is_goal(s) and sum(_counted(s)) == 0,
        }

    def first(self) -> State:
        tables = tuple(Table(unread, (Piece(0, 0, "open"),), None) for unread in self.unread)
        return State(tables, (0,) * len(tables), 0)

    def canonical(self, state: State) -> State:
        return state

    def broken(self, s: State) -> str | None:
        """Between two looks each limit may be passed by what is taken there, and by no more."""
        rows = _counted(s)
        most = max(rows) if self.table_max is not None else 0
        if most > (self.table_max or 0) - 1 + UNSEEN_MAX:
            return f"room: a table takes {most} of {self.table_max}"
        if sum(rows) > self.server_max - 1 + UNSEEN_MAX:
            return f"room: the tables take {sum(rows)} of {self.server_max}"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        return None

    def is_goal(self, s: State) -> bool:
        """All records of all tables are in the lake."""
        return all(not table.unread and table.is_moved for table in s.tables)

    def show(self, s: State) -> str:
        return "; ".join(
            f"{t.unread} unread, {[tuple(p) for p in t.pieces]}, paused by {t.paused_by}" for t in s.tables
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        for at, table in enumerate(s.tables):
            if table.unread:
                yield from self._ingest(s, at, table)
            yield from self._tier(s, at, table)
            yield from self._expire(s, at, table)

    def _ingest(self, s: State, at: int, table: Table) -> Iterator[Step[State]]:
        if s.unseen >= UNSEEN_MAX and "looks_once" not in self.bad:
            yield Step("ingest", "room.look", s._replace(seen=self._sizes(s), unseen=0))
            return
        yield Step("ingest", "room.look", s._replace(seen=self._sizes(s), unseen=0))
        known = fills(of_table=s.seen[at], of_server=sum(s.seen), table_max=self.table_max, server_max=self.server_max)
        held = full(known, paused_by=table.paused_by)
        if held is None and table.paused_by is not None:
            yield Step("ingest", "room.resume", _with(s, at, table._replace(paused_by=None)))
        elif held is None:
            taken = table.pieces[-1]._replace(rows=table.pieces[-1].rows + 1)
            then = table._replace(unread=table.unread - 1, pieces=(*table.pieces[:-1], taken))
            yield Step("ingest", "room.take", _with(s, at, then)._replace(unseen=min(s.unseen + 1, UNSEEN_MAX)))
        elif table.paused_by != held.limit:
            kept = "pause_closes_nothing" in self.bad
            paused = (table if kept else _closed(table))._replace(paused_by=held.limit)
            yield Step("ingest", "room.pause", _with(s, at, paused))

    def _sizes(self, s: State) -> tuple[int, ...]:
        return _counted(s, but="retired" if "retired_is_free" in self.bad else "")

    def _tier(self, s: State, at: int, table: Table) -> Iterator[Step[State]]:
        """One row, of the oldest segment that has one; behind a move a large or old segment is closed."""
        for number, piece in enumerate(table.pieces):
            if piece.moved < piece.rows:
                pieces = (*table.pieces[:number], piece._replace(moved=piece.moved + 1), *table.pieces[number + 1 :])
                moved = table._replace(pieces=pieces)
                yield Step("tier", "room.move", _with(s, at, moved))
                yield Step("tier", "room.move and close", _with(s, at, _closed(moved)))
                return

    def _expire(self, s: State, at: int, table: Table) -> Iterator[Step[State]]:
        if table.pieces[-1].rows and table.is_moved and "idle_stays_open" not in self.bad:
            yield Step("expire", "room.close", _with(s, at, _closed(table)))
        for number, piece in enumerate(table.pieces):
            before, behind = table.pieces[:number], table.pieces[number + 1 :]
            if piece.state == "closed" and piece.moved == piece.rows:
                retired = table._replace(pieces=(*before, piece._replace(state="retired"), *behind))
                yield Step("expire", "room.retire", _with(s, at, retired))
            if piece.state == "retired":
                yield Step("expire", "room.drop", _with(s, at, table._replace(pieces=(*before, *behind))))


def _counted(s: State, *, but: str = "") -> tuple[int, ...]:
    """Rows on the disk, by table."""
    return tuple(sum(piece.rows for piece in table.pieces if piece.state != but) for table in s.tables)


def _closed(table: Table) -> Table:
    """*table* with a fresh open segment, if the one that it has holds rows."""
    last = table.pieces[-1]
    if not last.rows:
        return table
    return table._replace(pieces=(*table.pieces[:-1], last._replace(state="closed"), Piece(0, 0, "open")))


def _with(s: State, at: int, table: Table) -> State:
    return s._replace(tables=(*s.tables[:at], table, *s.tables[at + 1 :]))
