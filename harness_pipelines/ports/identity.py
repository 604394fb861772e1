"""Checks that the log is still the one that the table was created from."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import Log, TopicIdentity, added_partitions, check_positions
from harness_pipelines.protocol.keys import partitions_grown
from harness_pipelines.protocol.schema.schemas import check_columns


def check_topic(table: TableRow, found: TopicIdentity, *, known: Collection[int] | None = None) -> None:
    """Check that *found* is the topic that the table was created from.

    *known* are all partitions of the table; for a keyed table they must be all partitions of the topic.
    Raises: TopicRecreated, ClusterChanged, PartitionsMissing, PartitionsGrown.
    """
    added_partitions(table.identity, found)
    if table.spec.key and known is not None and (added := set(found.partitions) - set(known)):
        raise partitions_grown(table.name, known=known, added=added)


def check_source(
    table: TableRow, stream: Log, positions: Mapping[int, int], *, known: Collection[int] | None = None
) -> None:
    """Check that the log is still the table's and holds all records from *positions* on.

    *known* are all partitions of the table; callers that ingest give them.
    Raises: TopicMissing, TopicRecreated, ClusterChanged, PartitionsMissing, PartitionsGrown, RecordsLost, LogTruncated;
    SpecDisagrees if the spec does not determine how records are decoded.
    """
    check_columns(table.spec, fields=table.fields, schema_version=table.schema_version)
    check_topic(table, stream.describe(table.spec.topic), known=known)
    check_positions(table.spec.topic, positions, stream.watermarks(table.spec.topic, positions))
