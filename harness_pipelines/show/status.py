"""Status of one table, for `harness status` and the status page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.ports.errors import KafkaUnreachable
from harness_pipelines.ports.ledger import SickTable, TableUnknown
from harness_pipelines.protocol.topics import label

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.app.table import Table
    from harness_pipelines.ledgers.postgres.views.growth import BufferGrowth
    from harness_pipelines.ledgers.postgres.views.mirrors import MirrorLag
    from harness_pipelines.ledgers.postgres.views.stalls import Lag, Pin, Stall
    from harness_pipelines.ledgers.postgres.views.status import Counts, RefusedShare, RowlessOffsets, TableFacts
    from harness_pipelines.ports.ledger import PartitionStatus
    from harness_pipelines.ports.requests import RecallRequest
    from harness_pipelines.ports.source import Log, OpenTransaction, Watermark
    from harness_pipelines.protocol.versions import Version
    from harness_pipelines.show.bars import Spans
    from harness_pipelines.spec.settings import Settings
    from harness_pipelines.spec.table import Freshness

KAFKA_WAIT_S = 5.0
FULL_SOON_S = 86_400.0
_VIOLATION = ("check", "severity", "records", "first_at", "last_at")


class Ends(Protocol):
    """A source of the ends of Kafka's logs."""

    def of(self, table: Table, positions: list[PartitionStatus]) -> tuple[Mapping[int, int], str | None]:
        """Return the ends by partition; empty with the reason if unavailable."""
        ...

    def held(self, table: Table, positions: list[PartitionStatus]) -> Mapping[int, OpenTransaction]:
        """Return the records behind open transactions by partition; empty if unavailable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSeen:
    """Status of one table at one instant."""

    table: str
    topic: str
    head: Version
    since_tier_s: float
    since_ingest_s: float | None  #: None: nothing was ever committed to the buffer
    goals: Freshness
    positions: list[PartitionStatus]
    ends: Mapping[int, int]
    claims: list[Mapping[str, Any]]
    open_moves: list[Mapping[str, Any]]
    counts: Counts
    apart: Mapping[int, RowlessOffsets]  #: offsets that are no rows, by partition; those without any are left out
    refusing: RefusedShare | None  #: the partition that refuses most; None: none holds a refused record
    violations: list[Mapping[str, Any]]  #: of checks of the contract
    asked: list[RecallRequest]  #: to recall or to release rows, and not done yet
    stopped: str | None
    trouble: str | None  #: why the log's ends are not known
    stalls: list[Stall]  #: what waits, those that are no alarm yet too
    held: Mapping[int, OpenTransaction]  #: of the log, by partition
    pins: list[Pin]  #: of snapshots and states, the oldest first
    growth: BufferGrowth | None  #: None: there is no buffer
    lags: list[Lag]  #: of subscribers to its events
    mirrors: list[MirrorLag]  #: foreign catalogs
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def lag(self) -> dict[str, int | None]:
        """Return the number of offsets only in Kafka (None: unknown), only in the buffer, and, with a batch view, those
        of the lake that are not in it."""
        known = all(p.partition in self.ends for p in self.positions)
        tail = sum(max(self.ends[p.partition] - p.bounds.buffer_hi, 0) for p in self.positions) if known else None
        found = {"tail": tail, "buffer": sum(p.bounds.buffer_hi - p.bounds.stream_hi for p in self.positions)}
        if self.has_batch:
            found["stream"] = sum(p.bounds.stream_hi - p.bounds.batch_hi for p in self.positions)
        return found

    @property
    def has_batch(self) -> bool:
        return self.head.batch is not None

    @property
    def recalled_rows(self) -> int:
        """Return the number of rows of the batch view that are in Postgres."""
        return sum(one.rows for one in self.head.overlays)

    @property
    def spans(self) -> list[Spans]:
        from harness_pipelines.show import bars

        return bars.spans_of(self.positions, self.ends, batch=self.has_batch, apart=self.apart)

    @property
    def late(self) -> list[str]:
        """Return the lags that exceed the spec's objectives."""
        lag, goals = self.lag, self.goals
        found = []
        since_ingest_s = self.since_tier_s if self.since_ingest_s is None else self.since_ingest_s
        if lag["tail"] and since_ingest_s > goals.visible:
            found.append(f"{lag['tail']:,} offsets wait in Kafka, no commit for {since_ingest_s:.0f} s")
        if lag["buffer"] and self.since_tier_s > goals.lake:
            found.append(f"{lag['buffer']:,} offsets wait in the buffer, no move of tier for {self.since_tier_s:.0f} s")
        return found

    @property
    def stalled(self) -> list[str]:
        """Return the stages that make no progress, with their errors."""
        return [str(one) for one in self.stalls if one.is_alarm or one.error is not None]

    @property
    def undelivered(self) -> list[str]:
        """Return the subscribers whose last delivery failed."""
        return [str(lag) for lag in self.lags if lag.error is not None]

    @property
    def filling(self) -> str | None:
        """Return a warning if the buffer will be full within a day, so that ingest pauses."""
        if self.growth is None or self.growth.pause is not None or self.growth.full_s > FULL_SOON_S:
            return None
        return (
            f"the buffer grows by {self.growth.per_s / 1e6:,.1f} MB a second; it reaches `buffer.max_bytes`, or all "
            f"buffers together HARNESS_BUFFER_GB, in {self.growth.full_s / 3600:.1f} h: then ingest pauses"
        )

    @property
    def paused(self) -> str | None:
        """Return why ingest pauses, or None if it does not."""
        return self.growth.paused if self.growth else None

    @property
    def behind(self) -> list[str]:
        """Return the records behind open transactions."""
        return [f"partition {label(self.topic, p)}: {one}" for p, one in sorted(self.held.items())]

    @property
    def ahead(self) -> list[str]:
        """Return the claims with a lease end beyond any valid lease."""
        return [
            f"{claim['stage']} is claimed by {claim['holder']} until {claim['lease_until']:%Y-%m-%d %H:%M:%S %Z}, "
            "longer than any valid lease: the database's clock was ahead; "
            f"`harness reconcile {self.table} --yes` ends it"
            for claim in self.claims
            if claim["ahead"]
        ]

    @property
    def way_on(self) -> str:
        """Return the remedy for a stopped table."""
        return f"a worker (`harness run {self.table}`) continues once the cause is gone; reads work meanwhile"

    @property
    def state(self) -> str | None:
        """Return the fault of the table itself, or None."""
        if self.stopped:
            return "stopped"
        if self.paused:
            return "paused"
        return "refusing" if self.refuses_much else None

    @property
    def refuses_much(self) -> bool:
        return self.refusing is not None and self.refusing.is_much

    @property
    def refused_in_buffer(self) -> int:
        return sum(one.buffer for one in self.apart.values())

    def _partition(self, seen: PartitionStatus) -> dict[str, int | None]:
        b, none = seen.bounds, self.apart.get(seen.partition)
        bounds = {"start": b.start, "buffer_hi": b.buffer_hi, "stream_hi": b.stream_hi, "batch_hi": b.batch_hi}
        no_rows = {"refused": none.refused if none else 0, "filtered": none.filtered if none else 0}
        return {"partition": seen.partition, **bounds, "end": self.ends.get(seen.partition), **no_rows}

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "version": self.head.version,
            "views": sorted(self.head.views),
            "partitions": [self._partition(p) for p in self.positions],
            "lag": self.lag,
            "topic": self.topic,
            "committed_at": self.head.committed_at,
            "since_tier_s": round(self.since_tier_s, 3),
            "since_ingest_s": None if self.since_ingest_s is None else round(self.since_ingest_s, 3),
            "freshness": {"visible_s": self.goals.visible, "lake_s": self.goals.lake},
            "claims": [dict(claim) for claim in self.claims],
            "open_moves": [dict(move) for move in self.open_moves],
            "stopped": self.stopped,
            "trouble": self.trouble,
            "stalled": [one.to_json() for one in self.stalls if one.is_alarm or one.error is not None],
            "held": [
                {"partition": p, "offset": one.end, "offsets": one.newest - one.end, "since": one.since}
                for p, one in sorted(self.held.items())
            ],
            "pins": [pin.to_json() for pin in self.pins],
            "buffer": self.growth and self.growth.to_json(),
            "subscribers": [lag.to_json() for lag in self.lags],
            "mirrors": [one.to_json() for one in self.mirrors],
            "state": self.state,
            "quarantined": self.counts.quarantined,
            "refused_of_last": None
            if self.refusing is None
            else {name: getattr(self.refusing, name) for name in ("partition", "offsets", "refused")},
            "filtered": self.counts.filtered,
            "contract": [{name: one[name] for name in _VIOLATION} for one in self.violations],
            "readers": self.counts.readers,
            "oldest_lease_s": self.counts.oldest_lease_s and round(self.counts.oldest_lease_s, 1),
            "lake_rows": self.counts.lake_rows,
            "recalled": {
                "rows": self.recalled_rows,
                "bytes": sum(one.bytes for one in self.head.overlays),
                "segments": [one.segment for one in self.head.overlays],
                "requests": [request.to_json() for request in self.asked],
            },
        }


class KafkaNotSet(UsageError):
    """The ends of the logs are asked for, and no Kafka is known."""

    way_on = "start the command, or the server of the page, with HARNESS_KAFKA and the settings of its login"


class KafkaEnds:
    """Ends of the topics' partitions, queried with a short timeout and not again after Kafka failed to answer."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._log: Log | None = None
        self._marks: Mapping[str, Mapping[int, Watermark] | HarnessError] = {}
        self._unstable: set[str] = set()  # topics with records behind open transactions, of those in `_marks`
        self.trouble: str | None = None

    def ask(self, wanted: Mapping[str, Set[int]]) -> None:
        """Ask for all *wanted* topics and partitions at once; what is not answered is asked for table by table."""
        with suppress(HarnessError):
            self._log = self._log or open_log(self._harness.settings)
            marks = self._log.watermarks_of(wanted)
            self._unstable, self._marks = self._log.unstable(wanted), marks

    def of(self, table: Table, positions: list[PartitionStatus]) -> tuple[dict[int, int], str | None]:
        """Return the ends by partition; empty with the reason if unavailable."""
        if self.trouble:
            return {}, self.trouble
        try:
            self._log = self._log or open_log(self._harness.settings)
            marks = self._marks_of(table.spec.topic, {p.partition for p in positions})
        except HarnessError as error:
            if isinstance(error, KafkaUnreachable) or self._log is None:
                self.trouble = str(error)
            return {}, str(error)
        return {partition: mark.end for partition, mark in marks.items()}, None

    def _marks_of(self, topic: str, partitions: Set[int]) -> Mapping[int, Watermark]:
        known = self._marks.get(topic)
        if known is not None and not isinstance(known, HarnessError) and known.keys() >= partitions:
            return {partition: known[partition] for partition in partitions}
        assert self._log is not None, "it is opened before"
        return self._log.watermarks(topic, partitions)

    def held(self, table: Table, positions: list[PartitionStatus]) -> dict[int, OpenTransaction]:
        """Return the records behind open transactions by partition; empty if unavailable."""
        if self.trouble or self._log is None or (table.spec.topic in self._marks.keys() - self._unstable):
            return {}
        try:
            return self._log.held(table.spec.topic, [p.partition for p in positions])
        except HarnessError as error:
            self.trouble = str(error) if isinstance(error, KafkaUnreachable) else None
            return {}


def open_log(settings: Settings) -> Log:
    """Return a read-only log client with short timeouts. Raises: KafkaNotSet and the client's errors."""
    from harness_pipelines.sources.joined import JoinedLog
    from harness_pipelines.sources.kafka.client import KafkaTimeouts
    from harness_pipelines.sources.kafka.log import KafkaLog

    if settings.kafka is None:
        raise KafkaNotSet(
            "HARNESS_KAFKA is not set here, and no embedded Kafka runs; start this with HARNESS_KAFKA (and "
            "HARNESS_KAFKA_... for its login) to see the ends of the logs"
        )
    return JoinedLog(KafkaLog.from_settings(settings, timeouts=KafkaTimeouts(request_s=KAFKA_WAIT_S)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """What the ledger has of some tables: one statement for each kind of fact, however many tables there are."""

    of: Mapping[int, TableFacts | HarnessError]  #: by the tables' ids
    asked: Mapping[int, list[RecallRequest]]
    stalls: Mapping[str, list[Stall]]  #: by the tables' names; those without any are left out, here and below
    pins: Mapping[str, list[Pin]]
    growth: Mapping[str, BufferGrowth]
    lags: Mapping[str, list[Lag]]
    mirrors: Mapping[str, list[MirrorLag]]

    @classmethod
    def ask(cls, harness: Harness, tables: Collection[Table]) -> LedgerFacts:
        from harness_pipelines.ledgers.postgres.requests.recall import Recalls

        stores, rows, names = harness.stores, [table.row for table in tables], [table.name for table in tables]
        return cls(
            of=stores.overview.facts(rows),
            asked=Recalls(stores.readers).open_of(rows),
            stalls=_by_table(stores.stalls.now(names)),
            pins=_by_table(stores.stalls.pins(names)),
            growth=stores.stalls.growth(),
            lags=_by_table(stores.stalls.lags(names)),
            mirrors=_by_table(stores.mirrors.lags(names)),
        )

    def partitions(self, tables: Collection[Table]) -> dict[str, set[int]]:
        """Topics and partitions whose ends tell what waits in the log."""
        wanted: dict[str, set[int]] = {}
        for table in tables:
            if not isinstance(found := self.of[table.row.table_id], HarnessError):
                wanted.setdefault(table.spec.topic, set()).update(p.partition for p in found.positions)
        return wanted


class _OfTable(Protocol):
    @property
    def table(self) -> str: ...


One = TypeVar("One", bound=_OfTable)


def _by_table(found: Iterable[One]) -> dict[str, list[One]]:
    """*found* by the names of the tables, in its order."""
    by_name: dict[str, list[One]] = {}
    for one in found:
        by_name.setdefault(one.table, []).append(one)
    return by_name


def look(harness: Harness, table: Table, kafka: Ends) -> TableSeen:
    """Query the ledger for the state of *table*, and *kafka* for the ends of its log.

    Raises: TableDamaged, BoundsBroken, TableUnknown.
    """
    return _seen(table, LedgerFacts.ask(harness, [table]), kafka)


def look_at_all(harness: Harness, tables: Sequence[Table], kafka: KafkaEnds) -> tuple[list[TableSeen], list[SickTable]]:
    """As `look`, for *tables* together; one that cannot be read is named, and one that was dropped is left out."""
    ledger, seen, sick = LedgerFacts.ask(harness, tables), list[TableSeen](), list[SickTable]()
    if len(tables) > 1:
        kafka.ask(ledger.partitions(tables))
    for table in tables:
        why = ledger.of[table.row.table_id]
        if not isinstance(why, HarnessError):
            seen.append(_seen(table, ledger, kafka))
        elif not isinstance(why, TableUnknown):
            sick.append(SickTable(name=table.name, why=str(why)))
    return seen, sick


def _seen(table: Table, ledger: LedgerFacts, kafka: Ends) -> TableSeen:
    found = ledger.of[table.row.table_id]
    if isinstance(found, HarnessError):
        raise found
    ends, trouble = kafka.of(table, found.positions)
    return TableSeen(
        table=table.name,
        topic=table.spec.topic,
        head=found.head,
        since_tier_s=found.since_tier_s,
        since_ingest_s=found.since_ingest_s,
        goals=table.spec.freshness,
        positions=found.positions,
        ends=ends,
        claims=found.claims,
        open_moves=found.open_moves,
        counts=found.counts,
        apart=found.apart,
        refusing=found.refusing,
        violations=found.violations,
        asked=ledger.asked[table.row.table_id],
        stopped=table.row.stopped,
        trouble=trouble,
        stalls=ledger.stalls.get(table.name, []),
        pins=ledger.pins.get(table.name, []),
        growth=ledger.growth.get(table.name),
        lags=ledger.lags.get(table.name, []),
        mirrors=ledger.mirrors.get(table.name, []),
        held={} if trouble else kafka.held(table, found.positions),
    )
