"""Named snapshots: created, read and dropped while tables move on, expire trims, and files that nobody names go.

The transactions of the three are taken apart (lock, look, commit); that of trim is one step, as it holds its lock
alone, and so are commits of ingest, tier and compaction. Expire asks what is reached in three statements, and deletes
later.
Version v of a table has the metadata file -v, and the data file v if it wrote one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol.reading.reads import Cut, cut_of_version
from harness_pipelines.protocol.segments import HasMaxHi
from harness_pipelines.protocol.versions import reached_versions
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import Published
from harness_pipelines_tests.model.explorer import Step

IDLE, LISTED, LOCKED, CLEAN, LOOKED, READING, DONE = "idle", "listed", "locked", "clean", "looked", "reading", "done"
ALIVE, ENDED = "alive", "ended"
Names = tuple[int, ...]


class Pin(NamedTuple):
    """What a snapshot pins of one table."""

    table: int
    version: int
    buffer_hi: int


Pins = tuple[Pin, ...]


class Table(NamedTuple):
    buffer_hi: int
    dropped: int  #: the buffer has nothing below
    versions: tuple[Published, ...]
    retained_from: int
    stored: Names  #: data and metadata files that exist


class Creator(NamedTuple):
    pc: str = IDLE
    tables: Names = ()
    pins: Pins = ()  #: not visible to others before the commit
    early: Pins = ()  #: what a mutant read before its statement


class Dropper(NamedTuple):
    pc: str = IDLE
    tables: Names = ()  #: of which it has the trim locks


class Reader(NamedTuple):
    """A reader of a snapshot, and what its plan names."""

    pc: str = IDLE
    pin: Pin = Pin(0, 0, 0)
    lease: str = ""
    renewing: bool = False  #: a renewal that has begun, and that others do not see yet
    names: Names = ()
    high: int = 0  #: it gets the records below
    needs_buffer_from: int = -1
    answered_by: int = 0  #: the later version that has what was buffered then


class Look(NamedTuple):
    """What expire has read of one table so far, before it deletes."""

    table: int
    candidates: Names
    retained_from: int
    leased: Names
    named: Pins | None = None
    going: Names | None = None


class State(NamedTuple):
    tables: tuple[Table, ...]
    pins: Pins  #: of the snapshot, () while there is none
    creator: Creator
    droppers: tuple[Dropper, ...]
    reader: Reader
    look: Look | tuple[()]
    creates: int
    compactions: int
    reverts: int
    renewals: int
    ends: int  #: leases that may still end


def _pinned(pins: Pins, table: int) -> tuple[tuple[int, Names], ...]:
    return tuple((pin.version, (pin.buffer_hi,)) for pin in pins if pin.table == table)


@cache
def _reached(
    rows: tuple[Published, ...], retained_from: int, leased: Names, named: tuple[tuple[int, Names], ...]
) -> Names:
    pinned = build.pinned(rows, named)
    known = build.versions(rows)
    found = reached_versions(known, retained_from=retained_from, leased=leased, bases=(), snapshots=pinned)
    return tuple(sorted({n for v in found for n in (-v.version, *rows[v.version - 1].files)}))


@cache
def _plan(rows: tuple[Published, ...], pin: Pin) -> Reader:
    """What a reader of the snapshot opens."""
    old = build.pinned(rows, ((pin.version, (pin.buffer_hi,)),))[0]
    cut: Cut[HasMaxHi] = cut_of_version(old, build.versions(rows)[pin.version :], ())
    bounds, row = cut.bounds[0], rows[pin.version - 1]
    names, answering = {-pin.version, *row.files}, cut.answered_by.version if cut.answered_by else 0
    if answering:
        names |= {-answering, *rows[answering - 1].files}
    buffered = cut.answered_by is None and bounds.buffer_hi > bounds.stream_hi
    return Reader(
        pc=LOOKED,
        pin=pin,
        names=tuple(sorted(names)),
        high=bounds.buffer_hi,
        needs_buffer_from=bounds.stream_hi if buffered else -1,
        answered_by=answering if answering > pin.version else 0,
    )


@dataclass(frozen=True, slots=True)
class Snapshots:
    """*records* in each of *tables*; *bad* names what is left out or done wrong (see `mutants`)."""

    records: int = 1
    tables: int = 1
    creates: int = 1
    droppers: int = 1
    compactions: int = 0
    reverts: int = 0
    renewals: int = 0
    ends: int = 0
    expires: bool = True
    bad: frozenset[str] = frozenset()
    name: str = "snapshots"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a snapshot pins what is only in the buffer": lambda s: any(
                pin.buffer_hi > s.tables[pin.table].versions[pin.version - 1].stream_hi[0] for pin in s.pins
            ),
            "a snapshot outlives the retention of its version": lambda s: any(
                pin.version < s.tables[pin.table].retained_from for pin in s.pins
            ),
            "a later version answers for what a snapshot had buffered": lambda s: (
                s.reader.pc == READING
                and s.reader.needs_buffer_from < 0
                and -s.reader.pin.version != min(s.reader.names)
            ),
            "that version is not retained any more": lambda s: (
                s.reader.pc == READING
                and s.reader.names[0] > -s.tables[0].retained_from
                and len(s.tables) == 1
                and s.reader.names[0] != -s.reader.pin.version
            ),
            "a table moves on while a snapshot is taken": lambda s: any(
                pin.version < len(s.tables[pin.table].versions) for pin in s.creator.pins
            ),
            "a snapshot covers several tables": lambda s: len(s.pins) > 1,
            "expire looks while a snapshot is taken": lambda s: bool(s.look) and s.creator.pc == LOOKED,
            "a drop waits for a reader's look": lambda s: (
                s.reader.pc == LOOKED and any(d.pc == LISTED for d in s.droppers)
            ),
            "a lease ends while it is renewed": lambda s: s.reader.lease == ENDED and s.reader.renewing,
            "a name is given again over other tables while somebody drops it": lambda s: any(
                d.pc == LISTED and {*d.tables} != {pin.table for pin in s.pins} and s.pins for d in s.droppers
            ),
            "a file that only a snapshot needed is deleted": lambda s: (
                not s.pins and not s.creates and any(-1 not in t.stored for t in s.tables)
            ),
        }

    def first(self) -> State:
        table = Table(0, 0, (Published((0,), (0,), 1),), 1, (-1,))
        return State(
            tables=(table,) * self.tables,
            pins=(),
            creator=Creator(),
            droppers=(Dropper(),) * self.droppers,
            reader=Reader(),
            look=(),
            creates=self.creates,
            compactions=self.compactions,
            reverts=self.reverts,
            renewals=self.renewals,
            ends=self.ends,
        )

    def canonical(self, state: State) -> State:
        return state._replace(droppers=tuple(sorted(state.droppers)))

    # -- safety ---------------------------------------------------------------------------------------------

    def broken(self, s: State) -> str | None:
        for pin in s.pins:
            table = s.tables[pin.table]
            plan = _plan(table.versions, pin)
            if gone := sorted({*plan.names} - {*table.stored}):
                return f"S10: file {gone[0]} is gone, the snapshot of version {pin.version} needs it"
            if 0 <= plan.needs_buffer_from < table.dropped:
                return f"S10: the buffered rows of the snapshot of version {pin.version} are gone"
        return self._broken_read(s) or self._broken_tables(s)

    @staticmethod
    def _broken_read(s: State) -> str | None:
        reader = s.reader
        if reader.pc == LOOKED and reader.high != reader.pin.buffer_hi:
            return f"S2: a reader of the snapshot below {reader.pin.buffer_hi} gets the records below {reader.high}"
        if reader.pc != READING or reader.lease != ALIVE:
            return None
        table = s.tables[reader.pin.table]
        if gone := sorted({*reader.names} - {*table.stored}):
            return f"S10: file {gone[0]} is gone, a live lease names it"
        if 0 <= reader.needs_buffer_from < table.dropped:
            return "S10: the buffered rows of a snapshot are gone under a live lease"
        if reader.pin not in s.pins:
            return f"S10: the snapshot of version {reader.pin.version} was dropped under a live lease"
        return None

    @staticmethod
    def _broken_tables(s: State) -> str | None:
        for table in s.tables:
            for number in range(table.retained_from, len(table.versions) + 1):
                if gone := sorted({-number, *table.versions[number - 1].files} - {*table.stored}):
                    return f"S10: file {gone[0]} is gone, version {number} is retained and needs it"
            if table.dropped > table.versions[-1].stream_hi[0]:
                return f"S13: the buffer's rows below {table.dropped} are gone, the lake does not have them"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        """A snapshot is of the instant of the statement that takes it, in all its tables."""
        if not step.what.startswith("snapshot.take"):
            return None
        taken, now = step.then.creator.pins, _now(before, before.creator.tables)
        return None if taken == now else f"S36: the cut {_shown(taken)} is not one of this instant, {_shown(now)}"

    # -- liveness -------------------------------------------------------------------------------------------

    def is_goal(self, s: State) -> bool:
        """All is in the lake, no snapshot is left, and nothing is kept for one."""
        working = s.creator.pc != IDLE or any(d.pc != IDLE for d in s.droppers) or s.reader.pc not in (IDLE, DONE)
        return not (working or s.pins or s.look) and all(self._settled(t) for t in s.tables)

    def _settled(self, table: Table) -> bool:
        if table.versions[-1].stream_hi[0] < self.records:
            return False
        is_clean = {*table.stored} == {*_reached(table.versions, len(table.versions), (), ())}
        return not self.expires or (is_clean and table.dropped == self.records)

    def show(self, s: State) -> str:
        tables = " ".join(self._shown_table(i, table) for i, table in enumerate(s.tables))
        lease = f" lease of v{s.reader.pin.version} {s.reader.lease}" if s.reader.lease else ""
        return f"{tables} snapshot {_shown(s.pins)}{lease}{', being renewed' if s.reader.renewing else ''}"

    def _shown_table(self, i: int, table: Table) -> str:
        told = f"t{i}:v{len(table.versions)} stream_hi {table.versions[-1].stream_hi[0]} buffer_hi {table.buffer_hi}"
        return f"{told} retained from v{table.retained_from} stored {list(table.stored)}" if self.expires else told

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        for i, table in enumerate(s.tables):
            yield from self._moves(s, i, table)
            if self.expires:
                yield from self._trim(s, i, table)
        yield from self._create(s)
        for i, dropper in enumerate(s.droppers):
            yield from self._drop(s, i, dropper)
        yield from self._read(s, s.reader)
        if self.expires:
            yield from self._delete(s)

    def _moves(self, s: State, i: int, table: Table) -> Iterator[Step[State]]:
        """Compaction stands for whatever takes files over: relayouts and newer delete files too."""
        head, number = table.versions[-1], len(table.versions) + 1
        if table.buffer_hi < self.records:
            yield Step("ingest", f"ingest.commit t{i}", _with(s, i, table._replace(buffer_hi=table.buffer_hi + 1)))
        if head.stream_hi[0] < table.buffer_hi:
            made = head._replace(
                stream_hi=(head.stream_hi[0] + 1,),
                buffer_hi=(table.buffer_hi,),
                snapshot=number,
                files=(*head.files, number),
                revert_of=0,
            )
            yield Step("tier", f"tier.publish t{i} v{number}", _published(s, i, made))
        if s.compactions and head.files:
            made = head._replace(buffer_hi=(table.buffer_hi,), snapshot=number, files=(number,), revert_of=0)
            then = _published(s, i, made)._replace(compactions=s.compactions - 1)
            yield Step("compact", f"compact.publish t{i} v{number}", then)
        for target in range(1, number - 1) if s.reverts and not self._locked(s, i) else ():
            plan = build.revert(table.versions, target, table.dropped, (), (), table.retained_from)
            if plan.refused is None:
                made = build.restoring(table.versions, target, table.buffer_hi)
                then = _published(s, i, made, writes=False)._replace(reverts=s.reverts - 1)
                yield Step("operator", f"revert.publish t{i} to v{target}", then)

    # -- a snapshot is created ------------------------------------------------------------------------------

    def _create(self, s: State) -> Iterator[Step[State]]:
        made = s.creator
        if made.pc == IDLE and s.creates and not s.pins:
            for tables in self._choices():
                if not any(self._alone(s, t) for t in tables):
                    early = _now(s, tables) if self.bad & {"two_statements", "table_by_table"} else ()
                    then = s._replace(creator=Creator(LOCKED, tables, early=early), creates=s.creates - 1)
                    yield Step("person", f"snapshot.lock {_tables(tables)} shared", then)
        elif made.pc == LOCKED:
            pins = self._taken(s, made)
            taken = made._replace(pc=LOOKED, pins=pins, early=())
            yield Step("person", f"snapshot.take {_shown(pins)}", s._replace(creator=taken))
        elif made.pc == LOOKED:
            yield Step("person", "snapshot.commit", s._replace(creator=Creator(), pins=made.pins))

    def _choices(self) -> tuple[Names, ...]:
        every = tuple(range(self.tables))
        return (every, *((t,) for t in every)) if self.tables > 1 else (every,)

    def _taken(self, s: State, made: Creator) -> Pins:
        """One statement: the head and the position of each table."""
        now = _now(s, made.tables)
        if "two_statements" in self.bad:
            return tuple(old._replace(buffer_hi=new.buffer_hi) for old, new in zip(made.early, now, strict=True))
        return (*made.early[:1], *now[1:]) if "table_by_table" in self.bad else now

    # -- and dropped ----------------------------------------------------------------------------------------

    def _drop(self, s: State, i: int, dropper: Dropper) -> Iterator[Step[State]]:
        if dropper.pc == IDLE and s.pins:
            tables = tuple(pin.table for pin in s.pins)
            yield _dropping(s, i, f"snapshot.list {_tables(tables)}", Dropper(LISTED, tables))
        elif dropper.pc == LISTED:
            if "drop_without_lock" not in self.bad and any(self._locked(s, t) for t in dropper.tables):
                return
            yield _dropping(s, i, f"snapshot.lock {_tables(dropper.tables)}", dropper._replace(pc=LOCKED))
        elif dropper.pc == LOCKED:
            if not self._renews_ended(s, dropper.tables):  # else it waits
                clean = _without_ended(s, dropper.tables)
                yield _dropping(clean, i, "snapshot.delete_leases", dropper._replace(pc=CLEAN))
        elif dropper.pc == CLEAN:
            yield _dropping(s, i, *self._dropped(s, dropper))

    def _dropped(self, s: State, dropper: Dropper) -> tuple[str, Dropper | None]:
        """What comes of it; ``None``: the snapshot goes. The locks go with the transaction."""
        counts = (ALIVE,) if "leases_by_the_clock" in self.bad else (ALIVE, ENDED)
        leased = s.reader.lease in counts and any(pin[:2] == s.reader.pin[:2] for pin in s.pins)
        if leased and "readers_ignored" not in self.bad:
            return "snapshot.drop SnapshotInUse", Dropper()
        unlocked = {pin.table for pin in s.pins} - {*dropper.tables}
        if not s.pins or (unlocked and "dropped_by_name" not in self.bad):
            return "snapshot.drop SnapshotUnknown", Dropper()
        return "snapshot.drop", None

    # -- a reader -------------------------------------------------------------------------------------------

    def _read(self, s: State, r: Reader) -> Iterator[Step[State]]:
        if r.pc == IDLE:
            for pin in s.pins:
                if not self._alone(s, pin.table):
                    yield Step("reader", f"read.look t{pin.table}", s._replace(reader=self._planned(s, pin)))
        elif r.pc == LOOKED:
            yield _reads(s, "read.commit lease", r._replace(pc=READING, lease=ALIVE))
        elif r.pc == READING:
            if r.lease == ALIVE and not r.renewing and s.renewals:
                yield _reads(s._replace(renewals=s.renewals - 1), "read.renew", r._replace(renewing=True))
            if r.lease == ALIVE and s.ends:
                yield Step("clock", "lease_ends", s._replace(reader=r._replace(lease=ENDED), ends=s.ends - 1))
            if r.renewing:
                yield _reads(s, "read.renewed", r._replace(lease=ALIVE, renewing=False))
            else:
                yield _reads(s, "read.finish" + ("" if r.lease == ALIVE else " LeaseEnded"), Reader(pc=DONE))

    def _planned(self, s: State, pin: Pin) -> Reader:
        """Under the lock, shared, until the lease is committed."""
        rows = s.tables[pin.table].versions
        if "bounds_of_version" in self.bad:
            return _plan(rows, pin._replace(buffer_hi=rows[pin.version - 1].buffer_hi[0]))._replace(pin=pin)
        return _plan(rows, pin)

    # -- expire ---------------------------------------------------------------------------------------------

    def _trim(self, s: State, i: int, table: Table) -> Iterator[Step[State]]:
        """One transaction under the lock. Retention may have ended for all but the head."""
        if self._locked(s, i) or self._renews_ended(s, (i,)):
            return
        clean = _without_ended(s, (i,))
        aged = len(table.versions)
        pins = () if "floor_ignores_names" in self.bad else _pinned(s.pins, i)
        leased = self._leased(clean, i)
        first = min(table.retained_from, *(version for version, _ in pins), aged)
        floor = build.floor(table.versions, aged, leased, aged, first=first, named=pins)[0]
        kept = max(build.kept_from(table.versions, aged), table.retained_from)
        trimmed = table._replace(retained_from=kept, dropped=max(floor, table.dropped))
        if trimmed != table or clean != s:
            yield Step("expire", f"expire.trim t{i} below {trimmed.dropped}", _with(clean, i, trimmed))

    def _delete(self, s: State) -> Iterator[Step[State]]:
        """What was condemned long ago goes, unless it is reached: three statements, no lock, the versions last."""
        look = s.look
        if not look:
            for i, table in enumerate(s.tables):
                begun = Look(i, table.stored, table.retained_from, self._leased(s, i))
                if self._going(s, begun._replace(named=s.pins)):  # else no run, as nothing would come of it
                    yield Step("expire", f"expire.look_reached t{i}", s._replace(look=begun))
        elif look.named is None:
            yield Step("expire", "expire.look_names", s._replace(look=look._replace(named=s.pins)))
        elif look.going is None:
            if "retained_read_last" in self.bad:
                look = look._replace(retained_from=s.tables[look.table].retained_from)
            yield Step("expire", "expire.recheck", s._replace(look=look._replace(going=self._going(s, look))))
        else:
            table = s.tables[look.table]
            left = tuple(n for n in table.stored if n not in look.going)
            then = _with(s, look.table, table._replace(stored=left))._replace(look=())
            yield Step("expire", f"expire.delete {list(look.going)}", then)

    # -- locks ----------------------------------------------------------------------------------------------

    def _shared(self, s: State, table: int) -> bool:
        """Does somebody hold the trim lock of a table, shared?"""
        creating = s.creator.pc in (LOCKED, LOOKED) and table in s.creator.tables
        creating = creating and "create_without_lock" not in self.bad
        return creating or (s.reader.pc == LOOKED and s.reader.pin.table == table)

    def _alone(self, s: State, table: int) -> bool:
        """Does somebody hold it alone?"""
        dropping = any(d.pc in (LOCKED, CLEAN) and table in d.tables for d in s.droppers)
        return dropping and "drop_without_lock" not in self.bad

    def _locked(self, s: State, table: int) -> bool:
        return self._shared(s, table) or self._alone(s, table)

    @staticmethod
    def _renews_ended(s: State, tables: Names) -> bool:
        """Does a renewal of a lease that has ended by now hold its row?"""
        return s.reader.renewing and s.reader.lease == ENDED and s.reader.pin.table in tables

    @staticmethod
    def _leased(s: State, i: int) -> Names:
        return (s.reader.pin.version,) if s.reader.lease and s.reader.pin.table == i else ()

    def _going(self, s: State, look: Look) -> Names:
        named = () if "names_not_reached" in self.bad else _pinned(look.named or (), look.table)
        if "pinned_with_own_bounds" in self.bad:
            rows = s.tables[look.table].versions
            named = tuple((version, rows[version - 1].buffer_hi) for version, _ in named)
        reached = _reached(s.tables[look.table].versions, look.retained_from, look.leased, named)
        return tuple(n for n in look.candidates if n not in reached)


# -- changes of state --------------------------------------------------------------------------------------


def _now(s: State, tables: Names) -> Pins:
    return tuple(Pin(t, len(s.tables[t].versions), s.tables[t].buffer_hi) for t in tables)


def _without_ended(s: State, tables: Names) -> State:
    """Leases of *tables* that have ended are deleted: whoever renews one finds none."""
    ended = s.reader.lease == ENDED and s.reader.pin.table in tables
    return s._replace(reader=Reader(pc=DONE)) if ended else s


def _with(s: State, i: int, table: Table) -> State:
    return s._replace(tables=(*s.tables[:i], table, *s.tables[i + 1 :]))


def _published(s: State, i: int, made: Published, *, writes: bool = True) -> State:
    table, number = s.tables[i], len(s.tables[i].versions) + 1
    stored = tuple(sorted((*table.stored, -number, *((number,) if writes else ()))))
    return _with(s, i, table._replace(versions=(*table.versions, made), stored=stored))


def _dropping(s: State, i: int, what: str, dropper: Dropper | None) -> Step[State]:
    then = s if dropper else s._replace(pins=())
    droppers = (*s.droppers[:i], dropper or Dropper(), *s.droppers[i + 1 :])
    return Step(f"dropper{i + 1}", what, then._replace(droppers=droppers))


def _reads(s: State, what: str, reader: Reader) -> Step[State]:
    return Step("reader", what, s._replace(reader=reader))


def _tables(tables: Names) -> str:
    return ", ".join(f"t{t}" for t in tables)


def _shown(pins: Pins) -> str:
    return ", ".join(f"t{pin.table}:v{pin.version} below {pin.buffer_hi}" for pin in pins) or "none"
