"""Rows wider than a Postgres page: columns beyond a bound share one JSON value.

Postgres keeps a row on one page of 8 kB and moves only long values out of it: 1,020 numbers, or 450 texts of which each
leaves a pointer, are too many. One value for many columns goes out of the line as a whole. A table whose rows always
fit has no such value. The split is made when a segment is, and kept beside it: a rule that changes later does not
change what older segments have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from harness_pipelines.protocol.schema.nested_json import encode_json

REST = "_harness_rest"  #: the column for what a page has no room for; specs cannot have one of that name
#: Of 8,160 bytes of a row, less its header, a bit for each of 1,600 columns, the coordinates and the pointer to REST.
PAGE_BYTES = 7_500
_FIXED_BYTES, _UUID_BYTES = 8, 16  #: with what alignment adds at most
_VARYING_BYTES = 24  #: what is longer can be moved out, and leaves a pointer of 18 bytes


def beyond_page(columns: Sequence[tuple[str, pa.DataType]], first: Collection[str]) -> tuple[str, ...]:
    """The names of those *columns*, with the types in which Postgres has them, that a page may have no room for.

    Those of *first* stay columns whatever they take: keys have an index.
    """
    room = PAGE_BYTES - sum(_bytes_of(kind) for name, kind in columns if name in first)
    rest = []
    for name, kind in columns:
        if name in first:
            continue
        room -= _bytes_of(kind)
        if room < 0:
            rest.append(name)
    return tuple(rest)


def _bytes_of(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_binary(kind):
        return _UUID_BYTES
    varies = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind)
    return _VARYING_BYTES if varies else _FIXED_BYTES


def packed(columns: Sequence[pa.ChunkedArray], *, rows: int) -> pa.ChunkedArray:
    """REST of each row: an object with the key ``f<place>`` for each value that is not null."""
    members = [
        pc.fill_null(pc.binary_join_element_wise(f',"f{place}":', _json(column), ""), "")
        for place, column in enumerate(columns)
    ]
    begin = pa.repeat(pa.scalar('{"v":1'), rows)
    text = pc.binary_join_element_wise(begin, *members, "}", "")
    return text if isinstance(text, pa.ChunkedArray) else pa.chunked_array([text])


def _json(column: pa.ChunkedArray) -> pa.StringArray:
    """What Postgres' input functions read back; all but numbers and booleans are strings."""
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    text = encode_json(array)
    return pc.replace_substring_regex(text, '^"', r'"\\\\x') if pa.types.is_binary(array.type) else text


def unpacked(table: sql.Composable, wanted: Mapping[str, str], packed_names: Sequence[str]) -> sql.Composable:
    """FROM item: *table*, in which the columns *wanted* (name and type) of those in REST are columns again.

    Each row's text is parsed once, whatever is wanted of it.
    """
    places = {name: place for place, name in enumerate(packed_names)}
    here = [(name, f"f{places[name]}", kind) for name, kind in wanted.items() if name in places]
    if not here:
        return table
    shown = [sql.SQL("p.{} AS {}").format(sql.Identifier(key), sql.Identifier(name)) for name, key, _ in here]
    kinds = [sql.SQL("{} {}").format(sql.Identifier(key), sql.SQL(kind)) for _, key, kind in here]
    return sql.SQL("(SELECT s.*, {} FROM {} AS s CROSS JOIN LATERAL json_to_record(s.{}) AS p({})) AS unpacked").format(
        sql.SQL(", ").join(shown), table, sql.Identifier(REST), sql.SQL(", ").join(kinds)
    )
