"""All tables in one query: pending work and state; and the recorded ends of logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import Database, sql
from harness_pipelines.errors import HarnessError
from harness_pipelines.ledgers.postgres.views.status import REFUSED_OF_LAST
from harness_pipelines.ports.ledger import PartitionStatus, Stopped
from harness_pipelines.ports.source import OpenTransaction, Watermark
from harness_pipelines.ports.upkeep import Broken, ClaimState, OpenMove, SeenEnds, TablePulse, TableWork
from harness_pipelines.protocol.bounds import Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """How a table is. Offsets are sums over its partitions, ages are in seconds by the database's clock."""

    name: str
    stopped: bool
    version: int
    tail: int | None  #: offsets of the log above the buffer; None: the end of some partition is not known
    log_seen_s: float | None  #: since the oldest of the looks that say so
    buffer: int  #: offsets above the stream view
    stream: int | None  #: offsets of the stream view above the batch view; None: there is no batch view
    buffer_commit_s: float  #: since the last commit of records, or since the table was made
    tier_s: float  #: since tier's last move, or since the table was made
    buffer_bytes: int
    quarantined: int
    refused_share: float  #: of the last offsets of the partition that refuses most
    filtered: int  #: records that the transform's filter did not take
    readers: int  #: live leases
    oldest_lease_s: float | None
    claims: Mapping[str, ClaimState]  #: by stage
    moves: Mapping[str, OpenMove]  #: by stage
    violations: tuple[Broken, ...] = ()  #: of checks of the contract
    held: int = 0  #: offsets of the log behind open transactions, as last seen
    held_s: float | None = None  #: since the oldest of these transactions began; None: there is none


@dataclass(frozen=True, slots=True)
class _Pulsed:
    """The pulse that a row was read as."""

    row_hash: int
    pulse: TablePulse | HarnessError


class Watch:
    """Looks of one database; *watchers* have their own session for those that are to be short."""

    def __init__(self, database: Database, readers: Database, watchers: Database) -> None:
        self._database, self._readers, self._watchers = database, readers, watchers
        self._pulses: Mapping[int, _Pulsed] = {}  # as they were last asked for

    def record_ends(self, seen: Mapping[int, Mapping[int, Watermark]]) -> None:
        """Note where the log of each partition begins and ends now, by the tables' ids."""
        flat = [(table_id, p, mark) for table_id, marks in sorted(seen.items()) for p, mark in sorted(marks.items())]
        given = {
            "tables": [table_id for table_id, _, _ in flat],
            "partitions": [partition for _, partition, _ in flat],
            "starts": [mark.low for _, _, mark in flat],
            "ends": [mark.end for _, _, mark in flat],
        }
        self._database.run("watch/record_ends", given)

    def record_held(self, seen: Mapping[int, Mapping[int, OpenTransaction | None]]) -> None:
        """Note behind which open transactions records of partitions lie, by the tables' ids; None: behind none."""
        found = [(number, p, one) for number, held in sorted(seen.items()) for p, one in sorted(held.items())]
        given = {
            "tables": [number for number, _, _ in found],
            "partitions": [p for _, p, _ in found],
            "newest": [None if one is None else one.newest for _, _, one in found],
            "since": [None if one is None else one.since for _, _, one in found],
        }
        self._database.run("stalls/record_held", given)

    def work(self, tables: Collection[str] | None) -> list[TableWork]:
        """Of *tables*, by name, those that there are, or of all; the one that is furthest behind comes first."""
        wanted = None if tables is None else list(tables)
        return [_work(row) for row in self._readers.rows("watch/work", {"tables": wanted})]

    def pulses(self, tables: Collection[int]) -> tuple[float, dict[int, TablePulse | HarnessError]]:
        """Of *tables*, by number, those that there are, and the database's time in seconds since 1970.

        For a table whose row contradicts itself, its error: the others have work all the same. Of those whose rows are
        as they were when they were asked for last, the pulses are those of then, the same objects.
        """
        before, wanted = self._pulses, sorted(tables)
        known = [before[number].row_hash if number in before else None for number in wanted]
        found = self._readers.rows("watch/pulses", {"tables": wanted, "known": known})
        changed = [row for row in found if row["table_id"] is not None]
        now = {number: before[number] for number in found[0]["same"] or ()}
        now |= {row["table_id"]: _Pulsed(row["row_hash"], _pulse(row)) for row in changed}
        self._pulses = now
        return found[0]["now"], {number: one.pulse for number, one in now.items()}

    def states(
        self, tables: Collection[str], *, seen: Collection[SeenEnds] = (), holder: str | None = None, limit: timedelta
    ) -> list[TableState]:
        """Of *tables*, by name, those that there are, in order of their names; Postgres gives up after *limit*.

        Where the logs end is what the ledger knows or what the caller has *seen*, whichever is newer. *holder* is whose
        claims are its own.
        """
        ends = {one.table: {"age_s": one.age_s, "ends": {str(p): end for p, end in one.ends.items()}} for one in seen}
        given = {"tables": list(tables), "seen": Jsonb(ends), "holder": holder, "of_last": REFUSED_OF_LAST}
        with self._watchers.reading() as connection:
            connection.execute(sql("watch/give_up_after"), {"limit": f"{limit // timedelta(milliseconds=1)}ms"})
            return [_state(row) for row in connection.execute(sql("watch/states"), given)]


def _state(row: Mapping[str, Any]) -> TableState:
    plain = {name: value for name, value in row.items() if name not in ("claims", "moves", "violations")}
    return TableState(
        **plain,
        claims={stage: ClaimState(**claim) for stage, claim in row["claims"].items()},
        moves={stage: OpenMove(**move) for stage, move in row["moves"].items()},
        violations=tuple(Broken(**one) for one in row["violations"]),
    )


def _pulse(row: Mapping[str, Any]) -> TablePulse | HarnessError:
    try:
        return _read_pulse(row)
    except HarnessError as broken:
        return broken


def _read_pulse(row: Mapping[str, Any]) -> TablePulse:
    return TablePulse(
        table_id=row["table_id"],
        positions=tuple(
            PartitionStatus(
                partition=partition,
                bounds=Bounds(start=start, batch_hi=batch_hi, stream_hi=stream_hi, buffer_hi=buffer_hi),
                trim_floor=trim_floor,
            )
            for partition, start, batch_hi, stream_hi, buffer_hi, trim_floor in row["positions"]
        ),
        version=row["version"],
        stream=row["stream_metadata"],
        batch=row["batch_metadata"],
        stopped=None if row["stopped"] is None else Stopped(row["stopped"], row["stopped_stage"]),
        open=frozenset(row["open"]),
        asked=row["asked"],
        claims=row["claims"],
        tier_at=row["tier_at"],
        otree_at=row["otree_at"],
        buffered_bytes=row["buffered_bytes"],
        removes=row["removes"],
        superseded_at=row["superseded_at"],
        spec_hash=row["spec_hash"],
    )


def _work(row: Mapping[str, Any]) -> TableWork:
    return TableWork(
        name=row["name"],
        stopped=row["stopped"],
        unread=None if row["unread"] is None else int(row["unread"]),
        buffered=row["buffered"],
        unmerged=row["unmerged"],
        buffered_bytes=row["buffered_bytes"],
        since_tier_s=row["since_tier_s"],
        since_expire_s=row["since_expire_s"],
        buffer_at=row["buffer_at"],
        stream_at=row["stream_at"],
        busy=frozenset(row["busy"]),
        open=row["open"],
        last=row["last"],
    )
