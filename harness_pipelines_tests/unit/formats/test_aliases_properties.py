"""A batch with columns by any of their names is the same batch with the columns' own, tried on random ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.columns import chunked as codec_module
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.decode import RecordsCodec
from harness_pipelines.formats.schema.writer_schema import WriterType, WrittenField
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import Primitive
from harness_pipelines_tests.unit.formats import values

modes = st.sampled_from(["ignore", "quarantine"])
thorough = settings(max_examples=150)


def verdicts(found: Decoded) -> Any:
    return found.accepted.tolist(), [(r.index, r.reason, r.detail) for r in found.refused]


@st.composite
def aliased(draw: st.DrawFn) -> tuple[Column, ...]:
    columns = draw(values.columns())
    return tuple(
        replace(c, aliases=tuple(f"{c.name}{i}" for i in range(draw(st.integers(0, 2))))) for c in columns
    )  # no name of `values` ends with a number but f0, which none begins with


Parts = list[tuple[str, str]]  #: fields of a record and their JSON text, in the order in which they are written


def text(parts: Parts) -> bytes:
    return ("{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in parts) + "}").encode()


@st.composite
def twice(draw: st.DrawFn, columns: tuple[Column, ...]) -> tuple[bytes, bytes]:
    """A record by any names, beside ones that do not count, and the same by the columns' own names."""
    told: Parts = []
    own: Parts = []
    any_value = st.sampled_from(["null", '"x"', "1", "-0.5", "[]", "{}", "true", '"2026-01-31"', "1e999"])
    for column in columns:
        if draw(st.integers(0, 3)) == 0:
            continue
        good = values.written(column.type).map(lambda found: found[0])
        value = draw(good | any_value) if draw(st.integers(0, 5)) == 0 else draw(values.present(column.type))[0]
        at = draw(st.integers(0, len(column.aliases)))
        told.append((column.names[at], value))
        own.append((column.name, value))
        for later in column.names[at + 1 :]:
            if draw(st.booleans()):
                continue
            told.insert(draw(st.integers(0, len(told))), (later, draw(any_value.filter(lambda v: v != "1e999"))))
    if draw(st.integers(0, 9)) == 0:
        told.append(("unknown", "1"))
        own.append(("unknown", "1"))
    return text(told), text(own)


@thorough
@given(st.data(), aliased(), modes, st.integers(1, 4))
def test_a_random_mix_of_names_is_the_same_batch_with_the_columns_own(data, columns, unknown_fields, chunk_records):
    records = data.draw(st.lists(twice(columns), max_size=8))
    codec = JsonCodec(columns, unknown_fields=unknown_fields)
    plain = JsonCodec([replace(c, aliases=()) for c in columns], unknown_fields=unknown_fields)

    with mock.patch.multiple(codec_module, CHUNK_RECORDS=chunk_records):
        mixed = codec.decode([told for told, _ in records])
    own = codec.decode([own for _, own in records])
    without = plain.decode([own for _, own in records])

    assert verdicts(mixed) == verdicts(own) == verdicts(without)
    assert mixed.rows.equals(own.rows) and own.rows.equals(without.rows)


@thorough
@given(st.data(), aliased(), modes)
def test_the_verdict_on_a_record_never_depends_on_its_batch(data, columns, unknown_fields):
    records = data.draw(st.lists(twice(columns).map(lambda both: both[0]) | values.bad_records(columns), max_size=8))
    codec = JsonCodec(columns, unknown_fields=unknown_fields, value_bytes_max=150)

    together = codec.decode(records)
    alone = [codec.decode([value]) for value in records]

    assert together.accepted.tolist() == [i for i, one in enumerate(alone) if len(one.accepted)]
    assert [(r.reason, r.detail) for r in together.refused] == [
        (r.reason, r.detail) for one in alone for r in one.refused
    ]
    assert together.rows.to_pylist() == [row for one in alone for row in one.rows.to_pylist()]


@thorough
@given(st.data(), values.columns())
def test_records_without_any_alias_are_what_they_are_without_aliases(data, columns):
    records = data.draw(st.lists(values.bad_records(columns), max_size=8))
    of = tuple(replace(c, aliases=(f"no such {i}",)) for i, c in enumerate(columns))

    assert verdicts(JsonCodec(of).decode(records)) == verdicts(JsonCodec(columns).decode(records))


KEYED = TableSpec.model_validate({
    "table": "a.b", "key": ["k"], "views": "stream", "delete": {"field": "op", "values": ["d"]},
    "columns": {
        "k": {"type": "int", "required": True, "aliases": ["key"]}, "op": {"type": "string", "aliases": ["o", "was"]},
    },
})  # fmt: skip
SENT = st.tuples(st.sampled_from(["k", "key"]), st.integers(0, 3) | st.just("x"), st.sampled_from(["op", "o", "was"]),
                 st.sampled_from(["d", "u", None]), st.booleans())  # fmt: skip


@given(st.lists(SENT, max_size=8))
def test_puts_deletes_and_tombstones_are_the_same_by_any_names(sent):
    def record(key: str, number: Any, op_name: str, op: Any, tombstone: bool) -> tuple[bytes, bytes | None]:
        return json.dumps({key: number}).encode(), None if tombstone else json.dumps(
            {key: number, op_name: op}
        ).encode()

    codec = RecordCodec(KEYED)
    mixed, own = [record(*one) for one in sent], [record("k", n, "op", op, gone) for _, n, _, op, gone in sent]
    first, second = (codec.decode([v for _, v in records], [k for k, _ in records]) for records in (mixed, own))

    assert verdicts(first) == verdicts(second)
    assert first.rows.equals(second.rows)


def proto_like(name: str, kind: str) -> WrittenField:
    """A field that a record may be without, as Protobuf's."""
    meant: Any = kind
    return WrittenField(
        name=name, written=WriterType(kind=meant, name=kind), get=lambda r: r.get(name), has=lambda r: name in r
    )


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["x", "y", "z"]), st.integers(-3, 3) | st.just(2**40), max_size=2), max_size=8
    )
)
def test_fields_of_one_column_that_are_written_in_several_ways_are_each_read_by_its_own(
    records: list[Mapping[str, Any]],
):
    """x: a number, y: a text, z: nothing that gives the column."""
    column = Column(name="x", type=Primitive("int"), aliases=("y", "z"), required=True)
    fields = (proto_like("z", "boolean"), proto_like("y", "enum"), proto_like("x", "int"))
    names = {n: n for n in range(-3, 4)}
    fields = (
        fields[0],
        replace(fields[1], written=replace(fields[1].written, names={n: str(n) for n in names})),
        fields[2],
    )
    found = RecordsCodec([column], WriterType(kind="struct", name="R", fields=fields)).decode(records)  # type: ignore[arg-type]

    rows = dict(zip(found.accepted.tolist(), found.rows.column("x").to_pylist(), strict=True))
    refused = {r.index: r.reason for r in found.refused}
    for i, one in enumerate(records):
        name = next((n for n in "xyz" if n in one), None)
        if name in (None, "z"):
            assert refused[i] is (Reason.MISSING_FIELD if name is None else Reason.WRONG_TYPE)
        elif one[name] == 2**40:
            assert refused[i] is Reason.OUT_OF_RANGE
        else:
            assert rows[i] == one[name]
