"""Positions of consumers beside the tables: their offsets, and the checkpoint of their results.

The rules are in the ledger's functions (migration 0013), which programs in other languages call too; here they are
called, and what they refuse gets its name. A commit pins, as a named snapshot does, a cut of each table with exactly
the records below its offsets.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import uuid4

import psycopg
from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.errors import HarnessError, TryAgain, UsageError
from harness_pipelines.ports.ledger import NotInTime, StateDraft, TableUnknown
from harness_pipelines.protocol.bounds import Vector, vector_from_json, vector_to_json
from harness_pipelines.protocol.claims import FencedOut
from harness_pipelines.protocol.reading.streams import StreamToken
from harness_pipelines.protocol.versions import VersionGone

NAME = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
LEASE = timedelta(seconds=60)
ASK_AGAIN_S = 0.05  #: while ingest is behind a reader of the log


class StateUnknown(HarnessError):
    """No state of that name, or none that was ever committed."""

    way_on = "`harness state list` shows those that there are"


class StateHeld(TryAgain):
    """Another consumer holds the state."""

    way_on = "end the other consumer, or wait until its hold is over"


#: What the ledger's functions refuse, by SQLSTATE.
_REFUSALS: Mapping[str, type[HarnessError]] = {
    "HP011": StateHeld,
    "HP012": FencedOut,
    "HP013": TableUnknown,
    "HP014": NotInTime,
    "HP015": VersionGone,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCommit:
    """A consumer's position: it has exactly the records of *sources* below their offsets."""

    name: str
    seq: int
    checkpoint: str  #: the consumer's own name of it
    payload: Any  #: the consumer's own
    sink: Any  #: version or snapshot of what the consumer wrote
    sources: Mapping[str, Mapping[int, int]]  #: table -> partition -> next offset; `Table.stream` begins there
    committed_at: datetime

    def to_json(self) -> dict[str, Any]:
        return {
            "seq": self.seq,
            "checkpoint": self.checkpoint,
            "payload": self.payload,
            "sink": self.sink,
            "sources": {table: vector_to_json(vector) for table, vector in sorted(self.sources.items())},
            "committed_at": self.committed_at.isoformat(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStatus:
    """A state, its holder, and the last commit."""

    name: str
    held_until: datetime | None  #: None: it is free
    last: StateCommit | None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "held_until": self.held_until and self.held_until.isoformat(),
            "last": self.last and self.last.to_json(),
        }


class States:
    """The states of one ledger."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def all(self) -> list[StateStatus]:
        """Every state, by name."""
        return [
            StateStatus(
                name=row["name"],
                held_until=row["lease_until"] if row["is_held"] else None,
                last=None if row["seq"] is None else _commit(row),
            )
            for row in self.database.rows("states/all")
        ]

    def status(self, name: str) -> StateStatus:
        """Raises: StateUnknown."""
        found = [one for one in self.all() if one.name == name]
        if not found:
            raise _unknown(name)
        return found[0]

    def last(self, name: str) -> StateCommit | None:
        """What was committed last; None: nothing yet."""
        found = self.database.rows("states/commits", {"name": name, "limit": 1})
        return _commit(found[0]) if found else None

    def commits(self, name: str, *, limit: int = 20) -> list[StateCommit]:
        """The newest commits first. Raises: StateUnknown when there is none."""
        found = self.database.rows("states/commits", {"name": name, "limit": limit})
        if not found:
            raise _unknown(name)
        return [_commit(row) for row in found]

    def hold(self, name: str, *, lease: timedelta = LEASE) -> StateClaim:
        """Hold the state for commits during the block: ``with states.hold(...) as held``. Or `StateClaim.take` it.

        The block raises: StateHeld while another one holds it. Raises: UsageError.
        """
        if not NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} names no state; write a-z, 0-9, `_`, `-` and `.`, beginning with a letter, 63 at most"
            )
        return StateClaim(self, name=name, holder=str(uuid4()), lease=lease)

    def epoch(self, name: str) -> int:
        """The number of its newest hold. Raises: StateUnknown."""
        found = [row["epoch"] for row in self.database.rows("states/all") if row["name"] == name]
        if not found:
            raise _unknown(name)
        return int(found[0])

    def drop(self, name: str) -> None:
        """Forget a state and what it pins. Raises: StateUnknown, StateHeld."""
        if not self.call("states/drop", name=name)["dropped"]:
            raise _unknown(name)

    def failed(self, name: str, error: str) -> None:
        """Keep why the last delivery to a subscriber failed, for its status; the next delivery clears it."""
        self.call("states/failed", name=name, error=error)

    def call(self, statement: str, **parameters: Any) -> Mapping[str, Any]:
        """One row of one of the ledger's functions, in its own transaction; its refusals by name."""
        with self.database.transaction() as connection:
            return _called(connection, statement, parameters)


def commit_within(connection: Connection, draft: StateDraft) -> None:
    """Commit *draft* in the caller's transaction. Raises: as `StateClaim.commit`."""
    _called(connection, "states/commit", draft.parameters)


def _called(connection: Connection, statement: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        row = connection.execute(sql(statement), parameters).fetchone()
    except psycopg.Error as error:
        refusal = _REFUSALS.get(error.sqlstate or "")
        if refusal is None:
            raise
        raise refusal(error.diag.message_primary or str(error)) from error
    assert row is not None
    return row


class StateClaim:
    """The right to commit to a state until the lease ends; every commit lengthens it."""

    def __init__(self, states: States, *, name: str, holder: str, lease: timedelta) -> None:
        self._states, self._lease = states, lease
        self.name = name
        self._key: dict[str, Any] = {"name": name, "holder": holder, "epoch": None}

    def commit(
        self,
        sources: Mapping[str, Vector | str],
        *,
        checkpoint: str,
        payload: Any = None,
        sink: Any = None,
        timeout_s: float = 30.0,
    ) -> int:
        """Record that the state has all of each table below its offsets, or behind a stream's token; returns a number.

        A partition that is not named is at its start. Offsets may be lower than those of the commit before: a consumer
        that went back to an older checkpoint commits that. A stream reads Kafka, so it may be ahead of ingest:
        that is waited for. Raises: FencedOut, NotInTime; VersionGone when no version of a keyed table shows them;
        TableUnknown; OutcomeUnknown when the answer was lost: commit again.
        """
        parameters = self.draft(sources, checkpoint=checkpoint, payload=payload, sink=sink).parameters
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return int(self._states.call("states/commit", **parameters)["seq"])
            except NotInTime:
                if time.monotonic() > deadline:
                    raise
            time.sleep(ASK_AGAIN_S)

    def draft(
        self, sources: Mapping[str, Vector | str], *, checkpoint: str, payload: Any = None, sink: Any = None
    ) -> StateDraft:
        """What `commit` would commit, to be committed with your own move: see `Moved`."""
        vectors = {t: StreamToken.parse(v).offsets if isinstance(v, str) else v for t, v in sources.items()}
        given = {
            "sources": Jsonb({table: vector_to_json(vector) for table, vector in vectors.items()}),
            "checkpoint": checkpoint,
            "payload": Jsonb(payload),
            "sink": Jsonb(sink),
        }
        return StateDraft(parameters={**self._key, "lease": self._lease, **given})

    def __enter__(self) -> Self:
        """Taken here: a signal between taking it and the block would leave a hold for good."""
        try:
            return self.take()
        except BaseException:
            self.give_back()
            raise

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def take(self) -> Self:
        """Begin the hold; `release` ends it, or its time. Raises: StateHeld."""
        holder = self._key["holder"]
        self._key["epoch"] = self._states.call("states/hold", name=self.name, holder=holder, lease=self._lease)["epoch"]
        return self

    def give_back(self) -> None:
        """Free the hold, if it is or may be held: an interrupted caller does not know."""
        with suppress(FencedOut, StateUnknown, TryAgain):  # it ends by its time then
            if self._key["epoch"] is None:
                self._key["epoch"] = self._states.epoch(self.name)  # of another holder: it is fenced
            self.release()

    def renew(self) -> None:
        """Hold it for another lease from now on. Raises: FencedOut."""
        self._states.call("states/renew", **self._key, lease=self._lease)

    def release(self) -> None:
        """Let the next one hold it. Raises: FencedOut."""
        self._states.call("states/renew", **self._key, lease=timedelta())


def _unknown(name: str) -> StateUnknown:
    return StateUnknown(f"there is no commit of a state {name}; `harness state list` shows those that there are")


def _commit(row: Mapping[str, Any]) -> StateCommit:
    return StateCommit(
        name=row["name"],
        seq=row["seq"],
        checkpoint=row["checkpoint"],
        payload=row["payload"],
        sink=row["sink"],
        sources={table: vector_from_json(vector) for table, vector in row["sources"].items()},
        committed_at=row["committed_at"],
    )
