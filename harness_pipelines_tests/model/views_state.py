"""What the models of two views know: files, pointers, versions, moves of three stages, workers and a reader.

Data files are named 0, 1, ... in the order in which they were written, metadata files below zero: -2n is the stream
view's and -2n-1 the batch view's with snapshot n. A view's snapshots are numbered by the versions that published them.
A delete file is named like a data file; its content begins with -1-n, where n is the data file of which it hides rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.reading.reads import Cut, cut_of_version
from harness_pipelines.protocol.segments import HasMaxHi
from harness_pipelines.protocol.versions import EFFECTS, ViewName, reached_versions
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import PLANNED, ClaimRow, MoveRow, Published

Names = tuple[int, ...]
Contents = tuple[Names, ...]  #: the offsets in each data file
Deletes = tuple[tuple[int, int], ...]  #: data files and their delete files, `NONE` where no row is hidden
NONE = -1
STREAM, BATCH = 0, 1  #: places of the views' pointers
TIER, OTREE, COMPACT = Stage.TIER.value, Stage.OTREE.value, Stage.COMPACT.value
IDLE, HELD, PLANNING, READY, READING, STAGED = "idle", "held", "planning", "ready", "reading", "staged"
BUILT, HOPELESS, UNKNOWN = "built", "hopeless", "unknown"
NOBODY, FOREIGN = -1, -1


class Pointer(NamedTuple):
    """What the catalog names for a view: main's snapshot, and the data files in it."""

    snapshot: int
    files: Names


class Worker(NamedTuple):
    """One worker of a stage: where it is, and what it believes."""

    stage: str
    pc: str = IDLE
    epoch: int = 0  #: of the claim that it thinks it holds
    move: int = -1
    mine: tuple[int | str, ...] = ()  #: the move's row as this attempt knows it
    plan: tuple[int, ...] = ()  #: (lo, hi, base) before the move is recorded
    staged: int = -1  #: the file that it wrote
    removed: Names = ()  #: the data files that the staged one stands for
    saw: Deletes = ()  #: the data files that it replaces or hides rows of, each with its delete file then
    hides: Names = ()  #: the delete files that it wrote
    built: Pointer = Pointer(0, ())  #: what it built on
    made: Names = ()  #: what it built
    copy: int = 0  #: the newest version when it built, as long as a mutant asks


class Reader(NamedTuple):
    """A reader of one version: what its plan names, and what it gets."""

    version: int = 0
    names: Names = ()
    seen: Names = ()
    needs_buffer_from: int = -1
    alive: bool = False
    done: bool = False


class Left(NamedTuple):
    """Faults and other events that may still happen."""

    crashes: int = 0
    ends: int = 0  #: leases that end under a holder that is only slow
    lost: int = 0
    reverts: int = 0
    foreign: int = 0
    reads: int = 0
    pointless: int = 0  #: relayouts that would not make the layout better
    names: int = 0  #: snapshots that are given a name


class State(NamedTuple):
    dropped: int  #: the buffer has nothing below
    versions: tuple[Published, ...]
    retained_from: int
    contents: Contents
    stored: Names  #: data and metadata files that exist
    pointers: tuple[Pointer, Pointer]
    moves: tuple[MoveRow, ...]
    claims: tuple[ClaimRow, ...]  #: of the workers' stages
    tiering: tuple[int, int] | tuple[()]  #: tier's open move, and the file that it staged
    workers: tuple[Worker, ...]
    reader: Reader
    stopped: bool  #: a foreign commit was met
    left: Left
    named: Names = ()  #: the version that a named snapshot pins, with its own bounds: all records are in the buffer

    @property
    def head(self) -> Published:
        return self.versions[-1]


# -- rows and names -----------------------------------------------------------------------------------------


def rows_in(files: Names, contents: Contents) -> Names:
    """The multiset of rows that *files* hold and do not hide, in order."""
    hidden = {(-1 - c[0], o) for n in files if (c := contents[n]) and c[0] < 0 for o in c[1:]}
    if not hidden:
        return tuple(sorted(o for n in files for o in contents[n]))
    data = data_files(files, contents)
    return tuple(sorted(o for n in data for o in contents[n] if (n, o) not in hidden))


def data_files(files: Names, contents: Contents) -> Names:
    return tuple(n for n in files if not contents[n] or contents[n][0] >= 0)


def delete_files(files: Names, contents: Contents) -> list[tuple[int, int]]:
    """The data files of which rows are hidden, each with the delete file that hides them."""
    return [(-1 - contents[n][0], n) for n in files if contents[n] and contents[n][0] < 0]


def folded(offsets: Iterable[int], keys: int) -> Names:
    """What the records at *offsets* leave: the newest of each key, unless it deletes. Without *keys* all of them."""
    if not keys:
        return tuple(sorted(offsets))
    newest = {offset % keys: offset for offset in sorted(offsets)}
    return tuple(sorted(offset for offset in newest.values() if not deletes(offset)))


def deletes(offset: int) -> bool:
    """Of keyed tables: whether the record at *offset* deletes its key."""
    return offset % 4 == 3


def names_of(row: Published, *, batch: bool = True) -> Names:
    """What a version pins: metadata and data files, of the stream view alone unless *batch*."""
    stream = (-2 * row.snapshot, *row.files)
    return (*stream, -2 * row.batch_snapshot - 1, *row.batch_files) if batch else stream


@cache
def reached(
    rows: tuple[Published, ...], retained_from: int, leased: Names, bases: Names, named: Names = (), *, batch: bool
) -> Names:
    """What the versions reach that can be read, or that leases, (as their base) open moves or snapshots name."""
    known = build.versions(rows)
    pinned = [known[number - 1] for number in named]
    found = reached_versions(known, retained_from=retained_from, leased=leased, bases=bases, snapshots=pinned)
    return tuple(sorted({name for v in found for name in names_of(rows[v.version - 1], batch=batch)}))


# -- reads --------------------------------------------------------------------------------------------------


@cache
def reading(rows: tuple[Published, ...], number: int, records: int, contents: Contents, bounds_of: int = 0) -> Reader:
    """The reader of version *number*: batch below ``batch_hi``, stream below ``stream_hi``, what was buffered above.

    *bounds_of* is the version whose bounds it goes by, *number* itself unless a mutant mixes them.
    """
    known = build.versions(rows)
    version, later = known[(bounds_of or number) - 1], known[bounds_of or number :]
    cut: Cut[HasMaxHi] = cut_of_version(version, later, ())
    row, bounds, names = rows[number - 1], cut.bounds[0], [*names_of(rows[number - 1])]
    below = [o for o in rows_in(row.batch_files, contents) if o < bounds.batch_hi]
    between = [o for o in rows_in(row.files, contents) if bounds.batch_hi <= o < bounds.stream_hi]
    above = list(range(bounds.stream_hi, bounds.buffer_hi))
    answered = cut.answered_by is not None and cut.answered_by.version != version.version
    if answered and cut.answered_by is not None:
        answering = rows[cut.answered_by.version - 1]
        names += names_of(answering, batch=False)
        held = rows_in(answering.files, contents)
        above = [o for o in held if bounds.stream_hi <= o < bounds.buffer_hi]
    return Reader(
        version=number,
        names=tuple(sorted(set(names))),
        seen=tuple(sorted([*below, *between, *above])),
        needs_buffer_from=bounds.stream_hi if above and not answered else -1,
        alive=True,
    )


# -- moves and changes of state -----------------------------------------------------------------------------


def view_of(stage: str) -> ViewName:
    return EFFECTS[Stage(stage)].view


def place_of(stage: str) -> int:
    """Where the pointer of the view is that a stage publishes to."""
    return STREAM if view_of(stage) == "stream" else BATCH


def open_move(s: State, stage: str) -> int | None:
    return next((i for i, m in enumerate(s.moves) if m.stage == stage and m.state == PLANNED), None)


def with_worker(s: State, i: int, worker: Worker) -> State:
    return s._replace(workers=(*s.workers[:i], worker, *s.workers[i + 1 :]))


def with_move(s: State, number: int, row: MoveRow) -> State:
    return s._replace(moves=(*s.moves[:number], row, *s.moves[number + 1 :]))


def written(s: State, rows: Names) -> State:
    """A data file more, which nothing names yet."""
    return stored(s, (len(s.contents),))._replace(contents=(*s.contents, rows))


def stored(s: State, names: Names) -> State:
    return s._replace(stored=tuple(sorted({*s.stored, *names})))


def pointed(s: State, place: int, pointer: Pointer) -> State:
    """The catalog's pointer of one view moves."""
    stream, batch = s.pointers
    return s._replace(pointers=(pointer, batch) if place == STREAM else (stream, pointer))


def published(s: State, made: Published) -> State:
    """A version more: the pointers of the views that it changed move with it."""
    then = stored(s, (-2 * made.snapshot, -2 * made.batch_snapshot - 1))._replace(versions=(*s.versions, made))
    if made.snapshot != s.head.snapshot:
        then = pointed(then, STREAM, Pointer(made.snapshot, made.files))
    if made.batch_snapshot != s.head.batch_snapshot:
        then = pointed(then, BATCH, Pointer(made.batch_snapshot, made.batch_files))
    return then


def with_files(made: Published, head: Published, *, snapshot: int, files: Names) -> Published:
    """*made* with *files* in the view whose snapshot is the new one, and the other view's of *head*."""
    return made._replace(
        files=files if made.snapshot == snapshot else head.files,
        batch_files=files if made.batch_snapshot == snapshot else head.batch_files,
    )


# -- what nobody can look at any more -----------------------------------------------------------------------

_NO_VERSION = Published((0,), (0,), 1, batch_hi=(0,), batch_snapshot=1)
_NO_MOVE = MoveRow(0, 0, 0, "COMMITTED", 0, 0)


def forgotten(s: State, *, files: bool, versions: bool) -> State:
    """*s* without the past that no step and no invariant depends on: states that differ only in it are one.

    *files*: nothing is ever removed, so that it need not be known what is stored. *versions*: nobody goes back to, or
    reads, a version that is retained.
    """
    working = [w for w in s.workers if w.pc != IDLE]
    open_moves = {i for i, m in enumerate(s.moves) if m.state == PLANNED}
    used = {len(s.versions), *(s.moves[i].base for i in open_moves), *(int(w.mine[2]) for w in working if w.mine)}
    used |= {w.plan[2] for w in working if w.plan} | ({s.reader.version} if s.reader.alive else set()) | {*s.named}
    # A later version may answer for what an older one had buffered.
    first = len(s.versions) if versions else min(s.retained_from, *used)
    rows = tuple(v if n >= first or n in used else _NO_VERSION for n, v in enumerate(s.versions, 1))
    named = {n for v in rows for n in (*v.files, *v.batch_files)} | {n for p in s.pointers for n in p.files}
    named |= {n for w in working for n in (w.staged, *w.hides, *w.removed, *w.made)} | {*s.tiering[1:]}
    known = open_moves | {w.move for w in working}
    last = max((i for i, m in enumerate(s.moves) if m.stage == OTREE), default=-1)
    moves = tuple(m if i in known else _turn(m) if i == last else _NO_MOVE for i, m in enumerate(s.moves))
    return s._replace(
        versions=rows,
        moves=moves,
        contents=tuple(offsets if n in named else () for n, offsets in enumerate(s.contents)),
        stored=() if files else s.stored,
    )


def _turn(row: MoveRow) -> MoveRow:
    """Of otree's last move it counts whether it was a relayout."""
    return row._replace(lo=min(row.lo, 0), hi=min(row.hi, 0), base=0, epoch=0)
