"""Checks that the log is still the one that the table was created from."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from harness_pipelines.ports.errors import PartitionsMissing
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import STALE_S, Log, TopicIdentity, added_partitions, check_positions
from harness_pipelines.protocol.keys import partitions_grown
from harness_pipelines.protocol.schema.schemas import check_columns

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
