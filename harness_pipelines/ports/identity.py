"""Is the log still the one that the table was made from?"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import Log, TopicIdentity, added_partitions, check_positions
from harness_pipelines.protocol.keys import partitions_grown
from harness_pipelines.protocol.schema.schemas import check_columns


def check_topic(table: TableRow, found: TopicIdentity, *, known: Collection[int] | None = None) -> None:
    """Is *found* the topic that the table was made from?

    *known* are all partitions of the table: those of a keyed one must be all that the topic has.
    Raises: TopicRecreated, ClusterChanged, PartitionsMissing, PartitionsGrown.
    """
    added_partitions(table.identity, found)
    if table.spec.key and known is not None and (added := set(found.partitions) - set(known)):
        raise partitions_grown(table.name, known=known, added=added)


def check_source(
    table: TableRow, stream: Log, positions: Mapping[int, int], *, known: Collection[int] | None = None
) -> None:
    """Is the log still the one that the table was made from, and does it hold all from *positions* on?

    *known* are all partitions of the table, given by those who take more of it.
    Raises: TopicMissing, TopicRecreated, ClusterChanged, PartitionsMissing, PartitionsGrown, RecordsLost, LogTruncated;
    SpecDisagrees, where nothing says what its records are to be decoded to.
    """
    check_columns(table.spec, fields=table.fields, schema_version=table.schema_version)
    check_topic(table, stream.describe(table.spec.topic), known=known)
    check_positions(table.spec.topic, positions, stream.watermarks(table.spec.topic, positions))
