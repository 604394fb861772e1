"""Which statements run: queries over tables of the harness, and nothing that writes, or reads anything else.

DuckDB's parser gives the tree of a query. What it reads is looked for there, so that a refusal comes before anything
runs and says what to write instead. The database that runs the query reaches nothing outside either way (`session`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness_pipelines.errors import UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: Of the functions that give tables, those that make rows of their arguments alone.
TABLE_FUNCTIONS = frozenset(
    {"generate_series", "icu_calendar_names", "json_each", "json_tree", "pg_timezone_names", "range", "repeat"}
    | {"repeat_row", "unnest"}
)
#: Functions of one value that show or change the state of the database.
_REFUSED = frozenset({"current_setting", "write_log", "nextval", "currval", "getvariable", "getenv"})
_OPTIONS = frozenset({"analyze", "format"})  #: of EXPLAIN, in parentheses; no query begins with one of them
TEXT_BYTES_MAX = 1 << 20  #: of one statement; its tree takes hundreds of times as much


class StatementRefused(UsageError):
    """The text is not one query over tables of the harness; nothing was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One query."""

    text: str
    tables: tuple[tuple[str, ...], ...]  #: names that it reads, as written, those of CTEs among the single ones
    ctes: frozenset[str]
    parameters: tuple[str, ...]  #: ``1``, ``2``, ... or names
    is_explain: bool = False

    @property
    def bare(self) -> str:
        """The text without the semicolons at its end."""
        text, places = self.text.encode(), _places(self.text)
        low = len(text)
        while places and text[places[-1] :].startswith(b";"):
            low = places.pop()
        return text[:low].decode()

    @property
    def reads(self) -> Iterator[str]:
        """The names that are none of CTEs, in lower case: those of tables have a namespace."""
        for parts in self.tables:
            if len(parts) == 1 and parts[0] in self.ctes:
                continue
            yield ".".join(parts)


def split(database: DuckDBPyConnection, text: str) -> list[str]:
    """The statements of *text*, which semicolons end. Raises: StatementRefused."""
    return [one.query.strip() for one in _statements(database, text)]


def read_statement(database: DuckDBPyConnection, text: str) -> Statement:
    """Check *text*, which is one statement. Raises: StatementRefused."""
    size = len(text.encode(errors="surrogatepass"))
    if size > TEXT_BYTES_MAX:
        raise StatementRefused(f"a statement has {TEXT_BYTES_MAX:,} bytes at most, and this one {size:,}")
    found = _statements(database, text)
    if not found:
        raise StatementRefused("there is no SQL statement in the text")
    kinds = [one.type.name for one in found]
    if len(found) > 1:
        if kinds[:-1] == ["CREATE"] * (len(kinds) - 1) and re.search(r"\bpivot\b", text, re.I):
            raise StatementRefused("a PIVOT names the values that become columns: PIVOT ... ON column IN (1, 2)")
        raise StatementRefused(f"write one statement at a time: this text has {len(found)}")
    if kinds[0] not in ("EXPLAIN", "SELECT"):
        raise _no_query(kinds[0])
    is_explain = kinds[0] == "EXPLAIN"
    tables, ctes = _checked(database, _explained(text) if is_explain else text)
    parameters = tuple(sorted(found[0].named_parameters, key=_place))
    return Statement(text=text, tables=tables, ctes=ctes, parameters=parameters, is_explain=is_explain)


def _statements(database: DuckDBPyConnection, text: str) -> list[Any]:
    """Raises: StatementRefused."""
    import duckdb

    if "\0" in text:  # the parser would take it for the end of the text
        raise StatementRefused("the SQL cannot be read: it has the character NUL")
    try:
        text.encode()  # DuckDB's driver does not name what is no UTF-8
        return list(database.extract_statements(text))
    except (duckdb.Error, UnicodeError) as error:
        raise StatementRefused(f"the SQL cannot be read: {said(error)}") from error


def _places(text: str) -> list[int]:
    """Where the tokens of *text* begin, in bytes. Comments are none, nor is what follows an open quote."""
    import duckdb

    return [place for place, _ in duckdb.tokenize(text)]


def _explained(text: str) -> str:
    """The query that an EXPLAIN is of.

    DuckDB's own tokens are asked: it nests comments, and an expression that took another end of one for the right one
    would check other words than those that run.
    """
    raw, places = text.encode(), _places(text)
    tokens = [raw[low:high] for low, high in zip(places, [*places[1:], len(raw)], strict=True)]
    words = [found[0].lower().decode() if (found := re.match(rb"\w+|.", one)) else "" for one in tokens]
    if words[:1] != ["explain"]:
        raise StatementRefused("the SQL cannot be read: write EXPLAIN first")
    at = 2 if words[1] == "analyze" else 1
    if words[at] == "(" and words[at + 1] in _OPTIONS:
        at = words.index(")") + 1
    return raw[places[at] :].decode()


def _place(parameter: str) -> tuple[int, str]:
    return (int(parameter), "") if parameter.isdigit() else (0, parameter)


def _no_query(kind: str) -> StatementRefused:
    return StatementRefused(
        f"only queries run here (SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE, EXPLAIN of one), not {kind}; "
        "nothing was done"
    )


def _checked(database: DuckDBPyConnection, query: str) -> tuple[tuple[tuple[str, ...], ...], frozenset[str]]:
    """The names that *query* reads and those of its CTEs. Raises: StatementRefused."""
    parsed = _tree(database, query)
    if parsed["error"]:
        if "Only SELECT" in parsed["error_message"]:
            raise _no_query("what this text has")
        raise StatementRefused(f"the SQL cannot be read: {parsed['error_message']}")
    if len(parsed["statements"]) != 1:
        raise StatementRefused(f"write one query, not {len(parsed['statements'])}")
    tables: dict[tuple[str, ...], None] = {}
    ctes: set[str] = set()
    for node in _nodes(parsed["statements"]):
        _check_functions(node)
        ctes.update(str(one["key"]).lower() for one in node.get("cte_map", {}).get("map", ()))
        if "cte_name" in node:
            ctes.add(str(node["cte_name"]).lower())
        if node.get("type") == "BASE_TABLE":
            tables[_name(node)] = None
    _check_ctes(database, ctes)
    return tuple(tables), frozenset(ctes)


def _tree(database: DuckDBPyConnection, query: str) -> Any:
    """Raises: StatementRefused."""
    import duckdb

    try:
        row = database.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()
        assert row is not None
        return json.loads(row[0])
    except (duckdb.Error, MemoryError) as error:
        raise StatementRefused(f"the SQL cannot be read: {said(error)}") from error
    except RecursionError as error:
        raise StatementRefused(
            "the SQL is nested too deeply: some hundred operators or brackets inside of each other are too many"
        ) from error


def _check_ctes(database: DuckDBPyConnection, ctes: Collection[str]) -> None:
    """A CTE is not seen in its own query, nor outside of the query that has it: there its name is DuckDB's.

    Raises: StatementRefused.
    """
    if not ctes:
        return
    own = database.execute("SELECT DISTINCT lower(view_name) FROM duckdb_views() WHERE internal").fetchall()
    if taken := sorted(set(ctes) & {str(name) for (name,) in own}):
        raise StatementRefused(f"{taken[0]} is a table of DuckDB's own: give the CTE another name")


def _name(node: Mapping[str, Any]) -> tuple[str, ...]:
    parts = (node["catalog_name"], node["schema_name"], node["table_name"])
    name = tuple(str(part).lower() for part in parts if part)
    if node.get("at_clause"):
        raise StatementRefused(
            f"{'.'.join(name)}: AT is not for these tables; `--at` reads an older version, a snapshot or a time"
        )
    return name


def _check_functions(node: Mapping[str, Any]) -> None:
    if node.get("type") == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()
        if name not in TABLE_FUNCTIONS:
            raise StatementRefused(
                f"the table function {name} cannot be used: a query reads tables of the harness, no files, no network "
                "and no state of the database"
            )
    if node.get("class") == "FUNCTION" and str(node.get("function_name", "")).lower() in _REFUSED:
        raise StatementRefused(f"the function {node['function_name']} cannot be used: it is about the database itself")
    if node.get("type") == "SHOW_REF" and not node.get("query"):
        raise StatementRefused("SHOW lists nothing here: `harness status` lists the tables, and so does `.tables`")


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Every object of the tree; without recursion, as a query may be nested deeply."""
    left = [tree]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)


def said(error: Exception) -> str:
    """DuckDB's message without its kind."""
    text = str(error).strip()
    return re.sub(r"^[A-Za-z ]+ Error: ", "", text)


def ends(text: str) -> bool:
    """Whether a semicolon ends *text*: not one that is in a string or a comment. Raises: StatementRefused."""
    try:
        raw, places = text.encode(), _places(text)
    except UnicodeError as error:
        raise StatementRefused(f"the SQL cannot be read: {said(error)}") from error
    return bool(places) and raw[places[-1] :].startswith(b";")


def keywords() -> list[str]:
    """The words of DuckDB's SQL, in capitals."""
    import duckdb

    with duckdb.connect(":memory:") as database:
        found = database.execute("SELECT DISTINCT upper(keyword_name) FROM duckdb_keywords() ORDER BY 1").fetchall()
    return [str(word) for (word,) in found]
