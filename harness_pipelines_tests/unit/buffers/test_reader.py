"""The statement that reads segments."""

from __future__ import annotations

import pyarrow as pa

from harness_pipelines.buffers.postgres.reader import POINT_OFFSETS_MAX, statement
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.reading.queries import BufferQuery
from harness_pipelines.protocol.topics import table_partition


def test_a_statement_is_as_long_as_there_are_partitions_whatever_their_numbers():
    many = (0, 10 * POINT_OFFSETS_MAX)
    query = BufferQuery(
        table="shop.orders",
        segments=[SegmentRef(name="seg_1", schema_version=1)],
        ranges={table_partition(topic, partition): many for topic in range(3) for partition in range(4)},
        schema=pa.schema([pa.field("_kafka_offset", pa.int64())]),
    )
    assert len(statement(query)) < 1_000
