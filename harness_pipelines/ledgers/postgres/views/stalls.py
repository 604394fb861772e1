"""Stages with work but no progress, and their errors, recorded by workers and sensors.

A look compares how far each stage is with what the look before found. It is kept in the ledger, so that whoever asks
is shown the same, and a run that begins again does not begin to count again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness_pipelines.drivers.postgres import Database, sql
from harness_pipelines.ledgers.postgres.views import costs, growth
from harness_pipelines.ledgers.postgres.views.growth import BufferGrowth

STALLED_S = 60.0  #: without progress, beyond what the spec's rules allow: an alarm


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A stage that had work when a worker last looked, and has not advanced since."""

    table: str
    stage: str  #: or ``events``: the delivery to a subscriber
    what: str  #: that waits
    since: datetime
    stalled_s: float  #: beyond the time that the spec's rules allow
    error: str | None  #: that a worker meets again and again

    @property
    def is_alarm(self) -> bool:
        return self.stalled_s >= STALLED_S

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.stage} has met an error since {self.since:%Y-%m-%d %H:%M:%S} UTC: {self.error}"
        return (
            f"{self.stage} gets no further: {self.what} wait{'s' if self.what.startswith(('a ', 'an ')) else ''} "
            f"since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "what": self.what,
            "since": self.since,
            "stalled_s": round(self.stalled_s, 1),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a subscriber is behind the events of a table."""

    table: str
    subscriber: str
    events: int
    since_s: float  #: since it dealt with one
    error: str | None = None  #: why the last delivery failed; None: it did not, or a later one arrived
    error_at: datetime | None = None

    def __str__(self) -> str:
        behind = f"{self.subscriber} has {self.events:,} events to deal with"
        if self.error is None or self.error_at is None:
            return behind
        return f"{behind}; the last delivery failed at {self.error_at:%Y-%m-%d %H:%M:%S} UTC: {self.error}"

    def to_json(self) -> dict[str, Any]:
        return {
            "subscriber": self.subscriber,
            "events": self.events,
            "since_s": round(self.since_s, 1),
            "error": self.error,
            "error_at": self.error_at,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A version that a named snapshot, or the last commits of a state (``state:NAME:SEQ``), keeps readable."""

    table: str
    name: str
    version: int
    since: datetime
    age_s: float
    behind: int  #: how many versions older it is than the oldest that would be kept without it

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "since": self.since,
            "age_s": round(self.age_s, 1),
            "behind": self.behind,
        }


class Stalls:
    """Stalls of one ledger; *watchers* read with their own session."""

    def __init__(self, database: Database, readers: Database, *, buffer_gb: float) -> None:
        self._database, self._readers, self._buffer_gb = database, readers, buffer_gb

    def note(self, tables: Collection[str]) -> None:
        """Compare how far the stages of *tables* are with what the last look found."""
        given = {"tables": list(tables)}
        with self._database.transaction() as connection:
            found = connection.execute(sql("stalls/alone")).fetchone()
            if found is None or not found["alone"]:
                return
            connection.execute(sql("stalls/forget"), given)
            connection.execute(sql("stalls/note"), given)
            growth.note(connection, tables)
            costs.count(connection, tables)

    def note_small_files(self, table_id: int, *, worth_it: bool) -> None:
        """Note whether the stream view has files that compact should put together: only its manifests say so."""
        self._database.run("stalls/small_files" if worth_it else "stalls/no_small_files", {"table_id": table_id})

    def note_troubles(self, holder: str, troubles: Mapping[str, Mapping[str, str]]) -> None:
        """Note what errors hold stages of the worker *holder*, by table and stage; what it noted before is over."""
        flat = [(name, stage, error) for name, found in troubles.items() for stage, error in found.items()]
        given = {
            "holder": holder,
            "names": [name for name, _, _ in flat],
            "stages": [stage for _, stage, _ in flat],
            "errors": [error for _, _, error in flat],
        }
        self._database.run("stalls/over", given)
        if flat:
            self._database.run("stalls/trouble", given)

    def now(self, tables: Collection[str] | None = None) -> list[Stall]:
        """Return the stages that wait, in *tables* or in all, including those that raise no alarm yet."""
        given = {"tables": None if tables is None else list(tables)}
        return [
            Stall(
                table=row["name"],
                stage=row["stage"],
                what=row["what"],
                since=row["since"],
                stalled_s=row["stalled_s"],
                error=row["error"],
            )
            for row in self._readers.rows("stalls/now", given)
        ]

    def lags(self, tables: Collection[str]) -> list[Lag]:
        """The subscribers to events of *tables*, and their lag."""
        found = self._readers.rows("stalls/subscribers", {"tables": list(tables)})
        return [
            Lag(
                table=row["name"],
                subscriber=row["subscriber"],
                events=row["lag"],
                since_s=row["since_s"],
                error=row["error"],
                error_at=row["error_at"],
            )
            for row in found
        ]

    def growth(self) -> dict[str, BufferGrowth]:
        """How fast the buffers of all tables grow, by name."""
        return growth.growth(self._readers, room_gb=self._buffer_gb)

    def pins(self, tables: Collection[str]) -> list[Pin]:
        """What snapshots and states pin of *tables*, the oldest of each first."""
        return [
            Pin(
                table=row["name"],
                name=row["pin"],
                version=row["version"],
                since=row["since"],
                age_s=row["age_s"],
                behind=row["behind"],
            )
            for row in self._readers.rows("stalls/pins", {"tables": list(tables)})
        ]
