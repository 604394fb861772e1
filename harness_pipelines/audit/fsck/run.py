"""Run the rules of fsck; nothing is changed.

A table is looked at while others work on it. The ledger is read at one instant, the lake after it; whatever a rule
objects to is looked at again from the beginning, and only what both looks saw is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness_pipelines.audit.fsck import batch_view, buffer, columns, cuts, lake, ledger, mirrors, overlays, reach
from harness_pipelines.audit.fsck.rule import RULES, CutFilesSeen, LogSeen, Look, MirrorSeen, Objection, Rule
from harness_pipelines.drivers.certificates import CertificateRefused
from harness_pipelines.drivers.postgres import NotInitialised, PostgresLoginFailed, PostgresUnreachable, SegmentMissing
from harness_pipelines.errors import HarnessError, TryAgain, UsageError
from harness_pipelines.ports.access import (
    HasCutFiles,
    HasFiles,
    HasLakeBytes,
    HasLakeReads,
    HasLog,
    HasLostMoves,
    HasMirrors,
    HasOverlayRows,
    HasTables,
    HasTableStates,
)
from harness_pipelines.ports.errors import KafkaFailed, KafkaLoginFailed, TopicForbidden
from harness_pipelines.ports.files import Survey
from harness_pipelines.ports.lake import mirrored_views
from harness_pipelines.ports.ledger import TableDamaged
from harness_pipelines.ports.source import TopicIdentity, added_partitions
from harness_pipelines.ports.table_state import SHOWN_MAX, Books
from harness_pipelines.protocol.digest import as_first, row_digests, shown, total_digest
from harness_pipelines.protocol.lake.history import NamedMove
from harness_pipelines.protocol.versions import ViewName
from harness_pipelines.spec.locations import folder_of

__all__ = [
    "RULES",
    "Checked",
    "FsckReport",
    "Violation",
    "batch_view",
    "buffer",
    "columns",
    "cuts",
    "fsck",
    "lake",
    "ledger",
    "mirrors",
    "overlays",
    "reach",
]
Progress = Callable[[str, int, int], None]  #: table, files read, known number of files to read
#: Kafka does not say; anything else that it raises is about the topic.
_NO_ANSWER = (TryAgain, UsageError, KafkaLoginFailed, CertificateRefused, KafkaFailed, TopicForbidden)
#: Errors of reading rows that another writer wrote.
_NOT_UNDERSTOOD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


class Ports(
    HasCutFiles,
    HasFiles,
    HasLakeBytes,
    HasLakeReads,
    HasLog,
    HasLostMoves,
    HasMirrors,
    HasOverlayRows,
    HasTableStates,
    HasTables,
    Protocol,
):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """What breaks an invariant of a table."""

    invariant: str
    table: str
    detail: str

    def to_json(self) -> dict[str, str]:
        return {"invariant": self.invariant, "table": self.table, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One rule that was applied to one table; *why_not* when it could not be."""

    invariant: str
    table: str
    title: str
    why_not: str | None = None


@dataclass(slots=True, kw_only=True)
class FsckReport:
    """All findings of a run."""

    broken: list[Violation] = field(default_factory=list)
    hints: list[Violation] = field(default_factory=list)
    checked: list[Checked] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.broken

    @property
    def unchecked(self) -> list[Checked]:
        return [c for c in self.checked if c.why_not is not None]

    def to_json(self) -> dict[str, Any]:
        """The fixed form is ``ok`` and ``broken``; ``checked`` names the invariants, each once."""
        done = dict.fromkeys(c.invariant for c in self.checked if c.why_not is None)
        return {
            "ok": self.ok,
            "broken": [f.to_json() for f in self.broken],
            "hints": [f.to_json() for f in self.hints],
            "checked": list(done),
            "unchecked": [{"invariant": c.invariant, "table": c.table, "why": c.why_not} for c in self.unchecked],
        }


def fsck(
    stores: Ports, tables: Sequence[str] = (), *, progress: Progress | None = None, data: bool = True
) -> FsckReport:
    """Check the named tables, or all. Writes nothing but a lease on each while it is looked at.

    *data*: read the bytes of data files too, and compare them with their checksums.

    Raises: TableUnknown, PostgresUnreachable, PostgresLoginFailed, CertificateRefused, NotInitialised. A lake or a log
    that is away leaves rules unchecked.
    """
    known = stores.table_states
    names = [name for wanted in tables for name in known.names(wanted)] or known.names()
    looks = _Looks(stores, progress, data=data)
    report = FsckReport()
    for name in dict.fromkeys(names):
        try:
            _check(looks, name, report)
        except (PostgresUnreachable, PostgresLoginFailed, CertificateRefused, NotInitialised):
            raise
        except TryAgain as error:
            why = str(error)
            report.checked += [Checked(invariant=r.invariant, table=name, title=r.title, why_not=why) for r in RULES]
        except (HarnessError, *_NOT_UNDERSTOOD) as error:  # one sick table never stops another
            report.broken.append(Violation(invariant="S10", table=name, detail=_unreadable(error)))
    return report


def _unreadable(error: Exception) -> str:
    if isinstance(error, TableDamaged):
        return str(error)
    what = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
    return f"what the ledger says of the table cannot be understood, so the rest of it is not checked: {what}"


def _check(looks: _Looks, name: str, report: FsckReport) -> None:
    with looks.stores.table_states.held(name):
        look = looks.look(name)
        found = [(rule, one) for rule in RULES for one in _apply(rule, look)]
        if found:
            seen = {(rule.invariant, one.subject) for rule, one in found}
            look = looks.look(name)
            again = [(rule, one) for rule in RULES for one in _apply(rule, look)]
            found = [(rule, one) for rule, one in again if (rule.invariant, one.subject) in seen]
    for rule, one in found:
        where = report.hints if one.hint else report.broken
        where.append(Violation(invariant=rule.invariant, table=name, detail=one.detail))
    for rule in RULES:
        missing = rule.missing(look)
        why_not = looks.trouble.get((name, missing)) if missing else None
        report.checked.append(Checked(invariant=rule.invariant, table=name, title=rule.title, why_not=why_not))


def _apply(rule: Rule, look: Look) -> Iterable[Objection]:
    return () if rule.missing(look) else rule.check(look)


class _Looks:
    """Looks at tables; remembers what did not answer."""

    def __init__(self, stores: Ports, progress: Progress | None, *, data: bool) -> None:
        self.stores = stores
        self.trouble: dict[tuple[str, str], str] = {}  #: (table, what is away) -> why
        self._progress, self._data = progress, data
        self._kafka_away: str | None = None

    def look(self, name: str) -> Look:
        """The ledger first: what it names was written before, and is held by a lease."""
        books = self.stores.table_states.books(name)
        log, trouble = self._log(books)
        return Look(
            books=books,
            surveys=self._surveys(books),
            log=log,
            log_trouble=trouble,
            recalled=dict(self._recalled(books)),
            moved=self._moved(books),
            changed=list(islice(self.stores.table_states.changed(books.table_id), SHOWN_MAX)),
            forgotten=self._forgotten(books),
            mirrors=self._mirrors(books),
            cut_files=self._cut_files(books),
        )

    def _cut_files(self, books: Books) -> CutFilesSeen | None:
        if not books.cut_folders:
            return CutFilesSeen()
        try:
            return cuts.seen_in(books, self.stores)
        except (OSError, HarnessError) as error:
            self.trouble[books.name, "cuts"] = f"the folders of cuts cannot be listed: {error}"
            return None

    def _mirrors(self, books: Books) -> Sequence[MirrorSeen] | None:
        """What foreign catalogs show; None while one of them does not answer."""
        if not books.spec.catalogs:
            return ()
        table, known = self.stores.tables.table(books.name), self.stores.mirrors
        found: list[MirrorSeen] = []
        try:
            for catalog in table.spec.catalogs:
                noted = known.state(table, catalog.name)
                for view in mirrored_views(table, catalog) if noted.version is not None else ():
                    seen = self.stores.foreign_catalog(table, catalog).load(view)
                    after = known.state(table, catalog.name)  # what is sent is noted first
                    found.append(
                        MirrorSeen(
                            catalog=catalog.name,
                            view=view,
                            noted=noted,
                            seen=seen,
                            known=known.known(table, view, seen),
                            holds=frozenset({*noted.holds, *after.holds}),
                        )
                    )
        except HarnessError as error:
            self.trouble[books.name, "mirrors"] = str(error)
            return None
        return found

    def _forgotten(self, books: Books) -> Sequence[NamedMove]:
        try:
            return self.stores.lost_moves(self.stores.tables.table(books.name))
        except (HarnessError, OSError) as error:  # what cannot be read is the finding of other rules
            self.trouble.setdefault((books.name, "lake"), str(error))
            return ()

    def _moved(self, books: Books) -> Mapping[int, NDArray[np.int64]] | HarnessError:
        if not books.moved.offsets:
            return {}
        try:
            return self.stores.lake_bytes.stored(self.stores.tables.table(books.name), books.moved.offsets.keys())
        except HarnessError as error:
            return error

    def _recalled(self, books: Books) -> Iterator[tuple[str, tuple[int, str]]]:
        """Return the content of the tables of recalled rows. Another rule reports a missing or unreadable table."""

        there = {row.name for row in books.overlays if row.stored}
        named = {one.segment: one for version in books.retained for one in version.overlays}
        for name in sorted(named.keys() & there):
            then = self.stores.tables.table(books.name).at_schema(named[name].schema_version)
            try:
                rows = self.stores.overlay_rows(then.spec, then.overlaid([named[name]]), books.positions)
            except SegmentMissing:  # it was dropped since
                continue
            yield name, (rows.num_rows, shown(total_digest(row_digests(as_first(rows, then)))))

    def _surveys(self, books: Books) -> dict[ViewName, Survey] | None:
        try:
            return {view: self._survey(books, view) for view in books.views}
        except (OSError, UsageError) as error:
            self.trouble[books.name, "lake"] = f"the warehouse cannot be read: {error}"
            return None

    def _survey(self, books: Books, view: ViewName) -> Survey:
        progress = self._progress
        tell = (lambda done, total: progress(books.name, done, total)) if progress else None
        locations = lake.named_locations(books, view)
        head = books.versions[-1].views.get(view) if books.versions else None
        # A view that was begun again counts its snapshots from one again.
        in_one_line = len({folder_of(location) for location in locations}) <= 1
        return self.stores.lake_reads.survey(
            locations,
            newest=head.metadata if head else None,
            linear=in_one_line and all(v.revert_of is None for v in books.versions),
            data=self._data,
            progress=tell,
        )

    def _log(self, books: Books) -> tuple[LogSeen | None, str | None]:
        """The topic now, or why it is not the table's; both ``None`` while Kafka does not answer."""
        if self._kafka_away is not None:
            self.trouble[books.name, "log"] = self._kafka_away
            return None, None
        made_from = TopicIdentity(
            cluster_id=books.cluster_id, topic=books.topic, topic_id=books.topic_id, partitions=()
        )
        try:
            identity = self.stores.log.describe(books.topic)
            added_partitions(made_from, identity)
            marks = self.stores.log.watermarks(books.topic, books.positions)
        except _NO_ANSWER as error:
            self.trouble[books.name, "log"] = str(error)
            if isinstance(error, TryAgain | UsageError | KafkaLoginFailed | CertificateRefused):
                self._kafka_away = str(error)
            return None, None
        except HarnessError as error:
            return None, str(error)
        return LogSeen(identity=identity, marks=marks), None
