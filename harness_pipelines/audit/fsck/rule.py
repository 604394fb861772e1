"""A rule of fsck: an invariant in words, and a function that finds violations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.files import FileSeen, Survey
from harness_pipelines.ports.lake import MirrorState
from harness_pipelines.ports.source import TopicIdentity, Watermark
from harness_pipelines.ports.table_state import (
    Books,
    CheckpointRow,
    MoveRow,
    VersionRow,
    checkpoints_of,
    protocol_versions,
)
from harness_pipelines.protocol.changes.reverts import in_effect
from harness_pipelines.protocol.cut_checks import ListedCut
from harness_pipelines.protocol.lake.history import NamedMove
from harness_pipelines.protocol.lake.mirrors import KnownSnapshot, Seen
from harness_pipelines.protocol.versions import EFFECTS, Version, View, ViewName, answering_version

PUBLISHING = frozenset(map(str, EFFECTS))  #: stages whose moves publish files, each as a version
Taken = MoveRow | CheckpointRow  #: committed moves with their ranges: one, or a checkpoint of many
RECONCILED = "reconcile"  #: trigger of the moves that reconcile took over from the lake


@dataclass(frozen=True, slots=True)
class Objection:
    """One thing that a rule objects to. Two looks saw the same thing if *subject* is the same."""

    subject: str  #: which row, file or partition; it holds no number that changes while a table is at work
    detail: str  #: what was expected and what is there
    hint: bool = False  #: worth a look, but no invariant is broken


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSeen:
    """The topic as it is now."""

    identity: TopicIdentity
    marks: Mapping[int, Watermark]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSeen:
    """One view of the table: what ledger and catalog name, and what the warehouse has of it."""

    name: ViewName
    title: str  #: its name in the catalog, with the namespace
    pointer: str | None  #: metadata file that the catalog names; None: the catalog does not have it
    head: View | None  #: what the newest version pins
    survey: Survey

    @property
    def is_known(self) -> bool:
        """The head's manifests can all be read; if not, S10 says so, and counting would only say it again."""
        return self.head is not None and self.survey.files(self.head.metadata) is not None

    @property
    def files(self) -> list[FileSeen]:
        """Live files of the head, delete files too."""
        return (self.head and self.survey.files(self.head.metadata)) or []

    @property
    def data_files(self) -> list[FileSeen]:
        return [file for file in self.files if file.deletes is None]

    @property
    def live_files(self) -> list[FileSeen]:
        """Data files, each with as many rows as are not hidden."""
        hidden = {file.deletes_of: file.rows for file in self.files if file.deletes is not None}
        return [replace(file, rows=file.rows - hidden.get(file.path, 0)) for file in self.data_files]

    @property
    def rows(self) -> int:
        """Of the data files, less those that delete files hide."""
        return sum(file.rows if file.deletes is None else -file.rows for file in self.files)


def by_partition(files: Iterable[FileSeen]) -> Iterator[FileSeen]:
    """*files*, those that say what they have of each partition in the form of a file for each.

    Which of their rows are hidden is not known by partition: each of these has the fewest that it may.
    """
    for file in files:
        if file.extents is None:
            yield file
            continue
        runs = tuple(file.extents)
        hidden = sum(one.rows for one in runs) - file.rows
        for one in runs:
            rows = max(one.rows - hidden, 0)
            yield replace(file, partition=one.partition, low=one.low, high=one.high - 1, rows=rows, extents=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSeen:
    """One view in a foreign catalog, and what the ledger noted of it."""

    catalog: str
    view: ViewName
    noted: MirrorState  #: before the catalog was asked
    seen: Seen | None
    known: KnownSnapshot
    holds: frozenset[int]  #: versions that the ledger noted as possible there, before or after


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFilesSeen:
    """The folders of the cuts of a table."""

    missing: tuple[str, ...] = ()  #: that a cut names whose time has not ended, the first of them
    cut_off: tuple[str, ...] = ()  #: chunks of the newest cut that have another size than they were written with
    newest: ListedCut | HarnessError | None = None  #: what the newest cut says, if its time has not ended
    named: Mapping[int, ListedCut | HarnessError] = field(default_factory=dict)  #: what named ones say, by sequence
    bytes: int = 0  #: of all files
    named_bytes: int = 0  #: of those that such cuts name
    young_bytes: int = 0  #: of the others, of those that expire need not have removed yet


@dataclass(kw_only=True)
class Look:
    """One observation of a table: the ledger at one instant, then lake and log. ``None``: not reached."""

    books: Books
    surveys: Mapping[ViewName, Survey] | None
    log: LogSeen | None
    log_trouble: str | None = None  #: why the topic is not what the table was made from
    recalled: Mapping[str, tuple[int, str]] = field(default_factory=dict)  #: rows and digest of tables of recalled rows
    changed: Sequence[tuple[int, int]] = ()  #: partition, offset of records of quarantine that are not as written
    forgotten: Sequence[NamedMove] = ()  #: moves that the lake names and the ledger lost
    mirrors: Sequence[MirrorSeen] | None = ()  #: what foreign catalogs show; None: one of them does not answer
    cut_files: CutFilesSeen | None = CutFilesSeen()  #: None: the folders of cuts cannot be listed
    #: By partition the records of quarantine whose bytes are in the lake, from there; or why they cannot be read.
    moved: Mapping[int, NDArray[np.int64]] | HarnessError = field(default_factory=dict)

    @cached_property
    def head(self) -> VersionRow | None:
        return self.books.versions[-1] if self.books.versions else None

    @cached_property
    def views(self) -> dict[ViewName, ViewSeen]:
        """The views whose warehouse was reached."""
        books, head = self.books, {} if self.head is None else self.head.views
        return {
            name: ViewSeen(
                name=name,
                title=f"{books.namespace}.{books.views[name]}",
                pointer=books.pointers.get(name),
                head=head.get(name),
                survey=seen,
            )
            for name, seen in (self.surveys or {}).items()
        }

    @cached_property
    def named_versions(self) -> dict[int, VersionRow]:
        """The versions whose files must exist."""
        return named_versions(self.books)

    @cached_property
    def lineage(self) -> frozenset[int]:
        """The versions whose moves make up the head, without those that a revert undid."""
        known: dict[int, int | None] = {v.version: v.revert_of for v in self.books.versions}
        return in_effect(known, max(known, default=0))

    @cached_property
    def tier_moves(self) -> list[Taken]:
        """Those that brought the rows of the head's stream view."""
        return self._with_folded("tier", self.moves_in_effect)

    @cached_property
    def otree_moves(self) -> list[Taken]:
        """Those that made the head's batch view, relayouts too."""
        return self._with_folded("otree", self.moves_in_effect)

    @cached_property
    def compact_moves(self) -> list[Taken]:
        """Those that brought files of the head's stream view together."""
        return self._with_folded("compact", self.moves_in_effect)

    def _with_folded(self, stage: str, moves: Iterable[MoveRow]) -> list[Taken]:
        return [*checkpoints_of(self.books.checkpoints, stage), *(m for m in moves if m.stage == stage)]

    @cached_property
    def moves_in_effect(self) -> list[MoveRow]:
        """Committed moves whose files, or what became of them, are in the head."""
        named = {v.move_id: v.version for v in self.books.versions}
        found = [m for m in self.books.moves if _published(m) and m.stage in PUBLISHING]
        in_effect_now = {*self.lineage, None}
        return [m for m in found if named.get(m.move_id, adopted_in(m)) in in_effect_now]

    @cached_property
    def taken_over(self) -> frozenset[int]:
        """The versions that reconcile published: it took bounds from the lake, or started a new batch view."""
        return frozenset(v for m in self.books.moves if _published(m) and (v := adopted_in(m)) is not None)

    @cached_property
    def merged_from(self) -> VersionRow | None:
        """The version from which on otree moves account for the batch view: the first, or the last taken over."""
        return next(
            (v for v in reversed(self.books.versions) if v.version in {1, *self.taken_over} & self.lineage), None
        )

    @cached_property
    def ingest_moves(self) -> list[Taken]:
        return self._with_folded("ingest", filter(_published, self.books.moves))

    @cached_property
    def origin(self) -> dict[int, int]:
        """Per partition the offset from which on moves account for the lake: usually its start.

        The first version of a rebuilt ledger already has a lake, whose moves are forgotten.
        """
        starts = {p: row.lake_start for p, row in self.books.positions.items() if row.lake_start is not None}
        first = self.books.versions[:1]
        return starts | {p: cut.stream_hi for v in first if v.version == 1 for p, cut in v.bounds.items()}

    @property
    def accounted_for(self) -> bool:
        """Moves account for every row of the buffer: no partition lacks a position, none was taken over half read."""
        first = [cut for v in self.books.versions[:1] if v.version == 1 for cut in v.bounds.values()]
        half = any(row.stream_hi is None or row.buffer_hi is None for row in self.books.positions.values())
        return not half and all(cut.buffer_hi == cut.stream_hi for cut in first)


def adopted_in(move: MoveRow) -> int | None:
    """The version in which reconcile took *move* over from the lake; only the last of several is named by it."""
    return None if move.trigger != RECONCILED or move.base_version is None else move.base_version + 1


def _published(move: MoveRow) -> bool:
    return move.state == "COMMITTED"


def named_versions(books: Books) -> dict[int, VersionRow]:
    """The versions whose files must exist.

    They are retained, leased, in a named snapshot, base of an open move, shown by a foreign catalog or in a cut, or
    answer for one of these: for a snapshot up to the bounds that it was made at, which may lie above its version's.
    """
    bases = {m.base_version for m in books.moves if m.state == "PLANNED"} | books.mirrored
    named = {v.version: v for v in (*books.retained, *(v for v in books.versions if v.version in bases))}
    old = {v for v in named if v < books.retained_from}
    served = {*books.cuts.versions, *(cut.version for cut in books.named_cuts)}
    pinned = {v.version for v in books.snapshots}
    named |= {v.version: v for v in books.versions if v.version in pinned}
    if old or pinned:
        oldest = min(old | pinned)
        every = protocol_versions([v for v in books.versions if v.version >= oldest])
        asked = [*books.snapshots, *(v for v in every if v.version in old)]
        answers = {w.version for v in asked if (w := answering_version(v, _later(every, v))) is not None}
        named |= {v.version: v for v in books.versions if v.version in answers}
    # What answers for the rows above the version, a cut has in its own files.
    return named | {v.version: v for v in books.versions if v.version in served}


def _later(versions: Sequence[Version], than: Version) -> Iterator[Version]:
    """Those of *versions*, which are oldest first, from one on."""
    return islice(versions, bisect_left(versions, than.version, key=lambda v: v.version), None)


Check = Callable[[Look], Iterable[Objection]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A named check of one invariant."""

    invariant: str  #: S1 .. S39, L1 .. L10 of the design, F1 .. F9 of cuts
    title: str
    check: Check = field(repr=False)
    needs: frozenset[str] = frozenset()  #: lake, log, mirrors, cuts: what the rule cannot do without

    def missing(self, look: Look) -> str | None:
        """Which of its needs this look does not have."""
        has = {
            "lake": look.surveys is not None,
            "log": look.log is not None or look.log_trouble is not None,
            "mirrors": look.mirrors is not None,
            "cuts": look.cut_files is not None,
        }
        return next((need for need in sorted(self.needs) if not has[need]), None)


RULES: list[Rule] = []


def rule(invariant: str, title: str, *needs: str) -> Callable[[Check], Check]:
    """Register a check. Its docstring says what cannot be seen, if anything."""

    def register(check: Check) -> Check:
        RULES.append(Rule(invariant=invariant, title=title, check=check, needs=frozenset(needs)))
        return check

    return register


def spelled(offsets: Iterable[int]) -> str:
    """Numbers as runs: ``3-5, 9``."""
    runs: list[list[int]] = []
    for number in sorted(set(offsets)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
