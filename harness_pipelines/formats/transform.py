"""Apply a table's transform to decoded records: derived columns and the filter.

Expressions are SQL of one record. DuckDB evaluates them over whole batches of Arrow; anything in them that could make a
record's result depend on other records, on the time or on chance is refused when they are compiled. An expression that
fails for a record refuses that record alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.errors import HarnessError
from harness_pipelines.extras import pip_install
from harness_pipelines.formats.base import Decoded, Reason, Refused
from harness_pipelines.formats.columns.storable import unstorable
from harness_pipelines.formats.contract.checks import shown_value
from harness_pipelines.formats.refusals import DETAIL_CHARS
from harness_pipelines.formats.sql_parts import conditions_in, doubt_in, names_in
from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.keys import PUT
from harness_pipelines.spec.arrow import arrow_type, type_name
from harness_pipelines.spec.sections.transform import input_columns, source_column
from harness_pipelines.spec.wording import unknown_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from numpy.typing import NDArray

    from harness_pipelines.spec.table import TableSpec

MEMORY_MAX = "512 MiB"  #: that the expressions of one batch take; a batch that needs more is halved
RECORD = "record"  #: the relation that expressions are evaluated over
_SAFE = frozenset({"COLUMN_REF", "CONSTANT", "FUNCTION", "CAST", "CASE", "COMPARISON", "CONJUNCTION", "OPERATOR",
                   "BETWEEN", "COLLATE", "LAMBDA"})  # fmt: skip
_NOT_OF_A_RECORD = {
    "STAR": "`*` names no field",
    "WINDOW": "a window looks at other records",
    "SUBQUERY": "a subquery looks at other rows",
    "PARAMETER": "there are no parameters",
}
#: Scalar functions that DuckDB calls consistent although they depend on more than their arguments: on the session, the
#: clock or, `hash` and `version`, the release of DuckDB.
_OF_THE_SESSION = frozenset({"age", "current_localtime", "current_localtimestamp", "current_setting", "getenv",
                             "getvariable", "hash", "version"})  # fmt: skip

#: Functions of lists that DuckDB fails for all records of a vector where a list of one of them has a NULL in it.
_OF_VECTORS = frozenset({"<->", "<=>"}) | frozenset(
    f"list_{name}" for name in ("cosine_distance", "cosine_similarity", "distance", "dot_product", "inner_product",
                                "negative_dot_product", "negative_inner_product")
)  # fmt: skip

#: DuckDB's names of LIKE, ILIKE and GLOB, with the sign that stands for any text.
_LIKES: Mapping[str, str] = {
    "~~": "%", "!~~": "%", "~~*": "%", "!~~*": "%", "like_escape": "%", "not_like_escape": "%", "ilike_escape": "%",
    "not_ilike_escape": "%", "~~~": "*",
}  # fmt: skip


class TransformUnusable(HarnessError):
    """An expression of a table's transform cannot be evaluated, or depends on more than one record."""

    way_on = "correct the spec's `transform`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """An expression that is safe, and gives what its column holds."""

    name: str  #: of the column; ``filter`` for the filter
    written: str  #: in the spec
    sql: str
    type: pa.DataType
    reads: tuple[str, ...]  #: the fields in it
    doubt: str | None  #: SQL that is true where a cast in it fails; None: it has no cast that can be asked alone
    is_asked_alone: bool  #: a record for which it fails is asked again without the others


class Transformer:
    """The transform of one table."""

    def __init__(self, spec: TableSpec) -> None:
        """Raises: TransformUnusable."""
        assert spec.transform is not None
        self._table, self._names = spec.table, [c.name for c in spec.columns]
        self._fields = {c.name: arrow_type(c.type) for c in input_columns(spec)}
        if (beside := source_column(spec)) is not None:
            self._fields[beside.name] = arrow_type(beside.type)
        self._required = {c.name for c in spec.columns if c.required and c.name in spec.transform.derive}
        self._database = _database(spec.table)
        types = {c.name: arrow_type(c.type) for c in spec.columns}
        self._derive = [self._compiled(name, sql, types[name]) for name, sql in spec.transform.derive.items()]
        wanted = spec.transform.filter
        self._filter = None if wanted is None else self._compiled("filter", wanted, pa.bool_())
        self._conditions = [] if wanted is None else [*self._parts(wanted)]

    def transformed(self, decoded: Decoded) -> Decoded:
        """*decoded*, which has the fields, with the columns of the table; without the records that are no rows.

        A delete of a keyed table goes through: it has no values but its key, and what it deletes must go. (Those of
        others are left out before: see `harness_pipelines.formats.other_tables`.)
        """
        rows = decoded.rows
        puts = np.ones(rows.num_rows, np.bool_)
        if OPERATION in rows.column_names:
            puts = pc.equal(rows.column(OPERATION), PUT).to_numpy().astype(np.bool_)
        places = np.flatnonzero(puts)
        failed: dict[int, Refused] = {}
        kept = self._filtered(rows.take(pa.array(places)), places, decoded.accepted, failed)
        filtered = len(places) - len(kept) - len(failed)
        made = self._derived(rows.take(pa.array(kept)), kept, decoded.accepted, failed)
        stay = ~puts
        stay[kept] = True
        stay[list(failed)] = False
        table = {name: rows.column(name) for name in rows.column_names if name == OPERATION or name in self._names}
        table |= {name: _at(column, kept, rows.num_rows) for name, column in made.items()}
        result = pa.table({name: table[name] for name in (OPERATION, *self._names) if name in table})
        return Decoded(
            rows=result.filter(pa.array(stay)).combine_chunks(),
            accepted=decoded.accepted[stay],
            refused=sorted([*decoded.refused, *failed.values()], key=lambda one: one.index),
            filtered=decoded.filtered + filtered,
        )

    def _filtered(
        self, rows: pa.Table, places: NDArray[np.int64], accepted: NDArray[np.int64], failed: dict[int, Refused]
    ) -> NDArray[np.int64]:
        """Return those of *places* whose records pass the filter."""
        if self._filter is None or not len(places):
            return places
        [verdict], wrong = self._evaluated([self._filter], rows)
        self._note(wrong, places, accepted, failed)
        taken: NDArray[np.int64] = places[pc.fill_null(verdict, False).to_numpy().astype(np.bool_)]
        return taken

    def _derived(
        self, rows: pa.Table, places: NDArray[np.int64], accepted: NDArray[np.int64], failed: dict[int, Refused]
    ) -> Mapping[str, pa.ChunkedArray]:
        columns, wrong = self._evaluated(self._derive, rows)
        for one, column in zip(self._derive, columns, strict=True):
            if one.name in self._required and column.null_count:
                for at in np.flatnonzero(column.is_null().to_numpy()).tolist():
                    wrong.setdefault(at, f"`{one.name}`: required, and {one.sql} gives NULL")
            for at, why in unstorable(column).items():
                wrong.setdefault(at, f"`{one.name}`: {why}")
        self._note(wrong, places, accepted, failed)
        return {one.name: column for one, column in zip(self._derive, columns, strict=True)}

    @staticmethod
    def _note(
        wrong: Mapping[int, str], places: NDArray[np.int64], accepted: NDArray[np.int64], failed: dict[int, Refused]
    ) -> None:
        for at, detail in wrong.items():
            index = int(accepted[places[at]])
            failed[int(places[at])] = Refused(index=index, reason=Reason.TRANSFORM, detail=detail[:DETAIL_CHARS])

    def reads(self, name: str) -> tuple[str, ...]:
        """The fields that the column *name* is made of."""
        return next(one.reads for one in self._derive if one.name == name)

    def made(self, name: str, rows: pa.Table, count: int) -> pa.ChunkedArray:
        """Return the column *name* of *count* records whose fields are *rows*; NULL where its expression fails."""
        [one] = [one for one in self._derive if one.name == name]
        [column], _ = self._evaluated([one], _some(rows, count))
        return column

    @property
    def filter_reads(self) -> tuple[str, ...]:
        """The fields in the filter; none, where there is no filter."""
        return () if self._filter is None else self._filter.reads

    def verdicts(self, rows: pa.Table, count: int) -> list[bool | None]:
        """Return the filter's verdict on *count* records. *rows* has some of their fields; the others are NULL."""
        assert self._filter is not None
        given = {name: rows.column(name) for name in rows.column_names}
        given |= {n: pa.nulls(count, self._fields[n]) for n in self._filter.reads if n not in given}
        [found], _ = self._evaluated([self._filter], pa.table(given))
        told: list[bool | None] = found.to_pylist()
        return told

    def unmet(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Of which records a condition of the filter is not true although *rows* has all fields that it reads.

        No value of the other fields makes the filter true of them.
        """
        found = np.zeros(rows.num_rows, np.bool_)
        for one in self._conditions:
            if not one.reads or not set(one.reads) <= set(rows.column_names):
                continue
            there = np.ones(rows.num_rows, np.bool_)
            for name in one.reads:
                there &= rows.column(name).is_valid().to_numpy().astype(np.bool_)
            [verdict], failed = self._evaluated([one], rows)
            there[list(failed)] = False
            found |= there & ~pc.fill_null(verdict, False).to_numpy().astype(np.bool_)
        return found

    def _parts(self, wanted: str) -> Iterator[Compiled]:
        """Yield the conditions that the filter joins by AND; those that are no condition alone are asked with all."""
        parts = conditions_in(self._database, wanted)
        for sql in parts if len(parts) > 1 else [wanted]:
            with suppress(TransformUnusable):
                yield self._compiled("filter", f"({sql}) AND true", pa.bool_())

    # -- DuckDB ---------------------------------------------------------------------------------------------

    def _evaluated(self, wanted: Sequence[Compiled], rows: pa.Table) -> tuple[list[pa.ChunkedArray], dict[int, str]]:
        """The column of each expression over *rows*, and why it failed, by the places of rows for which one did."""
        import duckdb

        if not wanted or not rows.num_rows:
            return [pa.chunked_array([pa.nulls(rows.num_rows, one.type)]) for one in wanted], {}
        try:
            return self._columns(wanted, [one.sql for one in wanted], rows), {}
        except (duckdb.DataError, duckdb.InvalidInputException, UnicodeDecodeError):
            pass  # of some record; its text in the message may be cut within a letter
        except duckdb.Error as error:  # of no value: what it makes takes too much memory
            return self._halved(wanted, rows, error)
        try:
            return self._tried(wanted, rows)
        except duckdb.Error as error:
            return self._halved(wanted, rows, error)

    def _tried(self, wanted: Sequence[Compiled], rows: pa.Table) -> tuple[list[pa.ChunkedArray], dict[int, str]]:
        """The same where some record fails. Raises: duckdb.Error."""
        found: list[pa.ChunkedArray] = []
        wrong: dict[int, str] = {}
        for one in wanted:
            column, failing = self._apart(one, rows) or self._row_by_row(one, rows)
            for at, why in zip(failing.tolist(), _reasons(one, rows.take(pa.array(failing))), strict=True):
                wrong.setdefault(at, why)
            found.append(column)
        return found, wrong

    def _row_by_row(self, one: Compiled, rows: pa.Table) -> tuple[pa.ChunkedArray, NDArray[np.int64]]:
        """The column of *one*, and the places where it fails: DuckDB's TRY takes vectors with a failure row by row."""
        # A struct around the value: it is NULL only where the expression failed, whatever the value is.
        [told] = self._columns([one], [f"TRY({{'v': {one.sql}}})"], rows, of_struct=True)
        failing = np.flatnonzero(told.is_null().to_numpy())
        found = pc.struct_field(told, "v")
        if not one.is_asked_alone or rows.num_rows == 1 or not len(failing):
            return found, failing
        alone = [self._row_by_row(one, rows.take(pa.array([at]))) for at in failing.tolist()]
        order = np.arange(rows.num_rows)
        order[failing] = rows.num_rows + np.arange(len(failing))
        every = pa.chunked_array([*found.chunks, *chain.from_iterable(part.chunks for part, _ in alone)], one.type)
        still = np.array([len(wrong) > 0 for _, wrong in alone], np.bool_)
        return every.take(pa.array(order)), failing[still]

    def _apart(self, one: Compiled, rows: pa.Table) -> tuple[pa.ChunkedArray, NDArray[np.int64]] | None:
        """The same, with the few rows aside in which a cast fails; None where others fail too.

        Most failures are casts, and which rows they are a query of whole vectors tells: it costs an eighth of TRY.
        """
        import duckdb

        if one.doubt is None:
            return None
        try:
            [told] = self._columns([replace(one, type=pa.bool_())], [one.doubt], rows)
            doubted = pc.fill_null(told, False).to_numpy().astype(np.bool_)
            sure, unsure = np.flatnonzero(~doubted), np.flatnonzero(doubted)
            [sound] = self._columns([one], [one.sql], rows.take(pa.array(sure)))
        except (duckdb.DataError, duckdb.InvalidInputException, UnicodeDecodeError):
            return None
        tried, failing = self._row_by_row(one, rows.take(pa.array(unsure)))
        back = np.empty(rows.num_rows, np.int64)
        back[np.concatenate([sure, unsure])] = np.arange(rows.num_rows)
        both = pa.chunked_array([*sound.chunks, *tried.chunks], one.type).combine_chunks()
        return pa.chunked_array([both.take(pa.array(back))], one.type), unsure[failing]

    def _halved(
        self, wanted: Sequence[Compiled], rows: pa.Table, error: Exception
    ) -> tuple[list[pa.ChunkedArray], dict[int, str]]:
        """The same where all *rows* together are too much. One that is too much alone fails."""
        import duckdb

        if isinstance(error, duckdb.FatalException | duckdb.InternalException):
            self._database = _database(self._table)  # it no longer answers
        if rows.num_rows == 1:
            said = (
                f"more than {MEMORY_MAX} of memory" if isinstance(error, duckdb.OutOfMemoryException) else "what fails"
            )
            return [pa.chunked_array([pa.nulls(1, one.type)]) for one in wanted], {
                0: self._too_much(wanted, rows, said)
            }
        middle = rows.num_rows // 2
        first, wrong = self._evaluated(wanted, rows.slice(0, middle))
        second, more = self._evaluated(wanted, rows.slice(middle))
        columns = [pa.chunked_array([*a.chunks, *b.chunks], a.type) for a, b in zip(first, second, strict=True)]
        return columns, wrong | {at + middle: why for at, why in more.items()}

    def _too_much(self, wanted: Sequence[Compiled], rows: pa.Table, said: str) -> str:
        """Which of *wanted* needs *said* for the only one of *rows*."""
        import duckdb

        for one in wanted:
            try:
                self._columns([one], [one.sql], rows)
            except duckdb.Error:
                return f"`{one.name}`: {one.written} needs {said}"
        return f"the expressions together need {said}"

    def _columns(
        self, wanted: Sequence[Compiled], expressions: Sequence[str], rows: pa.Table, *, of_struct: bool = False
    ) -> list[pa.ChunkedArray]:
        read = {name for one in wanted for name in one.reads}
        fields = [name for name in self._fields if name in read and name in rows.column_names]
        chosen = ", ".join(f"{sql} AS c{i}" for i, sql in enumerate(expressions))
        with self._database.cursor() as cursor:
            cursor.register(RECORD, rows.select(fields or rows.column_names[:1]))
            found = cursor.execute(f"SELECT {chosen} FROM {RECORD}").to_arrow_table()
        types = [pa.struct([("v", one.type)]) if of_struct else one.type for one in wanted]
        return [column.cast(kind) for column, kind in zip(found.columns, types, strict=True)]

    def _compiled(self, name: str, sql: str, wanted: pa.DataType) -> Compiled:
        """Raises: TransformUnusable."""
        import duckdb

        if why := next(_troubles(self._database, sql, frozenset(f.lower() for f in self._fields)), None):
            raise self._unusable(name, sql, why)
        empty = pa.schema(list(self._fields.items())).empty_table()
        try:
            with self._database.cursor() as cursor:
                cursor.register(RECORD, empty)
                found = cursor.execute(f"SELECT ({sql}) AS c FROM {RECORD}").to_arrow_table().schema.field(0).type
                duck_type = cursor.execute(f"SELECT typeof(c) FROM (SELECT NULL::{_duck(wanted)} AS c)").fetchone()
        except (duckdb.Error, UnicodeDecodeError) as error:
            raise self._unusable(name, sql, _said(error)) from error
        if not _fits(found, wanted):
            way_on = "write a condition" if name == "filter" else "write a CAST that says how"
            given, needed = type_name(found), type_name(wanted)
            raise self._unusable(name, sql, f"it gives {given}, which does not fit {needed} without loss; {way_on}")
        assert duck_type is not None
        named, functions = names_in(self._database, sql)
        reads = tuple(field for field in self._fields if field.lower() in named)
        whole = f"CAST(({sql}) AS {duck_type[0]})"
        doubt = doubt_in(self._database, whole)
        is_alone = not functions.isdisjoint(_OF_VECTORS)
        return Compiled(
            name=name, written=sql, sql=whole, type=wanted, reads=reads, doubt=doubt, is_asked_alone=is_alone
        )

    def _unusable(self, name: str, sql: str, why: str) -> TransformUnusable:
        place = "filter" if name == "filter" else f"derive.{name}"
        error = TransformUnusable(f"{self._table}: transform.{place}: {sql!r}: {why}; nothing was changed")
        return error.blaming("transform", *place.split(".", 1))


def _said(error: Exception) -> str:
    """What DuckDB says is wrong: its first line without the class of the error, and the name that it suggests."""
    if isinstance(error, UnicodeDecodeError):  # of its message, which quotes a text that it cuts within a letter
        return "a constant in it cannot be evaluated"
    first, *rest = str(error).splitlines()
    meant = next((f" ({line[0].lower()}{line[1:]})" for line in rest if line.startswith("Did you mean")), "")
    if (unknown := re.search(r"Function with name (\S+) does not exist", first)) is not None:
        return f"there is no function {unknown[1]}(){meant}"
    return (first.partition("Error: ")[2] or first) + meant


def _some(rows: pa.Table, count: int) -> pa.Table:
    """*rows* with a column, so that DuckDB sees *count* of them where an expression reads no field."""
    return rows if rows.num_columns else pa.table({OPERATION: pa.repeat(PUT, count)})


def transformer_of(spec: TableSpec) -> Transformer | None:
    """None where *spec* has no transform. Raises: TransformUnusable."""
    return None if spec.transform is None else Transformer(spec)


def _reasons(one: Compiled, rows: pa.Table) -> list[str]:
    """Why *one* cannot be evaluated for each of *rows*: what it met there.

    DuckDB tells of the first record alone; to ask it record by record costs more than all the rest of ingest.
    """
    cells = [rows.column(name) for name in one.reads if name in rows.column_names]
    names = [name for name in one.reads if name in rows.column_names]
    if not names:
        return [f"`{one.name}`: {one.written} cannot be evaluated for any record"] * rows.num_rows
    return [
        f"`{one.name}`: {one.written} cannot be evaluated for "
        + ", ".join(f"{name} = {shown_value(column[at])}" for name, column in zip(names, cells, strict=True))
        for at in range(rows.num_rows)
    ]


def _at(column: pa.ChunkedArray, places: NDArray[np.int64], length: int) -> pa.ChunkedArray:
    """*column* spread over *length* rows, of which it has those at *places*; NULL elsewhere."""
    if len(places) == length:
        return column
    of = np.full(length, -1, np.int64)
    of[places] = np.arange(len(places))
    return column.take(pa.array(of, mask=of < 0))


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether each value of *found* fits *wanted*, or is too large for it, which the cast detects."""
    t = pa.types
    fits: bool = found == wanted or t.is_null(found)
    if t.is_timestamp(found) and t.is_timestamp(wanted):
        fits = (found.tz is None) == (wanted.tz is None)
    elif t.is_date(found) and t.is_timestamp(wanted):
        fits = wanted.tz is None
    elif t.is_integer(found):
        fits = t.is_integer(wanted) or t.is_decimal(wanted) or (wanted == pa.float64() and found.bit_width <= 32)
    elif t.is_decimal(found):
        fits = (
            t.is_integer(wanted)
            if found.scale == 0 and not t.is_decimal(wanted)
            else (t.is_decimal(wanted) and found.scale <= wanted.scale)
        )
    elif found == pa.float32():
        fits = wanted in (pa.float32(), pa.float64())
    return fits


def _duck(kind: pa.DataType) -> str:
    """The type in DuckDB's words."""
    t = pa.types
    if t.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if t.is_list(kind):
        return f"{_duck(kind.value_type)}[]"
    if t.is_map(kind):
        return f"MAP({_duck(kind.key_type)}, {_duck(kind.item_type)})"
    if t.is_struct(kind):
        parts = ", ".join(f'"{f.name.replace(chr(34), chr(34) * 2)}" {_duck(f.type)}' for f in kind)
        return f"STRUCT({parts})"
    if t.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz is None else "TIMESTAMPTZ"
    return {
        pa.bool_(): "BOOLEAN",
        pa.int32(): "INTEGER",
        pa.int64(): "BIGINT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.date32(): "DATE",
        pa.time64("us"): "TIME",
        pa.string(): "VARCHAR",
        pa.binary(): "BLOB",
    }[kind]


# -- what an expression may hold ----------------------------------------------------------------------------


def _database(table: str) -> DuckDBPyConnection:
    """A database of one thread that reaches nothing outside of it."""
    try:
        import duckdb
    except ImportError as error:
        raise TransformUnusable(
            f"{table}: a `transform` is evaluated by DuckDB, which is not installed: {pip_install('transform')}"
        ) from error
    made = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "enable_external_access": False,
            "memory_limit": MEMORY_MAX,
            "temp_directory": "",  # what does not fit is refused, not written to a disk
            # It takes a cast of a struct's field out of a TRY, so that all records of a batch fail with one.
            "disabled_optimizers": "unused_columns",
        },
    )
    made.execute("SET GLOBAL TimeZone = 'UTC'")
    made.execute("SET lock_configuration = true")
    return made


def _troubles(
    database: DuckDBPyConnection, sql: str, names: Collection[str], inside: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield why *sql* is not an expression over one record whose fields are *names* (in lower case).

    *inside*: the macros whose definition it is; some of DuckDB's macros call a function of the same name.
    """
    told = database.execute("SELECT json_serialize_sql(?)", [f"SELECT ({sql})"]).fetchone()
    assert told is not None
    parsed = json.loads(told[0])
    if parsed["error"]:
        said = str(parsed["error_message"])
        if said.endswith('near ")"') and sql.count("(") == sql.count(")"):
            said = "the expression ends too early"  # the parenthesis is ours
        yield said + _quote_them(database, sql, names)
        return
    [statement, *others] = parsed["statements"]
    node = statement["node"]
    chosen = node.get("select_list", [])
    if others or len(chosen) != 1 or node["from_table"]["type"] != "EMPTY" or node.get("where_clause"):
        yield "it is no expression"
        return
    yield from _walk(database, chosen[0], names, inside)


def _quote_them(database: DuckDBPyConnection, sql: str, names: Collection[str]) -> str:
    """Return the hint for an unreadable *sql* with *names* that are keywords of SQL."""
    bare = [name for name in names if re.search(rf'(?<!["\w]){re.escape(name)}(?!["\w])', sql, re.IGNORECASE)]
    words = {word for [word] in database.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()}
    said = ", ".join(f'"{name}"' for name in sorted(bare) if name in words)
    return f"; a field whose name is a word of SQL is written in double quotes: {said}" if said else ""


def _walk(database: DuckDBPyConnection, node: Any, names: Collection[str], inside: frozenset[str]) -> Iterator[str]:
    if isinstance(node, list):
        for one in node:
            yield from _walk(database, one, names, inside)
    if not isinstance(node, dict):
        return
    kind = node.get("class")
    if kind is not None and kind not in _SAFE:
        yield _NOT_OF_A_RECORD.get(kind, f"{kind.lower()} is no part of an expression over one record")
        return
    if kind == "COLUMN_REF" and (name := str(node["column_names"][0])).lower() not in names:
        yield f"{unknown_name(name, sorted(names), what='field')}; declare it in `transform.fields`"
    if kind == "FUNCTION":
        yield from _function_troubles(database, str(node["function_name"]).lower(), inside)
        yield from _like_troubles(str(node["function_name"]).lower(), node["children"])
    if kind == "LAMBDA":
        names = frozenset(names) | set(_parameters(node["lhs"]))
    for value in node.values():
        yield from _walk(database, value, names, inside)


def _parameters(node: Any) -> Iterator[str]:
    """The names of a lambda's parameters."""
    if isinstance(node, list):
        for one in node:
            yield from _parameters(one)
    elif isinstance(node, dict):
        if node.get("class") == "COLUMN_REF":
            yield str(node["column_names"][0]).lower()
        for value in node.values():
            yield from _parameters(value)


def _like_troubles(name: str, children: Sequence[Any]) -> Iterator[str]:
    """Yield why a pattern could hold the stage: nothing interrupts DuckDB while it looks at one text.

    It tries every place of the text for each sign of any text but the last, and every place again for the one before
    it. Only for LIKE with a constant pattern without `_` it looks for one part after the other.
    """
    if name not in _LIKES or len(children) < 2:
        return
    way_on = "can take for ever on one text; write contains(), starts_with(), ends_with() or regexp_matches()"
    if children[1]["class"] != "CONSTANT":
        yield f"a pattern of LIKE that is not written here {way_on}"
        return
    any_text, pattern = _LIKES[name], str(children[1]["value"].get("value", ""))  # none: NULL
    in_order = name in {"~~", "!~~"} and "_" not in pattern
    if not in_order and pattern.rstrip(any_text).count(any_text) > 1:
        yield f"the pattern {pattern!r} with several {any_text} {way_on}"


def _function_troubles(database: DuckDBPyConnection, name: str, inside: frozenset[str]) -> Iterator[str]:
    forms = _functions(database).get(name, ())
    kinds = {kind for kind, *_ in forms}
    if name in _OF_THE_SESSION or any(stability not in (None, "CONSISTENT") for _, stability, _, _ in forms):
        yield f"{name}() gives another value each time, or for each reader; take a field of the record"
    elif "aggregate" in kinds:
        yield f"{name}() looks at many records, and a column is made of one; do it where the table is read"
    elif kinds and kinds.isdisjoint({"scalar", "macro"}):  # some are both: range() stands for a list in an expression
        yield f"{name}() gives rows, not a value"
    for kind, _, definition, parameters in forms:
        if kind == "macro" and definition is not None and name not in inside:
            names = frozenset(p.lower() for p in parameters)
            yield from _troubles(database, definition, names, inside | {name})


@lru_cache(maxsize=1)
def _functions(database: DuckDBPyConnection) -> Mapping[str, list[tuple[str, str | None, str | None, list[str]]]]:
    """By name the kind, stability and, of a macro, the definition and parameters of each form of a function."""
    found: dict[str, list[tuple[str, str | None, str | None, list[str]]]] = {}
    for name, *form in database.execute(
        "SELECT function_name, function_type, stability, macro_definition, parameters FROM duckdb_functions()"
    ).fetchall():
        found.setdefault(name.lower(), []).append((form[0], form[1], form[2], form[3] or []))
    return found
