"""What a rule of fsck is: the invariant that it looks for, in words, and a function that names what breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from harness_pipelines.protocol.reverts import in_effect
from harness_pipelines.stores.books import Books, MoveRow, VersionRow
from harness_pipelines.stores.lake_survey import Survey
from harness_pipelines.stores.ports_log import TopicIdentity, Watermark

RECONCILED = "reconcile"  #: trigger of the moves that reconcile took over from the lake


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that a rule objects to. Two looks saw the same thing if *subject* is the same."""

    subject: str  #: which row, file or partition; it holds no number that changes while a table is at work
    detail: str  #: what was expected and what is there
    hint: bool = False  #: worth a look, but no invariant is broken


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSeen:
    """The topic as it is now."""

    identity: TopicIdentity
    marks: Mapping[int, Watermark]


@dataclass(kw_only=True)
class Look:
    """One look at one table: the ledger at one instant, then the lake and the log. What is ``None`` was not reached."""

    books: Books
    survey: Survey | None
    log: LogSeen | None
    log_trouble: str | None = None  #: why the topic is not what the table was made from

    @cached_property
    def head(self) -> VersionRow | None:
        return self.books.versions[-1] if self.books.versions else None

    @cached_property
    def tier_moves(self) -> list[MoveRow]:
        """Committed tier moves whose rows are in the head: those of versions that a revert undid are not."""
        known: dict[int, int | None] = {v.version: v.revert_of for v in self.books.versions}
        if not known:
            return []
        # A version whose row is gone is another rule's finding; here it counts as one that was not undone.
        every = dict.fromkeys(range(1, max(known) + 1)) | known
        kept = in_effect(every, max(known))
        named = {v.move_id: v.version for v in self.books.versions}
        tier = [m for m in self.books.moves if _published(m) and m.stage == "tier"]
        undone = {m.move_id for m in tier if named.get(m.move_id, adopted_in(m)) not in {*kept, None}}
        return [m for m in tier if m.move_id not in undone]

    @cached_property
    def ingest_moves(self) -> list[MoveRow]:
        return [m for m in self.books.moves if _published(m) and m.stage == "ingest"]

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


Check = Callable[[Look], Iterable[Found]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A named check of one invariant."""

    invariant: str  #: S1 .. S37, L1 .. L10 of the design
    title: str
    check: Check = field(repr=False)
    needs: frozenset[str] = frozenset()  #: lake, log: what the rule cannot do without

    def missing(self, look: Look) -> str | None:
        """Which of its needs this look does not have."""
        has = {"lake": look.survey is not None, "log": look.log is not None or look.log_trouble is not None}
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
