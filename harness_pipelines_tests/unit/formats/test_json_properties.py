"""Rules of the JSON codec that hold for every record, tried on random ones."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.columns import chunked as codec_module
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import DecimalType, Primitive, Type
from harness_pipelines_tests.unit.formats import values

tried = settings(max_examples=50)
thorough = settings(max_examples=100)
modes = st.sampled_from(["ignore", "quarantine"])


def same(found, meant) -> bool:
    """Equal, and floats to the bit (-0.0 is not 0.0)."""
    if isinstance(meant, float):
        return found == meant and math.copysign(1, found) == math.copysign(1, meant)
    if isinstance(meant, dict):
        return found.keys() == meant.keys() and all(same(found[k], meant[k]) for k in meant)
    if isinstance(meant, list | tuple):
        return len(found) == len(meant) and all(map(same, found, meant))
    return bool(found == meant)


@tried
@given(st.data(), values.columns(), modes)
def test_every_value_of_every_type_comes_back_exactly(data, columns, unknown_fields):
    records = data.draw(st.lists(values.records(columns), max_size=6))

    decoded = JsonCodec(columns, unknown_fields=unknown_fields).decode([value for value, _ in records])

    assert decoded.refused == []
    assert decoded.accepted.tolist() == list(range(len(records)))
    decoded.rows.validate(full=True)
    for found, (_, meant) in zip(decoded.rows.to_pylist(), records, strict=True):
        assert same(found, meant)


def one_by_one(codec: JsonCodec, records: Sequence[bytes | None]) -> list[Decoded]:
    return [codec.decode([value]) for value in records]


@thorough
@given(st.data(), values.columns(), modes, st.integers(1, 5), st.integers(1, 200))
def test_the_verdict_on_a_record_never_depends_on_its_batch(data, columns, unknown_fields, chunk_records, chunk_bytes):
    good = values.records(columns).map(lambda record: record[0])
    records = data.draw(st.lists(good | values.bad_records(columns), max_size=9))
    codec = JsonCodec(columns, unknown_fields=unknown_fields, value_bytes_max=120)

    with mock.patch.multiple(codec_module, CHUNK_RECORDS=chunk_records, CHUNK_BYTES=chunk_bytes):
        batch = codec.decode(records)
    alone = one_by_one(codec, records)

    assert batch.accepted.tolist() == [i for i, decoded in enumerate(alone) if len(decoded.accepted)]
    assert [(r.index, r.reason, r.detail) for r in batch.refused] == [
        (i, r.reason, r.detail) for i, decoded in enumerate(alone) for r in decoded.refused
    ]
    assert batch.rows.equals(
        pa.concat_tables([codec.decode([]).rows, *(decoded.rows for decoded in alone)]).combine_chunks()
    )


@tried
@given(st.data(), values.columns(), modes)
def test_every_record_is_a_row_or_refused_and_never_both(data, columns, unknown_fields):
    records = data.draw(st.lists(values.bad_records(columns), max_size=9))

    decoded = JsonCodec(columns, unknown_fields=unknown_fields).decode(records)

    decoded.rows.validate(full=True)
    assert decoded.rows.num_rows == len(decoded.accepted)
    assert sorted([*decoded.accepted.tolist(), *(r.index for r in decoded.refused)]) == list(range(len(records)))
    assert decoded.accepted.tolist() == sorted(decoded.accepted.tolist())
    for column, field in zip(columns, decoded.rows.schema, strict=True):
        assert field.nullable is not column.required
        assert not (column.required and decoded.rows[column.name].null_count)


@tried
@given(st.data(), values.columns(), modes)
def test_what_is_refused_can_be_stored_and_read_by_a_person(data, columns, unknown_fields):
    records = data.draw(st.lists(values.bad_records(columns), max_size=9))

    for refused in JsonCodec(columns, unknown_fields=unknown_fields).decode(records).refused:
        assert refused.detail.isprintable() and 1 <= len(refused.detail) <= 300
        refused.detail.encode()


@st.composite
def nearly(draw: st.DrawFn, type_: Type) -> str:
    """JSON of a value of *type_* with a few characters changed, where a reader's grammar may be hazy."""
    text = draw(values.present(type_))[0].strip('"')
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.text("0159-+:.,eETtZz_ an\u0661", max_size=3)) + text[at + draw(st.integers(0, 2)) :]
    return f'{{"x": {json.dumps(text)}}}'


text_types = [Primitive(name) for name in ("date", "time", "timestamp", "timestamptz", "uuid")] + [DecimalType(6, 2)]


@pytest.mark.parametrize("type_", text_types, ids=str)
@settings(max_examples=200)
@given(st.data())
def test_text_that_is_nearly_right_has_the_same_verdict_beside_any_other(type_, data):
    records = [record.encode() for record in data.draw(st.lists(nearly(type_), min_size=1, max_size=8))]
    codec = JsonCodec([Column(name="x", type=type_)])

    batch = codec.decode([*records, b'{"x": "?"}'])
    alone = [codec.decode([record]) for record in records]

    assert batch.accepted.tolist() == [i for i, decoded in enumerate(alone) if len(decoded.accepted)]
    assert batch.rows.equals(pa.concat_tables([decoded.rows for decoded in alone]).combine_chunks())
    assert [r.detail for r in batch.refused[:-1]] == [r.detail for decoded in alone for r in decoded.refused]


def is_json_object(value: bytes | None) -> bool:
    """Python's own verdict (RFC 8259, which has no NaN)."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        return isinstance(json.loads((value or b"").decode(), parse_constant=refuse), dict)
    except ValueError:
        return False


@thorough
@given(st.data(), values.columns(), modes)
def test_malformed_is_what_is_no_json_object(data, columns, unknown_fields):
    records = data.draw(st.lists(values.bad_records(columns), max_size=9))

    reasons = {r.index: r.reason for r in JsonCodec(columns, unknown_fields=unknown_fields).decode(records).refused}

    for index, value in enumerate(records):
        if not value:
            assert reasons[index] is Reason.NULL_VALUE
        elif b"\\ud" not in value.lower():  # half a surrogate pair: Python takes it, but it is no text
            assert (reasons.get(index) is Reason.MALFORMED) is not is_json_object(value), value
