"""Random columns and values of every type, as Arrow tables."""

from __future__ import annotations

import datetime as dt
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.types import DecimalType, FieldType, ListType, MapType, Primitive, StructType, Type

UTC = dt.UTC
NAMES = ("a", "B c", 'quote"d', "it's", "back`tick", "xmin", "größe", "select", "n" * 70)

text = st.text(alphabet=st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=8)
any_text = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
PRIMITIVE_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "date": st.dates() | st.dates(dt.date(1582, 10, 1), dt.date(1582, 10, 20)),
    "time": st.times(),
    "timestamp": st.datetimes() | st.datetimes(dt.datetime(1582, 10, 1), dt.datetime(1582, 10, 20)),
    "timestamptz": st.datetimes(timezones=st.just(UTC)),
    "string": text,
    "binary": st.binary(max_size=8),
    "uuid": st.binary(min_size=16, max_size=16),
}


def primitive_types() -> st.SearchStrategy[Type]:
    decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: DecimalType(p, s)))
    return st.sampled_from(sorted(PRIMITIVE_VALUES)).map(Primitive) | decimals


def types() -> st.SearchStrategy[Type]:
    """Types nested up to a few levels."""
    return st.recursive(primitive_types(), _nested, max_leaves=5)


def nested_types() -> st.SearchStrategy[Type]:
    """Lists, maps and structs of anything."""
    return _nested(types())


def _nested(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda parts: StructType(tuple(FieldType(NAMES[i], part) for i, part in enumerate(parts)))
    )
    return inner.map(ListType) | st.tuples(primitive_types(), inner).map(lambda kv: MapType(*kv)) | structs


def values(type_: Type, *, nested: bool = False) -> st.SearchStrategy[Any]:
    """Values of *type_* as `pa.array` takes them, None among them."""
    return st.none() | present(type_, nested=nested)


def present(type_: Type, *, nested: bool = False) -> st.SearchStrategy[Any]:
    """The same without None."""
    match type_:
        case DecimalType(precision, scale):
            bound = 10**precision - 1
            return st.integers(-bound, bound).map(lambda n: _decimal(n, scale))
        case ListType(element):
            return st.lists(values(element, nested=True), max_size=3)
        case MapType(key, value):
            keys = present(key, nested=True).filter(lambda k: k == k)  # NaN as a key is not a key
            pairs = st.tuples(keys, values(value, nested=True))
            return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
        case StructType(fields):
            return st.fixed_dictionaries({f.name: values(f.type, nested=True) for f in fields})
    if type_ == Primitive("string") and nested:
        return any_text
    return PRIMITIVE_VALUES[str(type_)]


def _decimal(unscaled: int, scale: int) -> Any:
    return Decimal(unscaled).scaleb(-scale, context=Context(prec=60))


@st.composite
def tables(
    draw: st.DrawFn, *, kinds: st.SearchStrategy[Type] | None = None, columns_max: int = 4, rows_max: int = 6
) -> tuple[list[tuple[str, Type]], pa.Table]:
    """Named types (of *kinds*, any by default) and a table of them."""
    chosen = draw(st.lists(types() if kinds is None else kinds, min_size=1, max_size=columns_max))
    names = list(NAMES[: len(chosen)])
    count = draw(st.integers(0, rows_max))
    arrays = [
        pa.array(draw(st.lists(values(kind), min_size=count, max_size=count)), type=arrow_type(kind)) for kind in chosen
    ]
    return list(zip(names, chosen, strict=True)), pa.table(dict(zip(names, arrays, strict=True)))
