"""The demo's judge: it must find what it promises to find."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from harness_pipelines.demo.lineitem import COLUMNS, Lineitem, appended
from harness_pipelines.demo.scenario import PARTITIONS
from harness_pipelines.demo.source import encode
from harness_pipelines.demo.truth import SeenPartition, Truth, split
from harness_pipelines.demo.verify import compare_offsets, sums_of
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.spec.arrow import arrow_schema

ROWS = 40
LINEITEM = Lineitem()


def lineitems(count: int = ROWS) -> pa.Table:
    made = [
        {
            name: Decimal(i) / 4 if "decimal" in kind else f'it\'s "{i}" \\' if kind == "string" else i
            for name, kind in COLUMNS.items()
        }
        for i in range(count)
    ]
    return pa.Table.from_pylist(made, schema=arrow_schema(LINEITEM.spec.columns))


@pytest.fixture
def truth():
    """All acknowledged, with a gap: offsets 0..4, then 6.."""
    found = Truth.of(appended(lineitems(), file=Path()), LINEITEM.checked)
    for partition in found.partitions.values():
        for k in range(ROWS // PARTITIONS):
            partition.take(k if k < 5 else k + 1, at=float(k))
    return found


def read_below(bounds: dict[int, int]) -> pa.Table:
    rows = lineitems()
    partition = np.arange(ROWS) % PARTITIONS
    k = np.arange(ROWS) // PARTITIONS
    offsets = np.where(k < 5, k, k + 1)
    rows = rows.append_column("_kafka_partition", pa.array(partition, pa.int32()))
    rows = rows.append_column("_kafka_offset", pa.array(offsets, pa.int64()))
    return rows.filter(pa.array([offsets[i] < bounds[partition[i]] for i in range(ROWS)]))


def cut(rows: pa.Table) -> Mapping[int, SeenPartition]:
    return split(rows, LINEITEM.checked)


CUT = {0: 3, 1: 0, 2: 11, 3: 6}


def test_a_read_that_is_exactly_the_cut_has_no_faults(truth):
    assert truth.faults(CUT, cut(read_below(CUT))) == []


def test_a_row_too_few_a_row_twice_and_a_row_too_many_are_found(truth):
    rows = read_below(CUT)
    short, twice = rows.slice(1), pa.concat_tables([rows, rows.slice(0, 1)])
    over = read_below({**CUT, 1: 1})

    assert truth.faults(CUT, cut(short)) == ["partition 0 below 3: 3 records were sent, 2 rows were read"]
    assert truth.faults(CUT, cut(twice)) == ["partition 0 below 3: 3 records were sent, 4 rows were read"]
    assert truth.faults(CUT, cut(over)) == ["partition 1 below 0: 0 records were sent, 1 rows were read"]


def test_a_changed_value_is_found(truth):
    rows = read_below(CUT)
    changed = rows.set_column(0, rows.schema.field(0), pa.array([1, *rows.column(0).to_pylist()[1:]], pa.int64()))

    assert truth.faults(CUT, cut(changed)) == ["partition 0 below 3: sum of l_orderkey is 13, sent were 12"]


def test_a_cut_above_what_is_acknowledged_waits():
    truth = Truth.of(appended(lineitems(), file=Path()), LINEITEM.checked)
    truth.partitions[0].take(0, at=1.0)

    assert truth.covers({0: 1, 1: 0})
    assert not truth.covers({0: 2})
    assert not truth.covers({1: 1})


def test_missing_and_doubled_offsets_are_counted(truth):
    rows = read_below(dict.fromkeys(range(PARTITIONS), 100))

    assert compare_offsets(rows, truth) == (0, 0)
    assert compare_offsets(pa.concat_tables([rows.slice(2), rows.slice(5, 3)]), truth) == (2, 3)


def test_the_codec_reads_what_the_producer_writes():
    rows = lineitems()

    values = encode(rows)
    decoded = JsonCodec(LINEITEM.spec.columns, unknown_fields="quarantine").decode(values)

    assert all(list(json.loads(value)) == list(COLUMNS) for value in values)
    assert decoded.refused == []
    assert decoded.rows.equals(rows)


def test_sums_are_exact():
    assert sums_of(lineitems(), LINEITEM.numeric)["l_quantity"] == Decimal(sum(range(ROWS))) / 4
