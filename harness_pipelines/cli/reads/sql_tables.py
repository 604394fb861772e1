"""Find the tables of a Spark SQL query with a parser and replace them in the text with names of views.

Only names are replaced, at the positions that the parser reports. Spark runs the rest of the text unchanged.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness_pipelines.errors import UsageError
from harness_pipelines.extras import needs

if TYPE_CHECKING:
    from sqlglot import exp

_EXPLAIN = re.compile(r"\s*explain(?:\s+(?:extended|codegen|cost|formatted))?\s+", re.IGNORECASE)
#: Names before a path that Spark reads as files: parquet.`/data/x`.
_FILE_FORMATS = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})


class SqlError(UsageError):
    """The text is not one query, or it names an unknown table."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """Replace the characters [*low*, *high*) with *text*."""

    low: int
    high: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query and the tables of the harness that it reads."""

    text: str
    tables: tuple[str, ...]  #: in the order in which they are named first
    _parsed: exp.Expr
    _offset: int  #: characters before what was parsed

    def with_views(self, views: Mapping[str, str]) -> str:
        """Return the query text with each table replaced by ``views[table]``.

        A table without an alias gets its own name as alias, so that references to its columns still resolve.
        """
        edits = [edit for table in _tables(self._parsed) for edit in self._table_edits(table, views)]
        edits += [edit for column in _columns(self._parsed) for edit in self._column_edits(column, views)]
        text = self.text
        for edit in sorted(edits, key=lambda e: e.low, reverse=True):
            text = text[: edit.low + self._offset] + edit.text + text[edit.high + self._offset :]
        return text

    def _table_edits(self, table: exp.Table, views: Mapping[str, str]) -> Iterator[_Edit]:
        name = _qualified(table.parts)
        if name not in views or len(table.parts) != 2:
            return
        # Spark takes the alias behind a sample, whose end the parser does not tell: then the name stays without one.
        needs_alias = not table.alias and not table.args.get("sample")
        alias = f" AS `{self._alias(name)}`" if needs_alias else ""
        yield _Edit(*_place(table.parts), f"`{views[name]}`{alias}")

    def _column_edits(self, column: exp.Column, views: Mapping[str, str]) -> Iterator[_Edit]:
        """Rewrite ``shop.orders.amount`` to a column of the alias."""
        parts = column.parts
        if len(parts) > 2 and (name := _qualified(parts)) in views and name in self._without_alias():
            yield _Edit(*_place(parts[:2]), f"`{self._alias(name)}`")

    def _without_alias(self) -> set[str]:
        return {_qualified(t.parts) for t in _tables(self._parsed) if len(t.parts) == 2 and not t.alias}

    def _alias(self, name: str) -> str:
        short = name.partition(".")[2]
        uses = Counter(table.partition(".")[2] for table in self.tables)
        return short if uses[short] == 1 else name.replace(".", "__")


def parse_query(text: str, known: Collection[str]) -> Query:
    """Find the tables of *known* (``namespace.name``, in lower case) that *text* reads.

    A single name means a CTE; a table always has its namespace. Three-part names of Spark's catalogs and files
    (``parquet.`/data/x` ``) are left to Spark. Raises: SqlError.
    """
    explained = _EXPLAIN.match(text)
    offset = explained.end() if explained else 0
    parsed = _parse(text[offset:])
    ctes = {cte.alias.lower() for cte in _all_ctes(parsed)}
    found: dict[str, None] = {}
    for table in _tables(parsed):
        name = _qualified(table.parts)
        match len(table.parts):
            case 1 if name not in ctes:
                raise SqlError(_unknown(name, known))
            case 2 if name in known:
                if table.args.get("version"):
                    raise SqlError(
                        f"{name}: AS OF is not for tables of the harness, which are read as one cut of now; an older "
                        f"version: `harness read {name} --at VERSION`, or `Table.to_spark(at=..., view=...)`"
                    )
                found[name] = None
            case 2 if name.partition(".")[0] not in _FILE_FORMATS:
                raise SqlError(_unknown(name, known))
    if not found:
        names = ", ".join(sorted(known)) or "none yet"
        raise SqlError(f"the query reads no table of the harness; tables: {names}")
    return Query(text=text, tables=tuple(found), _parsed=parsed, _offset=offset)


def _parse(text: str) -> exp.Expr:
    with needs("spark", "`harness sql`"):
        import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    with _quiet():
        try:
            found = [one for one in sqlglot.parse(text, read="spark") if one is not None]
        except SqlglotError as error:
            said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()[0]
            said = re.sub(r"<Token token_type: [^,]*, text: (.*?), line: .*?>", r"\1", said)
            raise SqlError(f"the query cannot be parsed: {said}") from error
        except RecursionError as error:
            raise SqlError("the query cannot be parsed: it is nested too deeply") from error
    if len(found) != 1:
        raise SqlError(f"write one query at a time: this text has {len(found)}")
    if not isinstance(found[0], exp.Query):
        kind = type(found[0]).__name__.upper()
        raise SqlError(f"`harness sql` runs queries (SELECT, WITH, EXPLAIN of one), not {kind}; nothing was done")
    return found[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the parser's log: `_parse` reports unknown syntax itself."""
    logger = logging.getLogger("sqlglot")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


def _tables(parsed: exp.Expr) -> list[exp.Table]:
    """Yield every named relation; functions such as ``range(10)`` have no name."""
    from sqlglot import exp

    return [table for table in parsed.find_all(exp.Table) if isinstance(table.this, exp.Identifier)]


def _columns(parsed: exp.Expr) -> list[exp.Column]:
    from sqlglot import exp

    return list(parsed.find_all(exp.Column))


def _all_ctes(parsed: exp.Expr) -> list[exp.CTE]:
    from sqlglot import exp

    return list(parsed.find_all(exp.CTE))


def _qualified(parts: list[exp.Expr]) -> str:
    """Return the first two parts of a name in lower case: Spark's names ignore case."""
    return ".".join(part.name.lower() for part in parts[:2])


def _place(parts: list[exp.Expr]) -> tuple[int, int]:
    return parts[0].meta["start"], parts[-1].meta["end"] + 1


def _unknown(name: str, known: Collection[str]) -> str:
    if name in known:
        quoted = ".".join(f"`{part}`" for part in name.split("."))
        return f"the query names `{name}` in one pair of quotes, which is one name; write {name} or {quoted}"
    by_name = [table for table in known if "." not in name and table.partition(".")[2] == name]
    near = by_name or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(sorted(near))}?" if near else f"tables: {', '.join(sorted(known)) or 'none yet'}"
    return f"the query names {name!r}, which is neither a table of the harness nor a CTE; {hint}"
