"""Validate the start and the end of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, Protocol

from harness_pipelines.errors import UsageError
from harness_pipelines.ports.access import (
    HasBufferReader,
    HasCorrections,
    HasLakeReads,
    HasLeases,
    HasLog,
    HasSchemas,
    HasTables,
)
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import Watermark, check_positions, check_topic
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.reading.selection import Selection, work_of
from harness_pipelines.protocol.reading.streams import StreamToken, TokenUnfit, check_offsets, no_partition
from harness_pipelines.read.plan import leased
from harness_pipelines.read.stream.changes import log_plan, version_of
from harness_pipelines.read.stream.history import in_order, log_work
from harness_pipelines.read.stream.stream import StreamPlan, answered, lease_of, leased_plan
from harness_pipelines.spec.predicate import OFFSET, refs

#: ``earliest``, ``latest``, a token or the name of a snapshot; a version; the moment of the first record; offsets.
From = Literal["earliest", "latest"] | str | int | datetime | Mapping[int, int]


class Ports(HasBufferReader, HasCorrections, HasLakeReads, HasLeases, HasLog, HasSchemas, HasTables, Protocol):
    """The ports that it uses."""


def stream_plan(
    stores: Ports,
    table: TableRow,
    *,
    from_: From,
    selection: Selection,
    partitions: Sequence[int] | None,
    follow: bool,
    state_first: bool,
    corrections: bool,
) -> StreamPlan:
    """Find where the stream begins, and see that Kafka has what comes behind the table; what they mean: `Table.stream`.

    Raises: UsageError, TokenUnfit, UnknownColumn, WhereError, VersionGone, SnapshotUnknown; RecordsLost, LogTruncated,
    TopicRecreated, PartitionsGrown and what else the log raises.
    """
    with leased_plan(stores, table) as plan:
        if state_first:
            _check_state(plan, selection, from_)
        followed = _followed(table, plan.bounds, partitions)
        topic, real = table.spec.topic, [p for p in followed if p >= 0]
        check_topic(table, lambda: stores.log.describe(topic), known=plan.bounds)
        marks = stores.log.watermarks(topic, real)
        token = _token(from_, table) if isinstance(from_, str) and from_.startswith("{") else None
        if token is not None:
            given = token.offsets
            version = plan.version if token.version is None else token.version
        elif from_ == "latest":
            given = {**answered(table, plan.bounds), **{p: mark.end for p, mark in marks.items()}}
            version = plan.version
        else:
            given, version = _given(stores, table, plan, followed, from_)
            _check_ends(table, given, marks)
        offsets = {p: given.get(p, plan.bounds[p].start) for p in followed}
        check_offsets(table.name, {**given, **offsets}, plan.bounds)
        there = answered(table, plan.bounds)
        check_positions(topic, {p: max(offsets[p], there[p]) for p in real}, marks)
    return StreamPlan(
        table=table,
        start=StreamToken(
            topic_id=table.identity.topic_id,
            offsets=offsets,
            in_state=token.in_state if token is not None else state_first,
            version=version if corrections else None,
        ),
        selection=selection,
        ends=None if follow else {**there, **{p: mark.end for p, mark in marks.items()}},
        follows_all=follow and partitions is None,
    )


def _followed(table: TableRow, bounds: Mapping[int, Bounds], partitions: Sequence[int] | None) -> list[int]:
    if partitions is None:
        return sorted(bounds)
    if unknown := sorted(set(partitions) - set(bounds)):
        raise no_partition(table.name, unknown[0], bounds)
    return sorted(set(partitions))


def _token(text: str, table: TableRow) -> StreamToken:
    token = StreamToken.parse(text)
    if token.topic_id != table.identity.topic_id:
        raise TokenUnfit(
            f"{table.name}: the token is of topic id {token.topic_id}, the table follows {table.identity.topic_id}: "
            "its offsets are other records here. Begin at `earliest`"
        )
    return token


def _given(
    stores: Ports, table: TableRow, plan: ReadPlan, followed: Sequence[int], from_: From
) -> tuple[Mapping[int, int], int]:
    """The offsets that *from_* means, and of which version; a partition that it does not name begins at its start."""
    if from_ == "earliest":
        return {}, plan.version
    if isinstance(from_, Mapping):
        return from_, plan.version
    if isinstance(from_, datetime):
        return _first_since(stores, table, plan, followed, from_), plan.version
    if isinstance(from_, int):
        return answered(table, version_of(plan, stores.tables.versions(table), from_).bounds), from_
    with leased(stores, table, at=from_, holder=plan.lease_id, lease=lease_of(table)) as named:
        return answered(table, named.bounds), named.version


def _first_since(
    stores: Ports, table: TableRow, plan: ReadPlan, followed: Sequence[int], then: datetime
) -> dict[int, int]:
    """Per partition the first offset whose record is not older than *then*; its end where all are."""
    if then.tzinfo is None:
        raise UsageError(f"{table.name}: the moment {then.isoformat()} needs a time zone, such as +00:00")
    wanted = Selection(columns=[], where=f"_kafka_timestamp >= timestamp '{then.astimezone(UTC).isoformat()}'")
    version = version_of(plan, stores.tables.versions(table), plan.version)
    found: dict[int, int] = {}
    for partition in followed:
        whole = log_plan(
            plan,
            version,
            low={partition: plan.bounds[partition].start},
            high={partition: answered(table, plan.bounds)[partition]},
        )
        work = log_work(whole, wanted)
        pieces = in_order(whole, work, buffer=stores.buffer_reader, lake=stores.lake_reads)
        first = next((piece.rows for piece in pieces if piece.rows.num_rows), None)
        if first is not None:
            found[partition] = int(first.column(OFFSET)[0].as_py())
    missing = [p for p in followed if p not in found and p >= 0]
    in_kafka = stores.log.start_offsets(table.spec.topic, missing, then) if missing else {}
    there = answered(table, plan.bounds)
    return {p: found.get(p, max(in_kafka.get(p, 0), there[p])) for p in followed}


def _check_ends(table: TableRow, given: Mapping[int, int], marks: Mapping[int, Watermark]) -> None:
    for partition, mark in marks.items():
        if given.get(partition, 0) > mark.end:
            raise UsageError(
                f"{table.name}: partition {partition} ends at offset {mark.end}, so its stream cannot begin at "
                f"{given[partition]}; begin at `latest`"
            )


def _check_state(plan: ReadPlan, selection: Selection, from_: From) -> None:
    """A state and the later changes can be filtered alike only if each record shows whether its key is wanted."""
    if not plan.key:
        raise UsageError(f"{plan.table} has no key, so it has no state but all of its records: leave `state_first` out")
    if from_ != "earliest" and not (isinstance(from_, str) and from_.startswith("{")):
        raise UsageError(f"{plan.table}: `state_first` begins with all that is there: give no other beginning")
    others = {ref.column for ref in refs(work_of(plan, selection).where)} - set(plan.key)
    if others:
        raise UsageError(
            f"{plan.table}: with `state_first`, `where` may ask for the key alone ({', '.join(plan.key)}): a row that "
            f"stops fitting by its {', '.join(sorted(others))} would not be reported"
        )
