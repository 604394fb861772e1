"""Random columns with values, each as JSON text and as what a reader must get back."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from decimal import Context, Decimal
from typing import Any

from hypothesis import strategies as st

from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import DecimalType, FieldType, ListType, MapType, Primitive, StructType, Type

NAMES = ("id", "order-id", "größe", "select", "a b", "a.b", "f0", "it's", "class", "True")
KEYS = ("string", "int", "long", "date", "time", "timestamp", "timestamptz", "uuid")
Written = tuple[str, Any]  #: (JSON text, value in Python)

offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
stored_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)


def quoted(text: st.SearchStrategy[str]) -> st.SearchStrategy[Written]:
    return st.tuples(text, st.booleans()).map(lambda x: (json.dumps(x[0], ensure_ascii=x[1]), x[0]))


def _iso(moment: Any) -> Written:
    return f'"{moment.isoformat()}"', moment


@st.composite
def _instants(draw: st.DrawFn) -> Written:
    moment = draw(st.datetimes(timezones=st.just(dt.UTC)))
    if 1 < moment.year < 9999:
        return f'"{moment.astimezone(draw(offsets)).isoformat()}"', moment
    return _iso(moment)


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale, context=Context(prec=60))


def decimals(type_: DecimalType) -> st.SearchStrategy[Written]:
    bound = 10**type_.precision - 1
    values = st.integers(-bound, bound).map(lambda n: _decimal(n, type_.scale))
    return st.tuples(values, st.booleans()).map(lambda x: (f'"{x[0]}"' if x[1] else str(x[0]), x[0]))


def whole(bits: int) -> st.SearchStrategy[Written]:
    return (st.integers(-(2**bits), 2**bits - 1) | st.sampled_from([-(2**bits), 2**bits - 1])).map(
        lambda n: (str(n), n)
    )


PRIMITIVES: dict[str, st.SearchStrategy[Written]] = {
    "boolean": st.booleans().map(lambda b: (str(b).lower(), b)),
    "int": whole(31),
    "long": whole(63),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda x: (repr(x), x)),
    "double": st.floats(allow_nan=False, allow_infinity=False).map(lambda x: (repr(x), x)),
    "date": st.dates().map(_iso),
    "time": st.times().map(_iso),
    "timestamp": st.datetimes().map(_iso),
    "timestamptz": _instants(),
    "string": quoted(stored_text),
    "binary": st.binary(max_size=8).map(lambda b: (json.dumps(base64.b64encode(b).decode()), b)),
    "uuid": st.uuids().map(lambda u: (f'"{u}"', u.bytes)),
}


def written(type_: Type, *, nested: bool = False) -> st.SearchStrategy[Written]:
    """Values of *type_* that every reader gets back as they are, null among them."""
    return st.just(("null", None)) | present(type_, nested=nested)


def present(type_: Type, *, nested: bool = False) -> st.SearchStrategy[Written]:
    match type_:
        case DecimalType():
            return decimals(type_)
        case ListType(element):
            return st.lists(written(element, nested=True), max_size=3).map(
                lambda parts: ("[" + ", ".join(text for text, _ in parts) + "]", [value for _, value in parts])
            )
        case MapType(key, value):
            pairs = st.tuples(_keys(key), written(value, nested=True))
            return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0][1]).map(
                lambda found: (
                    "{" + ",".join(f"{k[0]}:{v[0]}" for k, v in found) + "}",
                    [(k[1], v[1]) for k, v in found],
                )
            )
        case StructType(fields):
            parts = st.fixed_dictionaries({f.name: written(f.type, nested=True) for f in fields})
            return st.tuples(parts, st.booleans()).map(lambda x: _object(x[0], omit_null=x[1]))
        case Primitive("string") if nested:
            return quoted(any_text)
        case Primitive(name):
            return PRIMITIVES[name]
    raise AssertionError(type_)


def _keys(key: Type) -> st.SearchStrategy[Written]:
    return present(key).map(lambda k: (k[0] if k[0].startswith('"') else f'"{k[0]}"', k[1]))


def _object(parts: dict[str, Written], *, omit_null: bool) -> Written:
    text = ", ".join(f"{json.dumps(n)}: {t}" for n, (t, v) in parts.items() if not (omit_null and v is None))
    return "{" + text + "}", {name: value for name, (_, value) in parts.items()}


decimal_types = st.integers(1, 38).flatmap(lambda p: st.builds(DecimalType, st.just(p), st.integers(0, p)))
primitive_types = st.sampled_from(sorted(PRIMITIVES)).map(Primitive) | decimal_types
key_types = st.sampled_from(KEYS).map(Primitive) | decimal_types
types: st.SearchStrategy[Type] = st.recursive(
    primitive_types,
    lambda inner: (
        st.builds(ListType, inner)
        | st.builds(MapType, key_types, inner)
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: StructType(tuple(FieldType(NAMES[i], part) for i, part in enumerate(parts)))
        )
    ),
    max_leaves=4,
)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Column, ...]:
    kinds = draw(st.lists(types, min_size=1, max_size=5))
    names = draw(st.permutations(NAMES))
    return tuple(
        Column(name=name, type=kind, required=draw(st.booleans())) for name, kind in zip(names, kinds, strict=False)
    )


def records(of: tuple[Column, ...]) -> st.SearchStrategy[tuple[bytes, dict[str, Any]]]:
    """Good records of the columns: bytes and the row."""
    parts = st.fixed_dictionaries({c.name: present(c.type) if c.required else written(c.type) for c in of})
    return st.tuples(parts, st.booleans()).map(lambda x: _encoded(_object(x[0], omit_null=x[1])))


def _encoded(found: Written) -> tuple[bytes, dict[str, Any]]:
    return found[0].encode(), found[1]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text
    | st.sampled_from(
        ["2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.1234567", "1.5", "1e3", str(uuid.UUID(int=7))]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | any_text, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def bad_records(draw: st.DrawFn, of: tuple[Column, ...]) -> bytes | None:
    """Records that mostly do not fit: other types, other fields, cut or changed bytes, nothing."""
    kind = draw(st.sampled_from(["null", "json", "object", "fields", "cut", "changed", "bytes"]))
    if kind == "null":
        return draw(st.sampled_from([None, b"", b" ", b"null", b"[]", b"{}", b"NaN"]))
    if kind == "bytes":
        return draw(st.binary(max_size=12))
    if kind in ("json", "object"):
        names = st.sampled_from([c.name for c in of]) | any_text
        found = json_values if kind == "json" else st.dictionaries(names, json_values, max_size=4)
        return json.dumps(draw(found), ensure_ascii=draw(st.booleans())).encode()
    good, row = draw(records(of))
    if kind == "fields":
        extra = f"{json.dumps(draw(st.sampled_from(list(row)) | any_text))}: {json.dumps(draw(json_values))}"
        return b"{" + extra.encode() + (b", " if len(good) > 2 else b"") + good[1:]
    at = draw(st.integers(0, len(good)))
    return good[:at] if kind == "cut" else good[:at] + draw(st.binary(min_size=1, max_size=2)) + good[at + 1 :]
