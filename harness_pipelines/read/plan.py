"""From a leased read state to the read plan that any engine can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Protocol

from harness_pipelines.errors import DatabaseAway, HarnessError
from harness_pipelines.ports.access import HasLeases, HasLog, HasTables
from harness_pipelines.ports.ledger import ReadState, TableRow, new_lease
from harness_pipelines.ports.source import check_positions, check_topic
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.plan import BufferPart, LakePart, OverlayPart, ReadPlan, TailPart
from harness_pipelines.protocol.reading.reads import At


class Ports(HasLeases, HasLog, HasTables, Protocol):
    """The ports that it uses."""


def make_plan(
    stores: Ports,
    table: TableRow,
    *,
    at: At | None,
    tail: bool,
    holder: str,
    lease: timedelta,
    lease_id: str,
) -> ReadPlan:
    """Lease a read state of *table* and name what a reader of it opens.

    With *tail* the plan also names what only Kafka has, up to its last stable offsets of now; an old version has no
    tail but for what a revert of a table without buffer has left to Kafka. A plan that fails leaves no lease; the
    caller, which names it (`new_lease`), returns it if a signal comes between the plan and its use (`leased`).
    Raises: VersionGone, and where there is a tail KafkaUnreachable, TopicMissing, TopicRecreated, ClusterChanged,
    PartitionsMissing, PartitionsGrown, LogTruncated.
    """
    return look_plan(stores, table, at=at, tail=tail, holder=holder, lease=lease, lease_id=lease_id).plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A leased read state, the table with the columns of its version, and the plan of a read."""

    table: TableRow
    state: ReadState
    plan: ReadPlan


def look_plan(
    stores: Ports, table: TableRow, *, at: At | None, tail: bool, holder: str, lease: timedelta, lease_id: str
) -> Looked:
    """The same, with the state that the plan was made of."""
    with given_back(stores, lease_id):
        state = stores.leases.look(table, holder=holder, lease=lease, at=at, lease_id=lease_id)
        seen = with_schema(stores, table, state.version.schema_version)
        return Looked(table=seen, state=state, plan=_plan(stores, seen, state, to_end=tail and at is None))


def glanced(stores: Ports, table: TableRow, state: ReadState) -> Looked:
    """The same of a *state* without a lease and without a tail: to compare, or to read the buffer alone."""
    seen = with_schema(stores, table, state.version.schema_version)
    return Looked(table=seen, state=state, plan=_plan(stores, seen, state, to_end=False))


def with_schema(stores: Ports, table: TableRow, schema_version: int) -> TableRow:
    """*table* as it was, or has become, with a schema; the ledger is asked for one that *table* does not know."""
    if schema_version > table.schema_version:
        table = stores.tables.table(table.name)
    return table.at_schema(schema_version)


@contextmanager
def leased(
    stores: Ports, table: TableRow, *, at: At | None = None, tail: bool = False, holder: str, lease: timedelta
) -> Iterator[ReadPlan]:
    """A plan whose lease ends with the block; nothing renews it. Raises: as `make_plan`."""
    with lease_of_block(stores) as lease_id:
        yield make_plan(stores, table, at=at, tail=tail, holder=holder, lease=lease, lease_id=lease_id)


@contextmanager
def lease_of_block(stores: HasLeases, *, is_over: Callable[[str], bool] = lambda _: False) -> Iterator[str]:
    """The id of a lease that ends with the block, however that ends. *is_over*: it has ended in the block already."""
    lease_id = new_lease()
    try:
        yield lease_id
    finally:
        if not is_over(lease_id):
            with suppress(HarnessError):  # the ledger is away: the lease ends by its time
                stores.leases.end(lease_id)


@contextmanager
def given_back(stores: Ports, lease_id: str) -> Iterator[None]:
    """Return a lease if the block fails: nothing else would, and it keeps files that expire may remove.

    The block takes the lease too: a signal right after that would leave an unknown one.
    """
    try:
        yield
    except DatabaseAway:  # the lease ends by its time; another question would take as long as the one that failed
        raise
    except BaseException:
        with suppress(HarnessError):
            stores.leases.end(lease_id)
        raise


def _plan(stores: Ports, table: TableRow, state: ReadState, *, to_end: bool) -> ReadPlan:
    return ReadPlan(
        table=table.name,
        table_id=table.table_id,
        version=state.version.version,
        schema_version=state.version.schema_version,
        fields=table.fields,
        key=table.spec.key,
        bounds=state.bounds,
        lake=tuple(_lake(state)),
        overlay=_overlay(table, state),
        buffer=_buffer(table, state) if table.intake.buffered else None,
        tail=_tail(stores, table, state, to_end=to_end),
        lease_id=state.lease_id,
        lease_until=state.lease_until,
    )


def _lake(state: ReadState) -> Iterator[LakePart]:
    """The pinned views, and for an old version the view that now has its buffered rows."""
    start, batch_hi = ({p: getattr(b, word) for p, b in state.bounds.items()} for word in ("start", "batch_hi"))
    stream_hi, buffer_hi = _vectors(state.bounds)
    version = state.version
    if version.batch is not None and (low := _moved(start, batch_hi)):
        high = {p: batch_hi[p] for p in low}
        yield LakePart(view="batch", metadata=version.batch.metadata, low=low, high=high)
    if low := _moved(batch_hi, stream_hi):
        yield LakePart(metadata=version.stream.metadata, low=low, high={p: stream_hi[p] for p in low})
    if state.answered_by is not None and (low := _moved(stream_hi, buffer_hi)):
        high = {p: buffer_hi[p] for p in low}
        later = state.answered_by
        yield LakePart(view=later.tiered, metadata=later.stream.metadata, low=low, high=high)


def _overlay(table: TableRow, state: ReadState) -> OverlayPart | None:
    """The rows of the batch view that lie in Postgres: the whole of them, below its bounds."""
    if not state.version.overlays:
        return None
    low = {p: b.start for p, b in state.bounds.items() if b.batch_hi > b.start}
    segments = table.overlaid(state.version.overlays)
    return OverlayPart(segments=segments, low=low, high={p: state.bounds[p].batch_hi for p in low})


def _buffer(table: TableRow, state: ReadState) -> BufferPart | None:
    stream_hi, buffer_hi = _vectors(state.bounds)
    low = _moved(stream_hi, buffer_hi)
    if not low or state.answered_by is not None:
        return None
    # One of a later schema was opened above the bounds of an old version.
    segments = [s for s in state.segments if s.schema_version is None or s.schema_version <= table.schema_version]
    return BufferPart(segments=table.seen(segments), low=low, high={p: buffer_hi[p] for p in low})


def _tail(stores: Ports, table: TableRow, state: ReadState, *, to_end: bool) -> TailPart | None:
    """The offsets that only Kafka has: without a buffer, all above ``stream_hi``, which a revert may lower."""
    _, high = _vectors(state.bounds)
    low = table.intake.ends(state.bounds) if state.answered_by is None else dict(high)
    if to_end or low != high:  # the same offsets of another topic are other records
        check_topic(table, partial(stores.log.describe, table.spec.topic), known=state.bounds if to_end else None)
    if to_end:
        marks = stores.log.watermarks(table.spec.topic, state.bounds)
        # A log that starts above the position is named by the reader: an audit plans over it, and counts what is lost.
        check_positions(table.spec.topic, {p: max(marks[p].low, o) for p, o in high.items()}, marks)
        high = {p: marks[p].end for p in high}
    low = {p: o for p, o in low.items() if high[p] > o}
    if not low:
        return None
    high = {p: high[p] for p in low}
    return TailPart(topic=table.spec.topic, schema_version=table.schema_version, low=low, high=high)


def _moved(low: Mapping[int, int], high: Mapping[int, int]) -> dict[int, int]:
    """Where the ranges begin that are not empty."""
    return {p: o for p, o in low.items() if high[p] > o}


def _vectors(bounds: Mapping[int, Bounds]) -> tuple[dict[int, int], dict[int, int]]:
    return {p: b.stream_hi for p, b in bounds.items()}, {p: b.buffer_hi for p, b in bounds.items()}
