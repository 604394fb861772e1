"""Random texts of a `where`, and what DuckDB says of them: NULL, NOT, and numbers that a column cannot hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.types import Type, parse_type

COLUMNS: Mapping[str, Type] = {
    name: parse_type(text)
    for name, text in {
        "n": "int", "id": "long", "amount": "decimal(9,2)", "wide": "decimal(20,4)", "s": "string", "ok": "boolean"
    }.items()
}  # fmt: skip
NUMBERS = ("n", "id", "amount", "wide")
#: Wide enough for every number here, so that DuckDB compares exactly.
_EXACT = "DECIMAL(38,6)"
Rendered = tuple[str, str]  #: as a `where` says it, as DuckDB does

_numbers = (
    st.integers(-3, 3).map(str)
    | st.sampled_from([-(2**31) - 1, -(2**31), 2**31 - 1, 2**31, 3_000_000_000, -(2**63) - 1, 2**63 - 1, 2**63]).map(
        str
    )
    | st.sampled_from(["1.5", "-0.5", "2.000001", "0.01", "9999999.99", "10000000", "3e9", "1e20", "-1e20"])
)
_ops = st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="])


def _both(shape: str, *literals: str) -> Rendered:
    exact = [f"CAST('{one}' AS {_EXACT})" for one in literals]
    return shape.format(*literals), shape.format(*exact)


def _leaves() -> st.SearchStrategy[Rendered]:
    names = st.sampled_from(NUMBERS)
    texts = st.sampled_from(["", "a", "b", "ä"])
    nots = st.sampled_from(["", "not "])
    return st.one_of(
        st.builds(lambda c, op, one: _both(f"{c} {op} {{}}", one), names, _ops, _numbers),
        st.builds(lambda c, op, one: _both(f"{{}} {op} {c}", one), names, _ops, _numbers),
        st.builds(
            lambda c, no, ones: _both(f"{c} {no}in ({', '.join('{}' for _ in ones)})", *ones),
            names, nots, st.lists(_numbers, min_size=1, max_size=3),
        ),
        st.builds(lambda c, no, a, b: _both(f"{c} {no}between {{}} and {{}}", a, b), names, nots, _numbers, _numbers),
        st.builds(lambda c, no: (f"{c} is {no}null",) * 2, st.sampled_from(sorted(COLUMNS)), nots),
        st.builds(lambda op, one: (f"s {op} '{one}'",) * 2, _ops, texts),
        st.sampled_from([("ok", "ok"), ("ok = false", "ok = false")]),
    )  # fmt: skip


def _joined(inner: st.SearchStrategy[Rendered]) -> st.SearchStrategy[Rendered]:
    def joined(parts: Sequence[Rendered], word: str) -> Rendered:
        one, other = (f"({f' {word} '.join(part[i] for part in parts)})" for i in (0, 1))
        return one, other

    several = st.lists(inner, min_size=2, max_size=3)

    def negated(one: Rendered) -> Rendered:
        return f"not ({one[0]})", f"not ({one[1]})"

    return st.builds(joined, several, st.sampled_from(["and", "or"])) | inner.map(negated)


def wheres() -> st.SearchStrategy[Rendered]:
    return st.recursive(_leaves(), _joined, max_leaves=5)


def rows() -> list[dict[str, Any]]:
    """NULLs and the edges of each type among them."""
    edges: Mapping[str, list[Any]] = {
        "n": [None, 0, 1, 2, -(2**31), 2**31 - 1],
        "id": [None, 0, 1, -(2**63), 2**63 - 1],
        "amount": [None, Decimal("0.00"), Decimal("1.50"), Decimal("-0.50"), Decimal("9999999.99")],
        "wide": [None, Decimal("0.0000"), Decimal("1.5000"), Decimal("9999999999999999.9999")],
        "s": [None, "", "a", "b", "ä"],
        "ok": [None, True, False],
    }
    return [{name: found[i % len(found)] for name, found in edges.items()} for i in range(60)]


def table_of(found: Sequence[Mapping[str, Any]]) -> pa.Table:
    schema = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in COLUMNS.items()])
    return pa.Table.from_pylist([dict(row) for row in found], schema=schema)


class Reference:
    """DuckDB, with the rows of a table in exact numbers."""

    def __init__(self, table: pa.Table) -> None:
        self._connection = duckdb.connect()
        self._connection.register("given", table.append_column("row", pa.array(range(table.num_rows))))
        exact = ", ".join(f"CAST({c} AS {_EXACT}) AS {c}" if c in NUMBERS else c for c in COLUMNS)
        self._connection.execute(f"CREATE TABLE t AS SELECT row, {exact} FROM given")

    def matches(self, where: str) -> list[int]:
        found = self._connection.execute(f"SELECT row FROM t WHERE {where} ORDER BY row").fetchall()
        return [row for (row,) in found]
