"""Content of the status page: all tables from one statement, and details of the opened one as in `harness status`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.ledgers.postgres.views.status import Overview, RefusedShare
from harness_pipelines.ports.ledger import TableUnknown
from harness_pipelines.ports.serving.tokens import is_named
from harness_pipelines.ports.upkeep import TableWork
from harness_pipelines.protocol.topics import label
from harness_pipelines.secret import redact
from harness_pipelines.serve.answers import shown
from harness_pipelines.serve.page.log_ends import LogEnds
from harness_pipelines.serve.page.picture import Pictures
from harness_pipelines.show.status import TableSeen, look
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.ports.ledger import SickTable, TableRow

SHARED_S = 0.5  #: one answer serves all browsers for so long
UNREADABLE = "unreadable"
SLOW_S = 5.0  #: specs, counts of quarantined records and what stalls are asked for again
WAIT_S = 3.0


class LedgerSilent(TryAgain):
    """An earlier query of the ledger has not returned."""


class Facts:
    """Cached content of one installation, shared by all browsers. *globs* limit the tables, for all of them."""

    def __init__(self, harness: Harness, *, globs: Sequence[str] = ("*",)) -> None:
        self._harness, self._globs = harness, globs
        self._ends, self._pictures = LogEnds(harness), Pictures(harness.stores)
        self._lock = threading.Lock()
        self._since = 0.0  #: monotonic seconds, when the look under way began
        self._kept: dict[str, tuple[float, dict[str, Any]]] = {}
        self._names: frozenset[str] = frozenset()
        self._rows: dict[str, TableRow] = {}
        self._sick: list[SickTable] = []
        self._quarantined: Mapping[int, int] = {}
        self._stalled: set[str] = set()
        self._refusing: Mapping[int, RefusedShare] = {}
        self._slow_at = float("-inf")

    def close(self) -> None:
        self._ends.close()
        self._pictures.close()

    def status(self, opened: str | None, *, sees: Callable[[str], bool], drawn: str | None = None) -> dict[str, Any]:
        """Return the tables that the browser *sees*, and details of *opened*; of its layout only the key if the browser
        has *drawn* it already.

        A table that it does not see is like one that does not exist. Raises: LedgerSilent and the ledger's errors.
        """
        asked = opened if opened and self._shows(opened) and sees(opened) else None
        if not self._lock.acquire(timeout=WAIT_S):
            raise LedgerSilent(f"the ledger has not answered for {time.monotonic() - self._since:.0f} s")
        try:
            self._since = time.monotonic()
            found = self._shared("", lambda: self._all(asked))
            tables = [line for line in found["tables"] if self._shows(line["table"]) and sees(line["table"])]
            is_there = asked is not None and any(line["table"] == asked for line in tables)
            details = self._shared(asked, lambda: self._details(asked)) if asked and is_there else None
        finally:
            self._lock.release()
        if details and details.get("layout", {}).get("key") == drawn is not None:
            details = {**details, "layout": {"key": drawn}}
        return {**found, "tables": tables, "open": details or (_unknown(opened) if opened else None)}

    def _shows(self, name: str) -> bool:
        return is_named(name, self._globs)

    def _shared(self, name: str, make: Any) -> dict[str, Any]:
        at, found = self._kept.get(name, (float("-inf"), {}))
        if time.monotonic() - at > SHARED_S:
            found = make()
            self._kept = {
                kept: entry for kept, entry in self._kept.items() if kept == "" or entry[0] > self._since - 60
            }
            self._kept[name] = (time.monotonic(), found)
        return found

    def _all(self, opened: str | None) -> dict[str, Any]:
        works = self._harness.stores.watch.work(None)
        names = frozenset(work.name for work in works)
        if names != self._names or time.monotonic() - self._slow_at > SLOW_S:
            self._names = names
            found, self._sick = self._harness.stores.tables.survey()
            self._rows = {row.name: row for row in found}
            self._stalled = {one.table for one in self._harness.stores.stalls.now() if one.is_alarm}
            books = Overview(self._harness.stores.readers)
            self._quarantined, self._refusing = books.quarantined(), books.refusing()
            self._slow_at = time.monotonic()
        self._ends.look_at(self._rows.values(), opened=opened)
        lines = [
            self._line(work, self._rows[work.name], stalled=work.name in self._stalled)
            for work in works
            if work.name in self._rows
        ]
        lines += [_sick_line(one.name) for one in self._sick]
        return {
            "at": datetime.now(UTC),
            "kafka": self._ends.trouble,
            "tables": sorted(lines, key=lambda one: one["state"] not in (UNREADABLE, "stopped", "refusing")),
        }

    def _line(self, work: TableWork, row: TableRow, *, stalled: bool) -> dict[str, Any]:
        tail = self._ends.unread(row.table_id, work.buffer_at)
        late = work.buffered > 0 and work.since_tier_s > row.spec.freshness.lake
        refusing = self._refusing.get(row.table_id)
        return {
            "table": work.name,
            "state": _state(work, late=late, stalled=stalled, refusing=refusing is not None and refusing.is_much),
            "tail": tail,
            "buffer": work.buffered,
            "stream": work.unmerged if row.view_set.merged else None,
            "since_tier_s": round(work.since_tier_s, 1),
            "late": late,
            "busy": sorted(work.busy),
            "quarantined": self._quarantined.get(row.table_id, 0),
        }

    def _details(self, name: str) -> dict[str, Any]:
        try:
            table = self._harness.table(name)
        except TableUnknown:  # whose message names the others
            return _unknown(name)
        except HarnessError as error:
            if isinstance(error, TryAgain):
                raise
            return {"table": name, "trouble": redact(str(error))}
        seen = look(self._harness, table, self._ends)
        return {
            **seen.to_json(),
            "stopped": seen.stopped and redact(seen.stopped),
            "claims": [_claim(seen, claim) for claim in seen.claims],
            "open_moves": [_move(seen, move) for move in seen.open_moves],
            "age_s": (seen.at - seen.head.committed_at).total_seconds(),
            "bars": [
                {"partition": label(seen.topic, spans.partition), **{tier.name: spans.of(tier) for tier in spans.tiers}}
                for spans in seen.spans
            ],
            "notices": list(_notices(seen)),
            "layout": self._pictures.of(table.row, seen.head),
        }


def everything(_: str) -> bool:
    """What a browser sees that is on the server's own machine."""
    return True


def _unknown(name: str) -> dict[str, Any]:
    """Describe a table that is not there, or that may not be seen, alike."""
    return {"table": name, "trouble": f"There is no table {shown(name)}."}


def _sick_line(name: str) -> dict[str, Any]:
    """Describe a table whose ledger row cannot be read; opening it shows the reason."""
    unknown: dict[str, Any] = {
        "tail": None,
        "buffer": None,
        "stream": None,
        "since_tier_s": 0.0,
        "late": False,
        "busy": [],
    }
    return {"table": name, "state": UNREADABLE, **unknown, "quarantined": 0}


def _state(work: TableWork, *, late: bool, stalled: bool, refusing: bool) -> str:
    if work.stopped:
        return "stopped"
    if any(move["state"] == "QUARANTINED" for move in work.open.values()):
        return "stuck"
    if stalled:
        return "stalled"
    if any(move["attempt"] > 1 for move in work.open.values()):
        return "retrying"
    if refusing:
        return "refusing"
    if late:
        return "late"
    if work.busy:
        return "working"
    return "nobody works" if work.buffered or work.unmerged or work.unread else "idle"


def _claim(seen: TableSeen, claim: Mapping[str, Any]) -> dict[str, Any]:
    return {**claim, "left_s": round((claim["lease_until"] - seen.at).total_seconds(), 1)}


def _move(seen: TableSeen, move: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a move with its holder and its next step. (The ledger does not record when a worker retries.)"""
    holder = next(
        (c for c in seen.claims if c["alive"] and (c["stage"], c["shard"]) == (move["stage"], move["shard"])), None
    )
    if move["state"] == "QUARANTINED":
        coming = f"failed in every attempt: fix the cause, then run `harness run {seen.table} --retry-stuck`"
    elif holder:
        coming = "its holder works on it, or retries it after a pause"
    else:
        coming = f"waits for a worker: `harness run {seen.table}`"
    return {
        **move,
        "error": redact(str(move["error"])) if move["error"] else None,
        "holder": holder and holder["holder"],
        "left_s": holder and _claim(seen, holder)["left_s"],
        "age_s": round((seen.at - move["planned_at"]).total_seconds(), 1),
        "coming": coming,
    }


def _notices(seen: TableSeen) -> Iterator[dict[str, str]]:
    """Return the warnings of a table with their remedies. Text between backquotes is a command."""
    if seen.stopped:
        yield {"kind": "bad", "text": f"stopped: {redact(seen.stopped)}", "way": seen.way_on}
    for bad in filter(None, (*map(redact, seen.stalled), seen.paused, seen.filling)):
        yield {"kind": "bad", "text": bad, "way": ""}
    for undelivered in seen.undelivered:
        yield {"kind": "warn", "text": f"events are not delivered: {redact(undelivered)}", "way": ""}
    for held in seen.behind:
        way = "end the producer's transaction; `kafka-transactions.sh find-hanging` lists it"
        yield {"kind": "warn", "text": held, "way": way}
    for ahead in seen.ahead:
        yield {"kind": "bad", "text": ahead, "way": f"`harness reconcile {seen.table} --yes`"}
    for late in seen.late:
        yield {"kind": "warn", "text": f"later than the spec's objective: {late}", "way": ""}
    if seen.trouble:
        yield {"kind": "warn", "text": f"the end of the log is unknown: {redact(seen.trouble)}", "way": ""}
    if seen.refuses_much:
        way = f"`harness quarantine list {seen.table}`"
        yield {"kind": "warn", "text": f"refusing: {seen.refusing}", "way": way}
    if seen.counts.quarantined:
        way = f"`harness quarantine list {seen.table}`"
        yield {"kind": "warn", "text": f"in quarantine: {quantity(seen.counts.quarantined, 'record')}", "way": way}
    if any(seen.lag.values()) and not any(claim["alive"] for claim in seen.claims):
        yield {"kind": "info", "text": "no worker runs it", "way": f"`harness run {seen.table}`"}
    for request in seen.asked:
        wanted = "to release what is recalled" if request.where is None else f"to recall {request.where}"
        yield {"kind": "info", "text": f"request {request.recall_id} {wanted} waits", "way": ""}
