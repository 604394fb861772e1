"""SQL that gives the JSON text of one struct the fields of another, as `nested_json` writes them: by position.

Values stay the letters that they are: only type json is used, which keeps them. It refuses U+0000, though, so that is
written as ``\\/`` meanwhile, which `nested_json` never writes. All is put together by `||`, as functions take 100
arguments and text has no bound of that kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from psycopg import sql

_NULL = sql.SQL("'null'")


def projected_json(text: sql.Composable, have: pa.DataType, want: pa.DataType) -> sql.Composable:
    """The *text* of values of *have* as that of values of *want*; fields are matched by name, others are null."""
    if _same(have, want):
        return text
    masked = _replaced(text, r"\\u0000", r"\\/")
    plain, apart = (_projected(sql.SQL("{}::json").format(one), have, want, 0) for one in (text, masked))
    return sql.SQL("CASE WHEN strpos({text}, {nul}) = 0 THEN ({plain})::text ELSE {restored} END").format(
        text=text,
        nul=sql.Literal(r"\u0000"),
        plain=plain,
        restored=_replaced(sql.SQL("({})::text").format(apart), r"\\/", r"\\u0000"),
    )


def _replaced(text: sql.Composable, escape: str, by: str) -> sql.Composable:
    """*text* in which the *escape* of JSON (not one behind an escaped backslash) is another."""
    return sql.SQL("regexp_replace({}, {}, {}, 'g')").format(
        text, sql.Literal(rf"(?<!\\)((?:\\\\)*){escape}"), sql.Literal(rf"\1{by}")
    )


def _projected(json: sql.Composable, have: pa.DataType, want: pa.DataType, depth: int) -> sql.Composable:
    """An expression of type json, NULL where *json* is NULL or null."""
    if _same(have, want):
        return json
    value = sql.Identifier(f"v{depth}")
    if pa.types.is_struct(want):
        kind, made = "object", _struct(value, have, want, depth + 1)
    else:
        kind, made = "array", _list(value, have, want, depth + 1)
    return sql.SQL(
        "(SELECT CASE WHEN json_typeof({value}) = {kind} THEN ({made})::json END "
        "FROM (SELECT {json} AS {value}) AS {of})"
    ).format(value=value, kind=sql.Literal(kind), made=made, json=json, of=sql.Identifier(f"s{depth}"))


def _struct(value: sql.Composable, have: pa.DataType, want: pa.DataType, depth: int) -> sql.Composable:
    places = {field.name: i for i, field in enumerate(have)}
    parts: list[tuple[str, sql.Composable]] = []
    for i, field in enumerate(want):
        text: sql.Composable = _NULL
        if (at := places.get(field.name)) is not None:
            child = sql.SQL("({} -> {})").format(value, sql.Literal(f"f{at}"))
            text = _text(_projected(child, have.field(at).type, field.type, depth))
        parts.append((f"f{i}", text))
    return _object(parts)


def _list(value: sql.Composable, have: pa.DataType, want: pa.DataType, depth: int) -> sql.Composable:
    element, place = sql.Identifier(f"e{depth}"), sql.Identifier(f"n{depth}")
    if pa.types.is_map(want):
        of_entry = sql.SQL("({} -> 'value')").format(element)
        entry = _text(_projected(of_entry, have.item_type, want.item_type, depth))
        made = _object([("key", sql.SQL("({} -> 'key')::text").format(element)), ("value", entry)])
    else:
        made = _text(_projected(element, have.value_type, want.value_type, depth))
    return sql.SQL(
        "'[' || coalesce((SELECT string_agg({made}, ',' ORDER BY {place}) "
        "FROM json_array_elements({value}) WITH ORDINALITY AS {of} ({element}, {place})), '') || ']'"
    ).format(made=made, place=place, value=value, of=sql.Identifier(f"a{depth}"), element=element)


def _object(members: Sequence[tuple[str, sql.Composable]]) -> sql.Composable:
    parts = [
        sql.SQL("{} || {}").format(sql.Literal(f'{"," if i else "{"}"{name}":'), text)
        for i, (name, text) in enumerate(members)
    ]
    return sql.SQL("{} || '}}'").format(sql.SQL(" || ").join(parts))


def _text(json: sql.Composable) -> sql.Composable:
    return sql.SQL("coalesce(({})::text, 'null')").format(json)


def _same(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether both types write the same text: numbers and decimals do, whatever their width."""
    if not pa.types.is_nested(want):
        return True
    if pa.types.is_struct(want):
        return [f.name for f in have] == [f.name for f in want] and all(
            _same(a.type, b.type) for a, b in zip(have, want, strict=True)
        )
    if pa.types.is_map(want):
        return _same(have.item_type, want.item_type)
    return _same(have.value_type, want.value_type)
