"""Rows decoded on executors have the types that Spark's Iceberg tables can hold, at every depth."""

from __future__ import annotations

import json
import uuid

import pyarrow as pa

from harness_pipelines.engines.spark.kafka import _decode_rows, _for_spark, spark_schema
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.table import TableSpec

SPEC = TableSpec.model_validate({
    "table": "a.b",
    "columns": {
        "t": "time",
        "l": "list<time>",
        "u": "uuid",
        "n": "struct<u: uuid, l: list<uuid>, m: map<uuid, list<time>>, z: int>",
    },
})  # fmt: skip
ONE, TWO = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
SECOND = 1_000_000


def in_spark(*records):
    decoded = JsonCodec(SPEC.columns).decode([json.dumps(record).encode() for record in records])
    arrays = {name: _for_spark(decoded.rows[name].combine_chunks()) for name in decoded.rows.column_names}
    for name, array in arrays.items():
        array.validate(full=True)
        assert array.type == spark_schema(SPEC).field(name).type
    return [{name: array[i].as_py() for name, array in arrays.items()} for i in range(len(records))]


def test_times_are_microseconds_and_uuids_are_text_at_every_depth():
    full = {"u": ONE, "l": [None, TWO], "m": {ONE: ["00:00:02", None], TWO: None}, "z": 4}

    assert in_spark({"t": "01:00:00", "l": ["00:00:01", None], "u": TWO, "n": full}) == [
        {
            "t": 3600 * SECOND,
            "l": [SECOND, None],
            "u": TWO,
            "n": {"u": ONE, "l": [None, TWO], "m": [(ONE, [2 * SECOND, None]), (TWO, None)], "z": 4},
        }
    ]


def test_nothing_stays_nothing_and_empty_stays_empty():
    nothing = {"t": None, "l": None, "u": None, "n": None}

    assert in_spark({}, {"l": [], "n": {"l": [], "m": {}}}, {"n": {"z": 1}}, {}) == [
        nothing,
        {**nothing, "l": [], "n": {"u": None, "l": [], "m": [], "z": None}},
        {**nothing, "n": {"u": None, "l": None, "m": None, "z": 1}},
        nothing,
    ]


def test_no_rows_have_the_same_types():
    assert in_spark() == []


def test_a_record_for_which_the_log_has_no_timestamp_has_none():
    stamps = [-1_000, 0, 1_700_000_000_123_000]  # Spark makes a moment of Kafka's -1 ms
    records = pa.record_batch({
        "partition": pa.array([0, 0, 0], pa.int32()),
        "offset": pa.array([7, 8, 9], pa.int64()),
        "timestamp": pa.array(stamps, pa.timestamp("us", "America/New_York")),
        "key": pa.nulls(3, pa.binary()),
        "value": pa.array([b"{}"] * 3, pa.binary()),
    })  # fmt: skip

    rows = pa.Table.from_batches(_decode_rows(records, RecordCodec(SPEC), spark_schema(SPEC), 1))

    assert rows.column("_kafka_timestamp").cast(pa.int64()).to_pylist() == [None, *stamps[1:]]
