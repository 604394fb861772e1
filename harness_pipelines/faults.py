"""Named crash points: no-ops until a test, or ``HARNESS_FAULT``, arms one.

``HARNESS_FAULT="tier.in_transaction=kill"`` kills the process with SIGKILL at that point, ``=stop`` stops it with
SIGSTOP (another process must continue it), ``=raise`` raises `FaultInjected`. The count in ``=kill@3`` means the third
time.
Idea: Neon's failpoints.

`POINTS` declares all of them with the recovery after a death. The crash matrix of the tests is generated from it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from harness_pipelines.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One declared place where a process may die."""

    stage: str
    where: str  #: what was done and what was not
    recovery: str  #: what the next holder of the claim does about it
    buffered: bool = False  #: reached only by tables with a buffer in Postgres
    engine: str = ""  #: reached only where this engine moves the rows


def _declared(stage: str, points: Iterable[tuple[str, str, str]], *, unbuffered: Iterable[str]) -> dict[str, Point]:
    """Return *points* as (name, where, recovery) with full names; *unbuffered* are also reached with ``buffer:
    none``."""
    without, of_arrow = set(unbuffered), {name for name, _, _ in OF_ARROW}
    return {
        f"{stage}.{name}": Point(
            stage=stage,
            where=where,
            recovery=recovery,
            buffered=name not in without,
            engine="arrow" if name in of_arrow else "",
        )
        for name, where, recovery in points
    }


BEFORE_CLAIM = ("before_claim", "nothing is held", "nothing to do: the claim is free")
AFTER_CLAIM = ("after_claim", "the claim is held, nothing was begun", "takes the claim when its lease has ended")
BEFORE_RELEASE = (
    "before_release",
    "the work is done, the claim is not released",
    "takes the claim when its lease has ended; does not repeat the work",
)
#: Of a move whose files the worker itself writes; Spark does both in one step, on its server.
OF_ARROW = (
    (
        "during_writing",
        "Arrow has written a file, no snapshot names it",
        "takes the next attempt on its own branch; the file is an orphan",
    ),
    (
        "before_naming",
        "Arrow has written all files and the metadata that names them, the catalog names the metadata before",
        "takes the next attempt on its own branch; files and metadata are orphans",
    ),
)
_INGEST = (
    BEFORE_CLAIM,
    AFTER_CLAIM,
    ("after_plan", "records were polled, none was decoded", "polls again from the buffer's bound"),
    ("before_lock", "a unit is decoded, its transaction has not begun", "polls again from the buffer's bound"),
    (
        "in_transaction",
        "rows, bounds and the fence are written, the COMMIT was not sent",
        "polls again from the buffer's bound: Postgres has rolled the unit back",
    ),
    (
        "after_commit",
        "the COMMIT took effect, the worker does not know",
        "continues from the bound in the ledger",
    ),
    BEFORE_RELEASE,
)
_TIER = (
    BEFORE_CLAIM,
    AFTER_CLAIM,
    ("after_plan", "the move is recorded, nothing is staged", "takes the move's next attempt: same range, same base"),
    ("during_files", "the attempt's branch is made, nothing is written", "takes the next attempt on its own branch"),
    *OF_ARROW,
    ("after_files", "the files are on the branch", "takes the next attempt; nobody reads the old branch"),
    ("before_lock", "the new metadata is written, no lock is held", "takes the next attempt; the file is an orphan"),
    (
        "in_transaction",
        "pointer, bounds, version and the fence are written, the COMMIT was not sent",
        "takes the next attempt: Postgres has rolled the publish back",
    ),
    ("after_commit", "the version is published, the worker does not know", "finds no open move, plans from the bound"),
    BEFORE_RELEASE,
)
_OTREE = (
    BEFORE_CLAIM,
    AFTER_CLAIM,
    ("after_plan", "the move is recorded, nothing is staged", "takes the move's next attempt: same range, same base"),
    ("during_files", "the attempt's branch is made, nothing is written", "takes the next attempt on its own branch"),
    *OF_ARROW,
    ("after_files", "the files are on the branch", "takes the next attempt; nobody reads the old branch"),
    ("before_lock", "the new metadata is written, no lock is held", "takes the next attempt; the file is an orphan"),
    (
        "in_transaction",
        "pointer, bound, version, layout and the fence are written, the COMMIT was not sent",
        "takes the next attempt: Postgres has rolled the publish back",
    ),
    (
        "after_commit",
        "the version is published, the worker does not know",
        "finds no open move, checks for remaining work",
    ),
    BEFORE_RELEASE,
)
_COMPACT = (
    BEFORE_CLAIM,
    AFTER_CLAIM,
    ("after_plan", "the move is recorded, nothing is staged", "takes the move's next attempt: same base, same files"),
    ("during_files", "the attempt's branch is made, nothing is written", "takes the next attempt on its own branch"),
    *OF_ARROW,
    ("after_files", "the files are on the branch", "takes the next attempt; nobody reads the old branch"),
    ("before_lock", "the new metadata is written, no lock is held", "takes the next attempt; the file is an orphan"),
    (
        "in_transaction",
        "pointer, version and the fence are written, the COMMIT was not sent",
        "takes the next attempt: Postgres has rolled the publish back",
    ),
    (
        "after_commit",
        "the version is published, the worker does not know",
        "finds no open move, checks for remaining work",
    ),
    BEFORE_RELEASE,
)
_EXPIRE = (
    BEFORE_CLAIM,
    AFTER_CLAIM,
    (
        "in_drop",
        "a retired segment is dropped, the COMMIT was not sent",
        "drops it again: Postgres has rolled the drop back",
    ),
    ("before_trim", "segments that were retired are dropped, nothing new is decided", "decides again"),
    (
        "in_transaction",
        "the trim floor, retired segments and the fence are written, the COMMIT was not sent",
        "decides again: Postgres has rolled the decision back",
    ),
    (
        "after_commit",
        "segments are retired, dead branches are still there",
        "removes the branches, deletes and condemns files",
    ),
    (
        "in_fold",
        "old history is in a checkpoint and removed, the COMMIT was not sent",
        "folds it again: Postgres has rolled the fold back",
    ),
    (
        "before_condemn",
        "dead branches are gone, no file is deleted or condemned",
        "deletes what was condemned, condemns files that nothing reaches",
    ),
    (
        "in_reach",
        "what new versions reach was read and is written, the COMMIT was not sent",
        "reads these versions again: Postgres has rolled it back",
    ),
    ("after_reach", "what new versions reach is kept, no file was listed", "continues with the next versions"),
    ("during_trim", "a condemned file is deleted, it is still listed as condemned", "deletes the rest of the list"),
    (
        "quarantine_in_transaction",
        "bytes of quarantined records are in files, pointer and records are written, the COMMIT was not sent",
        "moves them again: Postgres has rolled back and has the bytes; the files are orphans",
    ),
    ("quarantine_moved", "the bytes are only in the lake, the worker does not know", "finds them moved"),
    BEFORE_RELEASE,
)
_MIRROR = (
    BEFORE_CLAIM,
    AFTER_CLAIM,
    ("after_plan", "the version is noted as on its way, the server was not asked", "looks at the server, and sends it"),
    ("during_files", "one view is registered, the ledger has no note of it", "finds it by its snapshot"),
    ("after_commit", "the server took the commit, the worker does not know", "looks, and finds the version there"),
    (
        "in_transaction",
        "what the server shows is noted, the COMMIT was not sent",
        "looks at the server again: Postgres has rolled the note back",
    ),
    BEFORE_RELEASE,
)
_REVERT = (
    ("before_lock", "the new metadata is written, no lock is held", "continues as if no revert was requested"),
    (
        "in_transaction",
        "pointer, bounds, version and closed moves are written, the COMMIT was not sent",
        "continues as if no revert was requested: Postgres has rolled it back",
    ),
    (
        "after_commit",
        "the version is published, the caller does not know",
        "claims again, and moves to the lake again the records that the old version did not have",
    ),
)
_REPLAY = (
    (
        "before_lock",
        "rows and new metadata are written, no lock is held",
        "continues as if no replay was requested",
    ),
    (
        "in_transaction",
        "pointers, version, corrections and the records' state are written, the COMMIT was not sent",
        "continues as if no replay was requested: Postgres has rolled it back",
    ),
    ("after_commit", "the version is published, the caller does not know", "finds the records replayed"),
)
_REPAIR = (
    (
        "before_lock",
        "the file and new metadata are written, no lock is held",
        "repeats the command, which creates the file again",
    ),
    (
        "in_transaction",
        "pointer and version are written, the COMMIT was not sent",
        "repeats the command, which creates the file again: Postgres has rolled it back",
    ),
    ("after_commit", "the version is published, the caller does not know", "finds no such file in the table"),
)
_EVOLVE = (
    ("before_lock", "the new metadata is written, no lock is held", "continues as if no change was requested"),
    (
        "in_transaction",
        "schema, pointers, segments, positions and version are written, the COMMIT was not sent",
        "continues as if no change was requested: Postgres has rolled it back",
    ),
    ("after_commit", "the table has the new schema, the caller does not know", "finds the schema changed"),
)
_SNAPSHOT = (
    (
        "in_transaction",
        "the name and the versions that it keeps are written, the COMMIT was not sent",
        "creates it again: Postgres has rolled it back",
    ),
    ("after_commit", "the snapshot exists, the caller does not know", "finds a snapshot of this name"),
    (
        "drop_in_transaction",
        "the name is dropped, the COMMIT was not sent",
        "drops it again: Postgres has rolled the drop back",
    ),
    ("drop_after_commit", "the name is dropped, the caller does not know", "finds no snapshot of this name"),
)
_SERVE = (
    (
        "after_chunks",
        "new chunks are written, no other file of the cut",
        "makes the cut at the next load; expire removes the files as orphans",
    ),
    (
        "after_files",
        "all files of the cut are written, it is not published",
        "makes the cut at the next load; expire removes the files as orphans",
    ),
    ("after_commit", "the cut is published, no client got it", "finds the cut at the next load"),
)
_OF_EVERY_TABLE = {name for name, _, _ in (*_TIER, *_EXPIRE, *_MIRROR, *_REVERT)} - {"in_drop"}

#: Every crash point, by the name that arms it, in the order in which a stage reaches them.
POINTS: Mapping[str, Point] = {
    **_declared("ingest", _INGEST, unbuffered=()),
    **_declared("tier", _TIER, unbuffered=_OF_EVERY_TABLE),
    **_declared("otree", _OTREE, unbuffered=_OF_EVERY_TABLE),
    **_declared("compact", _COMPACT, unbuffered=_OF_EVERY_TABLE),
    **_declared("expire", _EXPIRE, unbuffered=_OF_EVERY_TABLE),
    **_declared("mirror", _MIRROR, unbuffered=_OF_EVERY_TABLE),
    **_declared("revert", _REVERT, unbuffered=_OF_EVERY_TABLE),
    **_declared("replay", _REPLAY, unbuffered=()),
    **_declared("repair", _REPAIR, unbuffered=()),
    **_declared("evolve", _EVOLVE, unbuffered={name for name, _, _ in _EVOLVE}),
    **_declared("snapshot", _SNAPSHOT, unbuffered={name for name, _, _ in _SNAPSHOT}),
    **_declared("serve", _SERVE, unbuffered={name for name, _, _ in _SERVE}),
}


class FaultInjected(BaseException):
    """Raised by an armed crash point; deliberately not an Exception, so that no handler catches it."""


@dataclass(slots=True)
class _Armed:
    act: Callable[[], None]
    wait_for: int


_armed: dict[str, _Armed] = {}
_counting = threading.Lock()


def arm(name: str, act: Callable[[], None], *, at: int = 1) -> None:
    """Run *act* the *at*-th time that the point *name* is reached (and never again).

    Raises: UsageError for a name that is not in `POINTS`.
    """
    if name not in POINTS:
        raise UsageError(f"no crash point is called {name!r}; the crash points are {', '.join(POINTS)}")
    _armed[name] = _Armed(act=act, wait_for=at)


def disarm() -> None:
    _armed.clear()


def point(name: str) -> None:
    """Mark the crash point *name*; `POINTS` declares its recovery."""
    if not _armed:
        return
    armed = _armed.get(name)
    if armed is None:
        return
    with _counting:
        armed.wait_for -= 1
        due = armed.wait_for == 0
    if due:
        armed.act()


def arm_from(environment: Mapping[str, str]) -> None:
    """Arm the crash points of ``HARNESS_FAULT``: ``point=action[@count]``, separated by commas.

    Raises: UsageError.
    """
    acts: dict[str, Callable[[], None]] = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "raise": _raise,
    }
    for wish in filter(None, environment.get("HARNESS_FAULT", "").split(",")):
        name, _, action = wish.partition("=")
        verb, _, count = action.partition("@")
        if verb not in acts or (count and not (count.isdecimal() and int(count))):
            raise UsageError(f"HARNESS_FAULT {wish!r}: expected point=kill|stop|raise[@count]")
        arm(name, acts[verb], at=int(count or 1))


def _raise() -> None:
    raise FaultInjected("a crash point was armed")
