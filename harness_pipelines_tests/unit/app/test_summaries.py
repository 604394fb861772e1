"""What a table shows of itself, and figures of values that come in batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness_pipelines as hp
from harness_pipelines.app.summaries import Summaries
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.protocol.schema.schemas import SchemaRow
from harness_pipelines.spec.table import TableSpec


class Shown(Summaries):
    """A table whose rows are *batches*."""

    def __init__(self, batches: Sequence[pa.RecordBatch] = (), **words: Any) -> None:
        self.spec = TableSpec.model_validate({"table": "shop.orders", "columns": {"id": "long"}, **words})
        identity = TopicIdentity(cluster_id="c", topic="t", topic_id="i", partitions=(0,))
        first = SchemaRow(schema_version=1, fields=(), spec={}, starts={})
        self.row = TableRow(
            table_id=1, spec=self.spec, identity=identity, retained_from=1, stopped=None, history=(first,)
        )
        self.name, self._batches = self.spec.table, batches

    @contextmanager
    def reader(self, **_: Any) -> Iterator[pa.RecordBatchReader]:
        yield pa.RecordBatchReader.from_batches(self._batches[0].schema, self._batches)

    def read(self, **_: Any) -> pa.Table:
        raise AssertionError


def described(*parts: Sequence[Any], type_: pa.DataType) -> dict[str, Any]:
    batches = [pa.record_batch({"v": pa.array(part, type_)}) for part in parts]
    [found] = Shown(batches).describe().to_pylist()
    return dict(found)


def test_the_api_is_there_before_it_is_used():
    assert {"connect", "Table", "TableSpec", "Harness"} <= set(dir(hp))


def test_a_table_says_what_it_is():
    columns = {"id": {"type": "long", "required": True}, "note": {"type": "string", "description": "<b> & more"}}
    orders = Shown(key="id", columns=columns, description="Orders of all shops")
    assert repr(orders) == "<Table shop.orders: topic shop.orders, key (id), 2 columns>"
    html = orders._repr_html_()
    assert "Orders of all shops" in html and "&lt;b&gt; &amp; more" in html and "id (key)" in html
    assert orders.columns == ("id", "note")
    assert orders.schema.names == ["id", "note"]
    assert [field.nullable for field in orders.schema] == [False, True]


@given(st.lists(st.lists(st.none() | st.integers(-(2**40), 2**40), max_size=6), min_size=1, max_size=4))
def test_figures_are_those_of_all_batches_together(parts: list[list[int | None]]):
    found = described(*parts, type_=pa.int64())
    every = [value for part in parts for value in part]
    known = [value for value in every if value is not None]
    assert (found["rows"], found["nulls"]) == (len(every), len(every) - len(known))
    assert found["least"] == (str(min(known)) if known else None)
    assert found["greatest"] == (str(max(known)) if known else None)
    assert found["mean"] == (pytest.approx(sum(known) / len(known), abs=1e-6) if known else None)


def test_types_without_an_order_have_no_ends_and_long_texts_are_cut():
    found = described([[1], [2, 3]], [None], type_=pa.list_(pa.int64()))
    assert (found["rows"], found["nulls"], found["least"], found["mean"]) == (3, 1, None, None)
    assert described(["b", "a" * 99], type_=pa.string())["least"] == "a" * 57 + "..."
    assert described([date(2026, 1, 2), None], type_=pa.date32())["greatest"] == "2026-01-02"
    assert described([b"a"], type_=pa.binary())["least"] is None


def test_dates_and_times_beyond_python_s_years_have_ends():
    days = pa.array([10**7, 0], pa.int32()).cast(pa.date32())
    [found] = Shown([pa.record_batch({"v": days}), pa.record_batch({"v": days})]).describe().to_pylist()
    assert (found["least"], found["greatest"]) == ("1970-01-01", "10000000")
    moments = pa.array([2**62, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))
    [found] = Shown([pa.record_batch({"v": moments})]).describe().to_pylist()
    assert found["greatest"] == str(2**62)


def test_what_is_no_number_is_no_end():
    found = described([math.nan, 2.0], [math.nan], [1.0], type_=pa.float64())
    assert (found["least"], found["greatest"]) == ("1.0", "2.0")
    assert described([math.nan], type_=pa.float64())["least"] is None
