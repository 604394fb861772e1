"""Two workers of ingest that commit units of several tables in one transaction.

A worker polls all tables that it holds, and its transaction takes their positions one after the other, each under its
claim. What is refused, or waits for too long, ends the transaction, and the units are committed one by one then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.explorer import Step
from harness_pipelines_tests.model.ingest import _unit_refused

IDLE, GROUP, APART, UNKNOWN = "idle", "group", "apart", "unknown"
NOBODY, SCHEMA = -1, 1


class Unit(NamedTuple):
    """What a worker has in hand of one table."""

    table: int
    low: int
    epoch: int


class Worker(NamedTuple):
    pc: str = IDLE
    claims: tuple[int, ...] = ()  #: epoch of the claim that it believes to have, by table; 0: none
    units: tuple[Unit, ...] = ()  #: in the order in which they are locked
    locked: int = 0  #: how many units have their locks


class State(NamedTuple):
    buffer_hi: tuple[int, ...]  #: by table
    rows: tuple[tuple[int, ...], ...]  #: offsets that were committed, by table
    holders: tuple[tuple[int, int], ...]  #: worker and epoch of each claim
    workers: tuple[Worker, ...]
    pending: tuple[int, Worker] | tuple[()]  #: whose COMMIT is under way, without its client
    takeovers: int  #: that may still happen
    crashes: int
    lost: int


@dataclass(frozen=True, slots=True)
class Groups:
    """*tables* with *records* each; *bad* names what is left out or done wrong (`mutants`)."""

    tables: int = 2
    records: int = 1
    takeovers: int = 2
    crashes: int = 1
    lost: int = 1
    bad: frozenset[str] = frozenset()
    name: str = "groups: two tables"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "two transactions hold a table each": lambda s: all(w.pc == GROUP and w.locked for w in s.workers),
            "a unit of a transaction was taken over": lambda s: any(
                w.pc == GROUP and any(s.holders[u.table][1] != u.epoch for u in w.units) for w in s.workers
            ),
            "units are committed one by one": lambda s: any(w.pc == APART and len(w.units) > 1 for w in s.workers),
            "a COMMIT of several tables is under way without its client": lambda s: (
                bool(s.pending) and len(s.pending[1].units) > 1
            ),
        }

    def first(self) -> State:
        none = (0,) * self.tables
        return State(
            buffer_hi=none,
            rows=((),) * self.tables,
            holders=((NOBODY, 0),) * self.tables,
            workers=(Worker(claims=none), Worker(claims=none)),
            pending=(),
            takeovers=self.takeovers,
            crashes=self.crashes,
            lost=self.lost,
        )

    def canonical(self, state: State) -> State:
        return state

    def broken(self, s: State) -> str | None:
        for table, (rows, high) in enumerate(zip(s.rows, s.buffer_hi, strict=True)):
            if list(rows) != list(range(high)):
                return f"S1: table {table} has {list(rows)} of [0, {high})"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        if not step.what.startswith("ingest.commit"):
            return None
        i = int(step.who[1:]) - 1
        worker = before.pending[1] if before.pending and "late" in step.what else before.workers[i]
        units = worker.units[:1] if worker.pc == APART else worker.units
        if late := [u for u in units if before.holders[u.table][1] != u.epoch]:
            return (
                f"S5: epoch {late[0].epoch} of table {late[0].table} committed, {before.holders[late[0].table]} has it"
            )
        return None

    def is_goal(self, s: State) -> bool:
        return all(high == self.records for high in s.buffer_hi) and not s.pending

    def show(self, s: State) -> str:
        return f"buffer_hi {s.buffer_hi} claims {s.holders} " + " ".join(f"{w.pc}{list(w.units)}" for w in s.workers)

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        if s.pending:
            i, worker = s.pending
            yield Step(f"w{i + 1}", "ingest.commit late", _committed(s, worker.units)._replace(pending=()))
            yield Step("postgres", "roll_back", s._replace(pending=()))
        for i, worker in enumerate(s.workers):
            for what, then in self._worker(s, i, worker):
                yield Step(f"w{i + 1}", what, then)

    def _worker(self, s: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        if w.pc != IDLE and s.crashes:
            yield "crash", _with(s, i, Worker(claims=(0,) * self.tables))._replace(crashes=s.crashes - 1)
        match w.pc:
            case "idle":
                yield from self._taken_over(s, i, w)
                if units := self._polled(s, i, w):
                    yield "ingest.poll", _with(s, i, w._replace(pc=GROUP, units=units, locked=0))
            case "group" if w.locked < len(w.units):
                yield from self._locked(s, i, w)
            case "group":
                yield "ingest.commit together", _with(_committed(s, w.units), i, _idle(w))
                if s.lost and not s.pending:
                    unknown = _with(s, i, w._replace(pc=UNKNOWN))
                    yield "lose_answer", unknown._replace(pending=(i, w), lost=s.lost - 1)
            case "unknown" if not s.pending:
                again = w._replace(pc=APART) if "blind_retry" in self.bad else _idle(w)
                yield "ingest.refresh", _with(s, i, again)
            case "apart":
                yield from self._apart(s, i, w)

    def _taken_over(self, s: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        """Take a claim: this waits until no transaction has it locked."""
        for table, (holder, epoch) in enumerate(s.holders):
            taken = holder not in (i, NOBODY)
            if holder != i and (s.takeovers or not taken) and not _holders_of(s, table):
                claims = (*w.claims[:table], epoch + 1, *w.claims[table + 1 :])
                holders = (*s.holders[:table], (i, epoch + 1), *s.holders[table + 1 :])
                then = _with(s, i, w._replace(claims=claims))
                yield "ingest.take_claim", then._replace(holders=holders, takeovers=s.takeovers - taken)
            elif holder == i and w.claims[table] != epoch:  # after a crash it takes its place again
                yield (
                    "ingest.take_claim",
                    _with(s, i, w._replace(claims=(*w.claims[:table], epoch, *w.claims[table + 1 :]))),
                )

    def _polled(self, s: State, i: int, w: Worker) -> tuple[Unit, ...]:
        units = [
            Unit(table, s.buffer_hi[table], epoch)
            for table, epoch in enumerate(w.claims)
            if epoch and s.buffer_hi[table] < self.records
        ]
        return tuple(reversed(units) if "any_order" in self.bad and i else units)

    def _locked(self, s: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        """Lock the next table: its position and its claim; what does not fit ends the transaction."""
        unit = w.units[w.locked]
        apart = _with(s, i, w._replace(pc=APART, locked=0))
        if _holders_of(s, unit.table):
            if "waits_for_ever" not in self.bad:
                yield "ingest.wait_too_long", apart
            return
        unchecked = "checks_the_first" in self.bad and w.locked > 0
        if not unchecked and self._refused(s, i, unit):
            yield "ingest.write refused", apart
        else:
            yield "ingest.write", _with(s, i, w._replace(locked=w.locked + 1))

    def _apart(self, s: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        """The first unit that is left, in a separate transaction."""
        unit, left = w.units[0], w.units[1:]
        if _holders_of(s, unit.table):
            return
        rest = w._replace(units=left) if left else _idle(w)
        if self._refused(s, i, unit):
            claims = tuple(0 if t == unit.table else epoch for t, epoch in enumerate(w.claims))
            yield "ingest.write refused", _with(s, i, rest._replace(claims=claims))
        else:
            yield "ingest.commit alone", _with(_committed(s, [unit]), i, rest)

    def _refused(self, s: State, i: int, unit: Unit) -> bool:
        high = s.buffer_hi[unit.table]
        if "range_unchecked" not in self.bad and _unit_refused(unit.low, SCHEMA, high, SCHEMA):
            return True
        holder, epoch = s.holders[unit.table]
        return build.fenced_out(i, unit.epoch, build.ClaimRow(holder, epoch, True)) is not None


def _holders_of(s: State, table: int) -> bool:
    """Does a transaction hold the position and the claim of *table*?"""
    held = [u.table for w in s.workers if w.pc == GROUP for u in w.units[: w.locked]]
    return table in held or bool(s.pending and any(u.table == table for u in s.pending[1].units))


def _committed(s: State, units: tuple[Unit, ...] | list[Unit]) -> State:
    rows, high = list(s.rows), list(s.buffer_hi)
    for unit in units:
        rows[unit.table] = tuple(sorted((*rows[unit.table], unit.low)))
        high[unit.table] = max(high[unit.table], unit.low + 1)
    return s._replace(rows=tuple(rows), buffer_hi=tuple(high))


def _idle(w: Worker) -> Worker:
    return Worker(claims=w.claims)


def _with(s: State, i: int, worker: Worker) -> State:
    return s._replace(workers=(*s.workers[:i], worker, *s.workers[i + 1 :]))
