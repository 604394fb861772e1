"""Which columns of a segment share one value, and what that value is."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from harness_pipelines.buffers.postgres.types import rest_of, segment_ddl, segment_rows, to_copy
from harness_pipelines.buffers.postgres.wide_rows import REST
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.schema.schemas import Other
from harness_pipelines.spec.table import TableSpec


def spec(columns: dict[str, Any], **more: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "a.b", "columns": columns, **more})


@pytest.mark.parametrize(
    ("kind", "fit"),
    [
        ("long", 937), ("boolean", 937), ("double", 937), ("date", 937), ("timestamptz", 937), ("decimal(18,2)", 937),
        ("uuid", 468), ("string", 312), ("binary", 312), ("decimal(38,10)", 312), ("list<int>", 312),
        ("struct<a: int>", 312), ("map<string, int>", 312),
    ],
)  # fmt: skip
def test_columns_that_a_page_has_room_for_whatever_is_in_them_stay_columns(kind: str, fit: int):
    names = [f"c{i}" for i in range(fit + 3)]
    assert rest_of(spec(dict.fromkeys(names[:fit], kind))) == ()
    assert rest_of(spec(dict.fromkeys(names, kind))) == tuple(names[fit:])


def test_keys_and_the_columns_of_the_layout_stay_columns_wherever_they_stand():
    columns = {**{f"c{i}": "string" for i in range(600)}, "k": "string", "l": "string"}
    found = rest_of(spec(columns, key=["k"], layout={"columns": ["l"]}))
    assert len(found) == 600 - 310
    assert not {"k", "l"} & {*found}
    assert found == tuple(sorted(found, key=lambda name: int(name[1:])))


def test_a_segment_whose_rows_always_fit_is_made_and_read_as_ever():
    narrow = spec({"id": "long", "s": "string"})
    assert REST not in segment_ddl("t", narrow.columns).as_string()
    rows = pa.table({"id": [1], "s": ["x"]})
    assert to_copy(rows, rest_of(narrow)).column_names == ["id", "s"]
    assert "json" not in segment_rows(rows.schema, SegmentRef(name="t", schema_version=1)).as_string()


def test_null_takes_no_room_in_the_shared_value():
    rows = pa.table({"id": [1, 2], "a": pa.array([None, 2**63 - 1]), "b": pa.array([None, 'x"\\'])})
    copied = to_copy(rows, ["a", "b"])
    assert copied.column_names == ["id", REST]
    assert [json.loads(one) for one in copied.column(REST).to_pylist()] == [
        {"v": 1}, {"v": 1, "f0": 2**63 - 1, "f1": 'x"\\'},
    ]  # fmt: skip


def test_no_rows_have_no_shared_values():
    rows = pa.table({"id": pa.array([], pa.int64()), "a": pa.array([], pa.binary())})
    assert to_copy(rows, ["a"]).column(REST).to_pylist() == []


def test_only_what_is_wanted_is_taken_out_of_the_shared_value_by_its_name_there():
    ref = SegmentRef(
        name="t",
        schema_version=1,
        packed=("gone", "old", "x"),
        others=(Other(name="new", stored="old", type="int"), Other(name="fresh", stored=None)),
    )
    wanted = pa.schema([("id", pa.int64()), ("new", pa.int64()), ("fresh", pa.string())])
    text = segment_rows(wanted, ref).as_string()
    assert 'AS p("f1" integer)' in text and 'p."f1" AS "old"' in text
    assert '"old"::bigint AS "new"' in text and 'NULL::text AS "fresh"' in text
    assert "json_to_record" not in segment_rows(pa.schema([("id", pa.int64())]), ref).as_string()
