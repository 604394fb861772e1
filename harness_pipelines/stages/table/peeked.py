"""Look at records of a topic, without a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from harness_pipelines.errors import UsageError
from harness_pipelines.formats.infer.shown import Shower, Shown
from harness_pipelines.ports.access import HasLog, HasSchemas
from harness_pipelines.ports.source import Headers, Log, PartitionBatch, TopicIdentity, Watermark, described
from harness_pipelines.stages.table.ends import from_offsets, marks_of

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
WIDENED = 8  #: times as many offsets are looked at where a log has gaps


class Ports(HasLog, HasSchemas, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peeked:
    """A record as it is in the log."""

    partition: int
    offset: int
    time: datetime | None  #: of the producer or broker; None: the log has none, or none of the years 1970 to 9999
    key: Shown
    value: Shown
    value_bytes: int
    headers: Headers

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "offset": self.offset,
            "time": self.time,
            "key": self.key.value,
            "key_form": self.key.form,
            "value": self.value.value,
            "value_form": self.value.form,
            "value_bytes": self.value_bytes,
            "headers": [[name, None if data is None else data.decode(errors="replace")] for name, data in self.headers],
        }


def peek(
    stores: Ports, topic: str, count: int, *, partition: int | None = None, offset: int | None = None
) -> list[Peeked]:
    """The *count* newest records of *topic* by time, or of one *partition*; with *offset* the next ones from there.

    Raises: TopicMissing; UsageError for a *partition* that the topic does not have; what the log and registry raise.
    """
    identity = described(stores.log, topic)
    if partition is not None and partition not in identity.partitions:
        raise UsageError(
            f"topic {topic} has partitions 0 to {len(identity.partitions) - 1}, and no partition {partition}"
        )
    marks = marks_of(stores.log, identity, None if partition is None else [partition])
    ends = {p: mark.end for p, mark in marks.items()}
    if offset is not None:
        positions = {p: max(offset, mark.low) for p, mark in marks.items() if offset < mark.end}
        batches = list(from_offsets(stores.log, identity, positions, {p: ends[p] for p in positions}, each=count))
    else:
        batches = list(_newest(stores.log, identity, marks, count))
    shower = Shower(stores.schemas)
    found = [one for batch in batches for one in _records(batch, shower)]
    found.sort(key=lambda one: (one.time or _LONG_AGO, one.partition, one.offset))
    return found[:count] if offset is not None else found[-count:]


def _newest(log: Log, identity: TopicIdentity, marks: Mapping[int, Watermark], count: int) -> Iterator[PartitionBatch]:
    """At least the *count* newest records of each partition, or all that it has: logs have gaps."""
    wanted = {p: min(count, mark.end - mark.low) for p, mark in marks.items()}
    while wanted:
        positions = {p: marks[p].end - offsets for p, offsets in wanted.items()}
        found = list(
            from_offsets(log, identity, positions, {p: marks[p].end for p in wanted}, each=max(wanted.values()))
        )
        seen = dict.fromkeys(wanted, 0)
        for batch in found:
            seen[batch.partition] += len(batch)
        short = {p for p, records in seen.items() if records < count and positions[p] > marks[p].low}
        yield from (batch for batch in found if batch.partition not in short)
        wanted = {p: min(WIDENED * wanted[p], marks[p].end - marks[p].low) for p in short}


def _records(batch: PartitionBatch, shower: Shower) -> Iterator[Peeked]:
    rows = zip(
        batch.offsets.tolist(), batch.timestamps_ms.tolist(), batch.keys, batch.values, batch.headers, strict=True
    )
    for offset, time_ms, key, value, headers in rows:
        yield Peeked(
            partition=batch.partition,
            offset=offset,
            time=_time(time_ms),
            key=shower.show(key),
            value=shower.show(value),
            value_bytes=len(value or b""),
            headers=headers or [],
        )


def _time(milliseconds: int) -> datetime | None:
    """A producer may write any number."""
    try:
        return None if milliseconds < 0 else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
