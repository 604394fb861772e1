"""Infer the columns of JSON objects, or of the records of a schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness_pipelines.formats.infer.values import Unclear, example, infer
from harness_pipelines.formats.schema.policy import type_of
from harness_pipelines.formats.schema.writer_schema import NoFit, WriterType
from harness_pipelines.spec.columns import COLUMNS_MAX, Column, column_trouble
from harness_pipelines.spec.wording import folded


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedColumn:
    """A column, and what was seen of it."""

    column: Column
    note: str  #: for people, on one line; may be empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The columns of some records, and fields that are none."""

    columns: tuple[ProposedColumn, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  #: by name, why

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.column.name for one in self.columns)


class Draft:
    """Columns as they are found, each as a spec can have it."""

    def __init__(self) -> None:
        self._columns: dict[str, ProposedColumn] = {}
        self._left_out: dict[str, str] = {}

    def add(self, column: Column, note: str) -> None:
        """Add *column*, or leave it out where no table can have it beside the others."""
        if (why := self._trouble(column)) is None:
            self._columns[folded(column.name)] = ProposedColumn(column=column, note=note)
        else:
            self.leave_out(column.name, why)

    def _trouble(self, column: Column) -> str | None:
        if (twin := self._columns.get(folded(column.name))) is not None:
            return f"no engine tells its name from that of column {twin.column.name!r}"
        if len(self._columns) == COLUMNS_MAX:
            return f"a table has at most {COLUMNS_MAX:,} columns"
        why = column_trouble(column)
        return "the name is reserved" if why is not None and "is reserved" in why else why

    def leave_out(self, name: str, why: str) -> None:
        self._left_out[name] = why

    def done(self) -> Fields:
        return Fields(columns=tuple(self._columns.values()), left_out=self._left_out)


def fields_of_objects(objects: Sequence[Mapping[str, Any]], *, without: Iterable[str] = ()) -> Fields:
    """The columns of *objects*, in the order in which their fields come first; *without* are no columns."""
    draft, seen = Draft(), dict[str, list[Any]]()
    for one in objects:
        for name, value in one.items():
            seen.setdefault(name, []).append(value)
    for name in without:
        seen.pop(name, None)
    for name, values in seen.items():
        try:
            found = infer(values, name)
        except Unclear as why:
            draft.leave_out(name, str(why))
            continue
        shown = [example(values), *found.notes, _presence(values, len(objects))]
        draft.add(Column(name=name, type=found.type, source=found.source), "; ".join(filter(None, shown)))
    return draft.done()


def _presence(values: Sequence[Any], count: int) -> str:
    there = sum(value is not None for value in values)
    return "" if there == count else f"in {there:,} of {count:,} records"


def fields_of_schema(written: WriterType) -> Fields:
    """The columns that records of a schema give."""
    draft = Draft()
    for one in written.fields:
        try:
            type_ = type_of(one.written)
        except NoFit as why:
            draft.leave_out(one.name, str(why).removeprefix(": "))
        else:
            note = f"one of {', '.join(list(one.written.names.values())[:8])}" if one.written.names else ""
            draft.add(Column(name=one.name, type=type_, description=one.description), note)
    return draft.done()
