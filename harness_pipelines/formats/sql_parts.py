"""The parts of an SQL expression: the fields that it reads, the conditions that it joins, and its casts.

DuckDB parses it and writes its parts as text again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def names_in(database: DuckDBPyConnection, sql: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names in *sql* that may be fields, and its functions and operators, in small letters."""
    whole = _Parsed(database, sql).whole
    return frozenset(_fields(whole)), frozenset(_functions(whole))


def conditions_in(database: DuckDBPyConnection, sql: str) -> list[str]:
    """The conditions that *sql* joins by AND; *sql* itself, where it is one."""
    parsed = _Parsed(database, sql)
    return [parsed.text(one) for one in _joined(parsed.whole)]


def doubt_in(database: DuckDBPyConnection, sql: str) -> str | None:
    """SQL that is true where a cast in *sql* fails, and perhaps where it would fail if it were reached."""
    parsed = _Parsed(database, sql)
    casts = [*_casts(parsed.whole)]
    for cast in casts:
        cast["try_cast"] = True
    fails = [f"(({parsed.text(cast['child'])}) IS NOT NULL AND ({parsed.text(cast)}) IS NULL)" for cast in casts]
    return " OR ".join(fails) or None


class _Parsed:
    """An expression as DuckDB parses it."""

    def __init__(self, database: DuckDBPyConnection, sql: str) -> None:
        self._database = database
        told = database.execute("SELECT json_serialize_sql(?)", [f"SELECT ({sql})"]).fetchone()
        assert told is not None
        self._parsed = json.loads(told[0])
        [self._statement] = self._parsed["statements"]
        [self.whole] = self._statement["node"]["select_list"]

    def text(self, node: Any) -> str:
        """The SQL of *node*, which is a part of the expression."""
        self._statement["node"]["select_list"] = [node]
        found = self._database.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(self._parsed)]).fetchone()
        assert found is not None
        return str(found[0]).removeprefix("SELECT ")


def _joined(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if node.get("type") != "CONJUNCTION_AND":
        yield node
        return
    for one in node["children"]:
        yield from _joined(one)


def _casts(node: Any) -> Iterator[dict[str, Any]]:
    """The casts in *node* that can fail; not those in a lambda, whose parameters have no value outside of it."""
    if isinstance(node, dict) and node.get("class") == "LAMBDA":
        return
    for one in node if isinstance(node, list) else node.values() if isinstance(node, dict) else ():
        yield from _casts(one)
    if isinstance(node, dict) and node.get("class") == "CAST" and not node["try_cast"]:
        yield node


def _functions(node: Any) -> Iterator[str]:
    for value in node if isinstance(node, list) else node.values() if isinstance(node, dict) else ():
        yield from _functions(value)
    if isinstance(node, dict) and node.get("class") == "FUNCTION":
        yield str(node["function_name"]).lower()


def _fields(node: Any) -> Iterator[str]:
    for value in node if isinstance(node, list) else node.values() if isinstance(node, dict) else ():
        yield from _fields(value)
    if isinstance(node, dict) and node.get("class") == "COLUMN_REF":
        yield from (str(name).lower() for name in node["column_names"])
