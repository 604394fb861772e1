"""The log as a port: identities, watermarks and batches with exact ranges."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol, Self

import numpy as np

from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.ports.errors import (
    ClusterChanged,
    LogRewritten,
    LogTruncated,
    PartitionsMissing,
    RecordsLost,
    TopicMissing,
    TopicRecreated,
)
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.keys import partitions_grown
from harness_pipelines.protocol.schema.schemas import check_columns
from harness_pipelines.protocol.topics import topics_of
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from harness_pipelines.ports.ledger import TableRow

Headers = list[tuple[str, bytes | None]]
Start = Literal["earliest", "latest"] | datetime

MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdentity:
    """Identity of a topic: a topic that was deleted and created again has the same name but another `topic_id`.

    For a table of several topics, names and ids are joined with commas; see `protocol.topics`.
    """

    cluster_id: str
    topic: str
    topic_id: str
    partitions: tuple[int, ...]  #: ascending


@dataclass(frozen=True, slots=True)
class Watermark:
    """The offsets of a partition for a reader of committed records: ``[low, end)``."""

    low: int  #: log start
    end: int  #: last stable offset: no record of an open transaction lies below it


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """Records behind the oldest open transaction of a partition, including committed records of other producers."""

    end: int  #: the transaction's first record; readers of committed records come no further
    newest: int  #: where the log ends for all others
    since: datetime | None  #: time of that first record, where the broker gives it

    def __str__(self) -> str:
        since = "" if self.since is None else f" since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.newest - self.end:,} offsets from {self.end} on are held by an open transaction{since}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionBatch:
    """All records of ``[low, high)`` of one partition that a reader of committed records may see.

    `high` is the reader's position, not "last offset + 1": control records and aborted transactions leave gaps, so a
    batch may be empty with ``high > low``. All sequences have the same length n; offsets are strictly increasing.
    """

    partition: int
    low: int
    high: int
    offsets: NDArray[np.int64]  #: shape (n,)
    timestamps_ms: NDArray[np.int64]  #: shape (n,), milliseconds since 1970 UTC, -1 where the log has none
    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[Headers | None]  #: None where the record has none
    leader_epoch: int | None  #: of the last record; None for an empty batch or an old broker

    def __len__(self) -> int:
        return len(self.values)


class LogReader(Protocol):
    """One consumer over partitions of one topic. Not safe for use by two threads at once."""

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset of each assigned partition."""
        ...

    def poll(self, max_records: int, timeout_s: float, *, max_bytes: int = MAX_BYTES) -> list[PartitionBatch]:
        """Return available records, at most one batch per partition; wait up to *timeout_s* if there are none.

        A batch starts where the previous one ended. Batches exceed *max_bytes* (of values) at most by the records that
        the client had prefetched. Raises: KafkaUnreachable if the cluster was silent for too long, TopicMissing,
        TopicRecreated, TopicForbidden, LogTruncated, RecordsLost, RecordUnreadable, KafkaLoginFailed,
        CertificateRefused.
        """
        ...

    def seek(self, partition: int, offset: int) -> None:
        """Let the next batch of *partition* start at *offset*; prefetched records are dropped."""
        ...

    def assign(self, positions: Mapping[int, int]) -> None:
        """Read exactly these partitions; a partition that stays at its position keeps its prefetched records."""
        ...

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Feed:
    """Lets many readers of one owner share a consumer, which calls `wake` when a reader should poll."""

    owner: str  #: readers of one owner have different partitions of a topic
    wake: Callable[[], None]  #: called by another thread when records may be there; it must not wait


class Log(Protocol):
    """A Kafka cluster. Every call may raise KafkaUnreachable, KafkaLoginFailed and KafkaFailed."""

    def topics(self) -> list[str]:
        """Return the names of all topics that the user may see, in their order, without Kafka's own."""
        ...

    def describe(self, topic: str) -> TopicIdentity:
        """Raises: TopicMissing, TopicForbidden."""
        ...

    def identities(self, topics: Collection[str]) -> dict[str, TopicIdentity | HarnessError]:
        """Return the identity of each topic, or its error; those of all are asked for at once."""
        ...

    def identity_async(self, topic: str) -> Callable[[], TopicIdentity]:
        """Request the identity; the returned callable waits for the answer and raises the errors of `describe`.

        Called again, it asks again.
        """
        ...

    def watermarks(self, topic: str, partitions: Iterable[int]) -> dict[int, Watermark]:
        """Raises: TopicMissing (also for a partition that the topic does not have), TopicForbidden."""
        ...

    def watermarks_of(self, wanted: Mapping[str, Collection[int]]) -> dict[str, dict[int, Watermark] | HarnessError]:
        """Return the watermarks of partitions of many topics; for a topic that fails, its error."""
        ...

    def unstable(self, wanted: Mapping[str, Collection[int]]) -> set[str]:
        """Return the topics of which `held` may find something; all are asked about at once."""
        ...

    def held(self, topic: str, partitions: Iterable[int]) -> dict[int, OpenTransaction]:
        """Return those of *partitions* with records behind an open transaction. Raises: as `watermarks`."""
        ...

    def start_offsets(self, topic: str, partitions: Iterable[int], start: Start) -> dict[int, int]:
        """Return the first offset to read per partition.

        A datetime (with a time zone) means the first record whose timestamp is not before it, or the end of the log.
        """
        ...

    def cleanup_policy(self, topic: str) -> str | None:
        """Return Kafka's ``cleanup.policy``: ``delete``, ``compact`` or both. None if the user has no right to read it.

        Raises: TopicMissing.
        """
        ...

    def reader(
        self,
        topic: str,
        positions: Mapping[int, int],
        *,
        identity: TopicIdentity | None = None,
        feed: Feed | None = None,
    ) -> LogReader:
        """Open a reader. With *identity* it distinguishes a lost position from a recreated topic.

        Readers with a *feed* share a consumer.
        """
        ...

    def close(self) -> None: ...


def described(log: Log, topic: str) -> TopicIdentity:
    """As `Log.describe`, for a person: the error of a topic that is missing names one like it."""
    try:
        return log.describe(topic)
    except TopicMissing as missing:
        near = nearest(missing.topic, log.topics())
        raise TopicMissing(missing.topic, bootstrap=missing.bootstrap, near=near) from None


def added_partitions(expected: TopicIdentity, found: TopicIdentity) -> tuple[int, ...]:
    """Return the partitions that *found* has beyond *expected*, after checking that both are the same topic.

    Raises: ClusterChanged, TopicRecreated, PartitionsMissing.
    """
    if expected.cluster_id != found.cluster_id:
        raise ClusterChanged(expected.topic, expected_id=expected.cluster_id, found_id=found.cluster_id)
    ids = zip(topics_of(found.topic), expected.topic_id.split(","), found.topic_id.split(","), strict=True)
    for topic, expected_id, found_id in ids:
        if expected_id != found_id:
            raise TopicRecreated(topic, expected_id=expected_id, found_id=found_id)
    if not set(expected.partitions) <= set(found.partitions):
        raise PartitionsMissing(expected.topic, expected=expected.partitions, found=found.partitions)
    return tuple(sorted(set(found.partitions) - set(expected.partitions)))


def check_positions(topic: str, positions: Mapping[int, int], watermarks: Mapping[int, Watermark]) -> None:
    """Check that the log still holds all records from each position on.

    Raises: RecordsLost, LogTruncated.
    """
    for partition, position in sorted(positions.items()):
        mark = watermarks[partition]
        if mark.low > position:
            raise RecordsLost(topic, partition=partition, expected=position, log_start=mark.low)
        if mark.end < position:
            raise LogTruncated(topic, partition=partition, expected=position, end=mark.end)


def above(batch: PartitionBatch, low: int) -> PartitionBatch:
    """Return the records of *batch* at and above *low*."""
    if batch.low >= low:
        return batch
    drop = int((batch.offsets < low).sum())
    return PartitionBatch(
        partition=batch.partition,
        low=low,
        high=batch.high,
        offsets=batch.offsets[drop:],
        timestamps_ms=batch.timestamps_ms[drop:],
        values=batch.values[drop:],
        keys=batch.keys[drop:],
        headers=batch.headers[drop:],
        leader_epoch=batch.leader_epoch,
    )


def below(batch: PartitionBatch, high: int) -> PartitionBatch:
    """Return the records of *batch* below *high*."""
    if batch.high <= high:
        return batch
    keep = int((batch.offsets < high).sum())
    return PartitionBatch(
        partition=batch.partition,
        low=batch.low,
        high=high,
        offsets=batch.offsets[:keep],
        timestamps_ms=batch.timestamps_ms[:keep],
        values=batch.values[:keep],
        keys=batch.keys[:keep],
        headers=batch.headers[:keep],
        leader_epoch=batch.leader_epoch,
    )


OpenLog = Callable[[Settings], Log]  #: opens the log of an installation; it can be sent to other processes


BATCH_RECORDS_MAX = 65_536  #: a unit stays far below the 10 s that a commit may take


POLL_S = 0.5


STALE_S = 5.0  #: how long a broker may answer without partitions that others have, before that is believed
ASK_AGAIN_S = 0.2


def settled(expected: TopicIdentity, ask: Callable[[], TopicIdentity]) -> TopicIdentity:
    """The answer of *ask*, checked as `added_partitions` does; one that lacks partitions is asked for again.

    Kafka never takes partitions away, but for a moment after some were added a broker may answer without them.
    Raises: ClusterChanged, TopicRecreated; PartitionsMissing when it lacks them for `STALE_S`.
    """
    deadline = time.monotonic() + STALE_S
    while True:
        found = ask()
        try:
            added_partitions(expected, found)
        except PartitionsMissing:
            if time.monotonic() >= deadline:
                raise
        else:
            return found
        time.sleep(ASK_AGAIN_S)


def check_topic(
    table: TableRow, ask: Callable[[], TopicIdentity], *, known: Collection[int] | None = None
) -> TopicIdentity:
    """Check that what *ask* answers is the topic that the table was created from, and return it (`settled`).

    *known* are all partitions of the table; for a keyed table they must be all partitions of the topic.
    Raises: TopicRecreated, ClusterChanged, PartitionsMissing, PartitionsGrown.
    """
    found = settled(table.identity, ask)
    if table.spec.key and known is not None and (added := set(found.partitions) - set(known)):
        raise partitions_grown(table.name, known=known, added=added)
    return found


def check_source(
    table: TableRow, stream: Log, positions: Mapping[int, int], *, known: Collection[int] | None = None
) -> None:
    """Check that the log is still the table's and holds all records from *positions* on.

    *known* are all partitions of the table; callers that ingest give them.
    Raises: TopicMissing, TopicRecreated, ClusterChanged, PartitionsMissing, PartitionsGrown, RecordsLost, LogTruncated;
    SpecDisagrees if the spec does not determine how records are decoded.
    """
    check_columns(table.spec, fields=table.fields, schema_version=table.schema_version)
    check_topic(table, lambda: stream.describe(table.spec.topic), known=known)
    check_positions(table.spec.topic, positions, stream.watermarks(table.spec.topic, positions))


# -- epochs -------------------------------------------------------------------------------------------------------
#
# An unclean leader election may cut records off, and new ones are then given their offsets: the log ends above the
# position again, and nothing looks wrong. But every leader writes its epoch into its records, and a later leader has a
# larger one. A log in which the last record below the position has a larger epoch than was read there was cut below it.
# A consumer that runs has librdkafka ask the broker (OffsetsForLeaderEpoch); to one that begins it does not offer that,
# so the record itself is read. See decision 38.

COMPARE_S = 30.0  #: how long the records may take to come


class LogNotCompared(TryAgain):
    """Kafka did not return the record that the table read last."""


def check_epochs(table: TableRow, log: Log, read: Mapping[int, tuple[int, int | None]]) -> None:
    """Compare the log with what was *read* of it: by partition the position, and the leader epoch of the last record.

    Brokers that write no epochs allow no check. Raises: LogRewritten (NEVER); LogNotCompared, and what
    `LogReader.poll` does.
    """
    known = {p: (position, epoch) for p, (position, epoch) in read.items() if epoch is not None}
    if not known:
        return
    topic = table.spec.topic
    marks = log.watermarks(topic, known)
    for partition, (position, epoch) in sorted(known.items()):
        found = _epoch_below(table, log, partition, low=marks[partition].low, high=position)
        if found is not None and epoch is not None and found > epoch:
            raise LogRewritten(topic, partition=partition, position=position, expected=epoch, found=found)


def epochs_of(table: TableRow, log: Log, ranges: Sequence[OffsetRange]) -> dict[int, int]:
    """By partition the epoch of the last record of *ranges*, where there is one. Raises: as `check_epochs`."""
    found = {r.partition: _epoch_below(table, log, r.partition, low=r.low, high=r.high) for r in ranges}
    return {partition: epoch for partition, epoch in found.items() if epoch is not None}


def _epoch_below(table: TableRow, log: Log, partition: int, *, low: int, high: int) -> int | None:
    """The epoch of the last record in ``[low, high)``, if there is any: offsets have gaps, so it is looked for."""
    end, back = high, 1
    while end > low:
        begin = max(low, high - back)
        with log.reader(table.spec.topic, {partition: begin}, identity=table.identity) as reader:
            found = _last_epoch(table, reader, partition, end=end)
        if found is not None:
            return found
        end, back = begin, back * 4
    return None


def _last_epoch(table: TableRow, reader: LogReader, partition: int, *, end: int) -> int | None:
    """The epoch of the last record that *reader* gives below *end*; one by one, a batch tells its last one's alone."""
    epoch: int | None = None
    until = time.monotonic() + COMPARE_S
    while reader.positions[partition] < end:
        if time.monotonic() > until:
            raise LogNotCompared(
                f"{table.name}: partition {partition} gave no record below offset {end} within {COMPARE_S:.0f} s, so "
                "it is not known whether the log is still the one that was read; nothing was written, it is tried again"
            )
        for batch in reader.poll(1, POLL_S):
            if len(batch) and batch.offsets[-1] < end:
                epoch = batch.leader_epoch
    return epoch
