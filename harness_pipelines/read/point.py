"""Rows by key: the newest versions of some keys in one cut, from the buffer alone if it has them."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

from harness_pipelines.drivers.postgres import SegmentMissing
from harness_pipelines.errors import UsageError
from harness_pipelines.ports.access import HasGlances, HasLeases, HasLog, HasTables
from harness_pipelines.ports.ledger import ReadState, TableRow
from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.keys import PUT, key_in_two_partitions
from harness_pipelines.protocol.reading.fold import key_text
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.reading.queries import HotQuery
from harness_pipelines.protocol.reading.selection import ReadColumn, Selection, names_of, table_columns, work_of
from harness_pipelines.read.plan import glanced
from harness_pipelines.read.union import ArrowReader
from harness_pipelines.spec.arrow import Named
from harness_pipelines.spec.predicate import (
    FALSE,
    OFFSET,
    PARTITION,
    Compare,
    IsNull,
    OneOf,
    Op,
    Predicate,
    Ref,
    Value,
    all_of,
    any_of,
)
from harness_pipelines.spec.types import DecimalType, Primitive
from harness_pipelines.spec.where import WhereError, compared

LOOKS_MAX = 3  #: for what is asked from the buffer alone
KEYS_PER_READ = 200  #: with more values no file is ruled out, and a filter of composite keys grows deep
Key = tuple[Value | None, ...]  #: physical values of the key's columns, in the key's order
_NUMBERS = (Primitive("int"), Primitive("long"))


class Ports(HasGlances, HasLeases, HasLog, HasTables, Protocol):
    """The ports that it uses."""


class KeyUnfit(UsageError):
    """The given value is not a key of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyForm:
    """How keys of one table are given and compared."""

    table: str
    columns: tuple[ReadColumn, ...]

    def key(self, given: Any) -> Key | None:
        """*given* as physical values: ``{column: value}``, a tuple or list in the key's order, or one value.

        None: no row can have it, as with a fraction in a column of whole numbers. Raises: KeyUnfit.
        """
        values = self._values(given)
        try:
            parts = [_physical(Ref((c.name,), c.type), v) for c, v in zip(self.columns, values, strict=True)]
        except WhereError as error:
            raise KeyUnfit(f"{self.table}: no key: {error}") from error
        return tuple(part[0] for part in parts) if all(parts) else None

    def where(self, keys: Sequence[Key]) -> Predicate:
        """What holds for the rows of *keys*, NULL being equal to itself."""
        if len(self.columns) == 1:
            [column] = self.columns
            ref = Ref((column.name,), column.type)
            values = tuple(value for (value,) in keys if value is not None)
            null = [IsNull(ref)] if len(values) < len(keys) else []
            return any_of(*([OneOf(ref, values)] if values else []), *null)
        return any_of(*(all_of(*self._parts(key)) for key in keys))

    def below(self, given: Any) -> Predicate:
        """The predicate for rows whose key begins with *given*, the values of its first columns. Raises: KeyUnfit."""
        names = [column.name for column in self.columns]
        values = tuple(given.values()) if isinstance(given, Mapping) else _several(given)
        first = self.columns[: len(values)]
        if not 0 < len(values) < len(names) or (isinstance(given, Mapping) and list(given) != names[: len(values)]):
            raise KeyUnfit(
                f"{self.table}: the key is ({', '.join(names)}); what it begins with are values of its first columns, "
                f"up to {len(names) - 1} of them"
            )
        part = replace(self, columns=first)
        key = part.key(values)
        return FALSE if key is None else all_of(*part._parts(key))

    def of(self, rows: pa.Table) -> Iterator[Key]:
        """The keys of *rows*."""
        return zip(*(_physical_values(rows.column(c.name)) for c in self.columns), strict=True)

    def _parts(self, key: Key) -> Iterator[Predicate]:
        for column, value in zip(self.columns, key, strict=True):
            ref = Ref((column.name,), column.type)
            yield IsNull(ref) if value is None else OneOf(ref, (value,))  # without a collation, so an index serves

    def _values(self, given: Any) -> Sequence[Any]:
        names = [column.name for column in self.columns]
        if isinstance(given, Mapping):
            if set(given) != set(names):
                raise KeyUnfit(f"{self.table}: the key is ({', '.join(names)}), not ({', '.join(map(str, given))})")
            return [given[name] for name in names]
        values = _several(given)
        if len(values) != len(names):
            raise KeyUnfit(f"{self.table}: the key is ({', '.join(names)}): {len(names)} values, not {len(values)}")
        return values


def _several(given: Any) -> tuple[Any, ...]:
    """*given* as values: what is neither a tuple nor a list is one of them, text above all."""
    return tuple(given) if isinstance(given, tuple | list) else (given,)


def key_form(plan: ReadPlan) -> KeyForm:
    """Raises: KeyUnfit of a table without a key."""
    if not plan.key:
        raise KeyUnfit(f"{plan.table} has no key: it keeps every record; read it with a `where`")
    known = table_columns(plan)
    return KeyForm(table=plan.table, columns=tuple(known[name] for name in plan.key))


def rows_by_key(
    reader: ArrowReader,
    plan: ReadPlan,
    given: Iterable[Any],
    *,
    columns: Sequence[str] | None = None,
    check_lease: Callable[[], None],
) -> list[dict[str, Any] | None]:
    """For each key *given* (see `KeyForm.key`) its row as a dictionary, None where there is none.

    Values are those of `Table.read`. The lake and recalled rows are read for those keys only that buffer and tail do
    not know.
    Raises: KeyUnfit, UnknownColumn, and what `ArrowReader.read` raises.
    """
    asked = _Asked(plan, given, columns)
    for some in asked.by_read():
        if left := asked.look_in_buffer(reader, some):
            asked.look_in_lake(reader, left)
    check_lease()
    return asked.answers()


class HotRows:
    """Rows by key of one table from its buffer alone, by one statement and without a lease.

    A statement names the segments that it reads, so it names those of the last look, and tells in the same snapshot
    which there are: where there are others, or other columns, it was for nothing and the next one asks these.
    """

    def __init__(self, stores: Ports) -> None:
        self._stores = stores
        self._last: tuple[ReadState, ReadPlan] | None = None

    def rows(
        self, table: TableRow, given: Sequence[Any], *, columns: Sequence[str] | None = None
    ) -> list[dict[str, Any] | None] | None:
        """As `rows_by_key`, where the buffer knows every key; None where it does not, or moves on with each look."""
        for _ in range(LOOKS_MAX if len(given) <= KEYS_PER_READ else 0):
            last = self._last
            asked = _Asked(last[1], given, columns) if last else None
            try:
                state, found = self._stores.glances.look(table, asked.of_buffer() if asked else None)
            except SegmentMissing:
                self._last = None
                continue
            if asked and last and _serves(last[0], state):
                return asked.answers() if found is not None and not asked.note_newest(found) else None
            self._last = state, glanced(self._stores, table, state).plan
        return None


def _serves(last: ReadState, now: ReadState) -> bool:
    """True if what was asked of the segments of *last* is all that there is *now*."""
    same = last.version.schema_version == now.version.schema_version
    return same and set(now.segments) <= set(last.segments)


class _Asked:
    """Keys that are looked for in one cut, and what was found."""

    def __init__(self, plan: ReadPlan, given: Iterable[Any], columns: Sequence[str] | None) -> None:
        self._plan, self._form = plan, key_form(plan)
        if isinstance(given, str | bytes | Mapping):
            raise KeyUnfit(f"{plan.table}: {given!r} is one key: give a list of keys, or ask for it with `get`")
        self._keys = [self._form.key(one) for one in given]
        self._shown = names_of(columns) if columns is not None else [f["name"] for f in plan.fields]
        self._operation = [name for name in (OPERATION,) if name not in self._shown]
        self._found: dict[Key, dict[str, Any] | None] = {}

    def by_read(self) -> Iterator[list[Key]]:
        """The keys, each once, as many at a time as one read looks for."""
        once = list(dict.fromkeys(key for key in self._keys if key is not None))
        for i in range(0, len(once), KEYS_PER_READ):
            yield once[i : i + KEYS_PER_READ]

    def of_buffer(self) -> HotQuery | None:
        """All that is asked, as one question to the buffer; None where it has nothing."""
        keys = next(self.by_read(), [])
        work = work_of(replace(self._plan, lake=(), overlay=None), self._wanted(self._shown, keys))
        if not work.segments:
            return None
        return HotQuery(segments=work.segments, schema=work.needed_schema, key=self._plan.key, where=work.asked)

    def note_newest(self, rows: pa.Table) -> list[Key]:
        """Note *rows*, the newest of each key and partition; returns the keys without one.

        Raises: KeyInTwoPartitions.
        """
        at: dict[Key, int] = {}
        for row, key in enumerate(self._form.of(rows)):
            if (other := at.setdefault(key, row)) != row:
                first, second = ((rows.column(n)[i].as_py() for n in (PARTITION, OFFSET)) for i in (row, other))
                text = key_text(rows, self._plan.key, row)
                raise key_in_two_partitions(self._plan.table, text, first=tuple(first), second=tuple(second))
        self._note(rows)
        return [key for key in next(self.by_read(), []) if key not in self._found]

    def look_in_buffer(self, reader: ArrowReader, keys: Sequence[Key]) -> list[Key]:
        """Look for *keys* in buffer and tail; returns those that neither knows."""
        self._note(reader.newest(replace(self._plan, lake=(), overlay=None), self._wanted(self._shown, keys)))
        return [key for key in keys if key not in self._found]

    def look_in_lake(self, reader: ArrowReader, keys: Sequence[Key]) -> None:
        older = replace(self._plan, buffer=None, tail=None)
        names = [*self._shown, *(name for name in self._plan.key if name not in self._shown)]
        self._note(reader.read(older, self._wanted(names, keys), check_lease=lambda: None))

    def answers(self) -> list[dict[str, Any] | None]:
        """The rows, in the order of the requested keys."""
        return [None if key is None else self._found.get(key) for key in self._keys]

    def _wanted(self, columns: Sequence[str], keys: Sequence[Key]) -> Selection:
        return Selection(columns=columns, coordinates=self._operation, matching=self._form.where(keys))

    def _note(self, rows: pa.Table) -> None:
        operations = rows.column(OPERATION).to_pylist()
        shown = rows.select(self._shown).to_pylist()
        for key, operation, row in zip(self._form.of(rows), operations, shown, strict=True):
            self._found[key] = row if operation == PUT else None


def _physical(ref: Ref, value: object) -> tuple[Value | None, ...]:
    """The one physical value that is *value*; none where the column cannot hold it."""
    if value is None:
        return (None,)
    match compared(ref, Op.EQ, _literal(ref, value)):
        case Compare(_, Op.EQ, physical):
            return (physical,)
    return ()


def _literal(ref: Ref, value: object) -> str | Decimal | bool:
    """*value* as a literal of a `where`: what Python has for the type, or its text."""
    match value:
        case bool() | Decimal() | str():
            return value
        case int():
            return Decimal(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case uuid.UUID():
            return str(value)
        case bytes():
            return str(uuid.UUID(bytes=value)) if ref.type == Primitive("uuid") and len(value) == 16 else value.hex()
    raise WhereError(f"{ref.column} is {ref.type}: {value!r} of Python's type {type(value).__name__} is none")


def literal_of_text(column: Named, text: str) -> Any:
    """A value of a key's *column* from a command line. Raises: KeyUnfit."""
    if isinstance(column.type, DecimalType) or column.type in _NUMBERS:
        try:
            return Decimal(text)
        except ArithmeticError as error:
            raise KeyUnfit(f"{column.name} is {column.type}: {text!r} is no number") from error
    if column.type == Primitive("boolean"):
        if text.lower() not in ("true", "false"):
            raise KeyUnfit(f"{column.name} is boolean: {text!r} is neither true nor false")
        return text.lower() == "true"
    return text


def _physical_values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_date32(column.type):
        return list(column.cast(pa.int32()).to_pylist())
    if pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type):
        return list(column.cast(pa.int64()).to_pylist())
    return list(column.to_pylist())
