"""The selection of a read, checked against the plan's columns, and the parts of the plan that can match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa

from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.keys import on_all_versions
from harness_pipelines.protocol.reading.narrowing import Ranges, narrowed
from harness_pipelines.protocol.reading.plan import ReadPlan, SegmentRef
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery
from harness_pipelines.protocol.versions import ViewName
from harness_pipelines.spec.arrow import COORDINATES, arrow_type
from harness_pipelines.spec.predicate import OFFSET, PARTITION, TRUE, Predicate, all_of, refs
from harness_pipelines.spec.types import Primitive, Type, type_from_json
from harness_pipelines.spec.where import WhereError, parse_where
from harness_pipelines.spec.wording import unknown_name

COORDINATE_TYPES: Mapping[str, Type] = {
    "_kafka_partition": Primitive("int"),
    "_kafka_offset": Primitive("long"),
    "_kafka_timestamp": Primitive("timestamptz"),
    "_op": Primitive("string"),
    "_schema_version": Primitive("int"),
}


class UnknownColumn(WhereError):
    """A column is unknown or was requested twice."""


class ColumnsChanged(WhereError):
    """A query was planned with columns that have changed or are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Columns of the user as a query was planned with them: as fields of Iceberg, with their ids and their names."""

    shown: tuple[Mapping[str, Any], ...]  #: of the result, in order
    asked: tuple[Mapping[str, Any], ...]  #: that `where` names

    def names_in(self, plan: ReadPlan) -> list[str]:
        """The names that the columns of the result have in *plan*.

        A column that was renamed or came to another place is the same. Raises: ColumnsChanged.
        """
        now = {field["id"]: field for field in plan.fields}
        for was in (*self.shown, *self.asked):
            if (found := now.get(was["id"])) is None:
                raise _changed(plan, was, "was dropped")
            if found["type"] != was["type"]:
                kinds = [type_from_json(field["type"]) for field in (found, was)]
                is_same = kinds[0] == kinds[1]  # what a field inside of it was dropped for has the same name and type
                raise _changed(plan, was, "has other fields" if is_same else f"is {kinds[0]}, and was {kinds[1]}")
        for was in self.asked:
            if now[was["id"]]["name"] != was["name"]:
                raise _changed(plan, was, f"is called {now[was['id']]['name']!r}, and `where` names it")
        return [now[was["id"]]["name"] for was in self.shown]


def _changed(plan: ReadPlan, was: Mapping[str, Any], what: str) -> ColumnsChanged:
    return ColumnsChanged(
        f"{plan.table}: column {was['name']!r} {what} since this query was planned; nothing was read, plan it again "
        "(make the frame or the view again, start the stream again)"
    )


def bound_to(plan: ReadPlan, work: Work) -> Bound:
    """The columns of *work* as *plan* has them."""
    fields = {field["id"]: dict(field) for field in plan.fields}
    known = table_columns(plan)
    asked = dict.fromkeys(known[ref.column].field_id for ref in refs(work.where))
    return Bound(
        shown=tuple(fields[column.field_id] for column in work.columns if column.field_id is not None),
        asked=tuple(fields[number] for number in asked if number is not None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Columns (None: all of the user's), rows and size of a read.

    ``coordinates``: True for all five behind the columns, or some of them by name; ``columns`` may name them too.
    """

    columns: Sequence[str] | None = None
    where: str | None = None
    coordinates: bool | Sequence[str] = False
    limit: int | None = None
    layer: bool = False  #: of the batch view only files with rows of its sample layer, other rows among them
    files: frozenset[str] | None = None  #: of the lake only these, by their paths
    matching: Predicate = TRUE  #: what must hold besides `where`
    changelog: bool = False  #: of a keyed table every version of a key and every delete, not the newest put
    bound: Bound | None = None  #: `columns` and `where` mean these, whatever has their names by now


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadColumn:
    """A column of the table: one of the user's has a field id, a coordinate has none."""

    name: str
    type: Type
    required: bool
    field_id: int | None

    @property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, arrow_type(self.type), nullable=not self.required)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeWork:
    """Ranges of one pinned metadata file that can hold wanted rows, and what is asked of it."""

    metadata: str
    ranges: Ranges
    columns: tuple[ReadColumn, ...]
    where: Predicate
    view: ViewName = "stream"
    layer: bool = False  #: only files with rows of the sample layer
    files: frozenset[str] | None = None  #: only these, by their paths

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([column.arrow for column in self.columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A plan narrowed to a selection: what is left has to be read.

    Of a keyed table the stream view, buffer and tail are the hot side, whose newest row per key counts; the batch view
    with the rows of it that were recalled is the cold side, which has one row per key. The hot side is asked for more
    rows than `where` wants: its rows hide others.
    """

    table: str
    version: int
    key: tuple[str, ...]  #: () of an append table and of a changelog: nothing is folded
    stores_op: bool  #: the segments tell puts from deletes
    columns: tuple[ReadColumn, ...]  #: of the result, in order
    needed: tuple[ReadColumn, ...]  #: these and those that only `where` or the fold needs; never empty
    cold_columns: tuple[ReadColumn, ...]  #: what is asked of the cold side: without what only the fold needs
    where: Predicate  #: of the result
    asked: Predicate  #: what buffer and tail can be asked
    limit: int | None
    lake: tuple[LakeWork, ...]
    overlays: tuple[SegmentRef, ...]  #: recalled rows, of the cold side
    overlay: Ranges
    segments: tuple[SegmentRef, ...]
    buffer: Ranges
    tail: Ranges
    pruned: Mapping[str, tuple[int, int]] = field(default_factory=dict)  #: tier -> offsets before and after `where`

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([column.arrow for column in self.columns])

    @property
    def needed_schema(self) -> pa.Schema:
        return pa.schema([column.arrow for column in self.needed])

    @property
    def cold_schema(self) -> pa.Schema:
        return pa.schema([column.arrow for column in self.cold_columns])

    @property
    def hot(self) -> tuple[LakeWork, ...]:
        """The part of the lake that is folded by key: none in an append table."""
        return tuple(part for part in self.lake if self.key and part.view == "stream")

    @property
    def cold(self) -> tuple[LakeWork, ...]:
        """The part of the lake that is returned unfolded, less the rows that the hot side hides."""
        return tuple(part for part in self.lake if not self.key or part.view == "batch")

    def query(self, part: LakeWork) -> LakeQuery:
        """The filter for the lake's scan of *part*."""
        return LakeQuery(
            table=self.table,
            version=self.version,
            ranges=part.ranges,
            columns=[LakeColumn(name=c.name, field_id=c.field_id, type=c.type) for c in part.columns],
            where=part.where,
            limit=None if part in self.hot else self.limit,
            layer=part.layer,
            files=part.files,
        )


def work_of(plan: ReadPlan, selection: Selection) -> Work:
    """Check *selection* and leave out of *plan* what its predicates on the coordinates rule out.

    Raises: UnknownColumn, WhereError, ColumnsChanged.
    """
    if selection.bound is not None:
        selection = replace(selection, columns=selection.bound.names_in(plan), bound=None)
    known, key = table_columns(plan), () if selection.changelog else plan.key
    columns = _chosen(known, selection)
    where = parse_where(selection.where, {c.name: c.type for c in known.values()}) if selection.where else TRUE
    where = all_of(where, selection.matching)
    extra = [ref.column for ref in refs(where)]
    cold = _with(columns, known, [*extra, *key, *((PARTITION, OFFSET) if key else ())])
    needed = _with(cold, known, [OPERATION]) if key else cold or (known[OFFSET],)
    asked = on_all_versions(where, key) if key else where
    offsets: dict[str, tuple[int, int]] = {}
    lake = []
    for part in plan.lake:
        is_cold = bool(key) and part.view == "batch"
        pushed = where if is_cold else asked
        if ranges := _narrowed(part.view, part.low, part.high, pushed, offsets):
            lake.append(
                LakeWork(
                    metadata=part.metadata,
                    ranges=ranges,
                    columns=cold if is_cold else needed,
                    where=pushed,
                    view=part.view,
                    layer=selection.layer and part.view == "batch",
                    files=selection.files,
                )
            )
    overlay = _narrowed("overlay", plan.overlay.low, plan.overlay.high, where, offsets) if plan.overlay else {}
    buffer = _narrowed("buffer", plan.buffer.low, plan.buffer.high, asked, offsets) if plan.buffer else {}
    tail = _narrowed("tail", plan.tail.low, plan.tail.high, asked, offsets) if plan.tail else {}
    return Work(
        table=plan.table,
        version=plan.version,
        key=key,
        stores_op=bool(plan.key),
        columns=columns,
        needed=needed,
        cold_columns=cold if key else needed,
        where=where,
        asked=asked,
        limit=selection.limit,
        lake=tuple(lake),
        overlays=plan.overlay.segments if plan.overlay and overlay else (),
        overlay=overlay,
        segments=plan.buffer.segments if plan.buffer and buffer else (),
        buffer=buffer,
        tail=tail,
        pruned=offsets,
    )


def names_of(columns: Sequence[str]) -> list[str]:
    """*columns* as a list; a text is one name, not its letters."""
    return [columns] if isinstance(columns, str) else list(columns)


def _with(
    columns: tuple[ReadColumn, ...], known: Mapping[str, ReadColumn], more: Sequence[str]
) -> tuple[ReadColumn, ...]:
    """*columns*, and behind them those of *more* that are not there yet."""
    return (*columns, *(known[name] for name in dict.fromkeys(more) if known[name] not in columns))


def _narrowed(
    tier: str, low: Mapping[int, int], high: Mapping[int, int], where: Predicate, offsets: dict[str, tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    ranges = narrowed({p: (low[p], high[p]) for p in low}, where)
    before, after = offsets.get(tier, (0, 0))
    offsets[tier] = (before + sum(high[p] - low[p] for p in low), after + sum(h - lo for lo, h in ranges.values()))
    return ranges


def _chosen(known: Mapping[str, ReadColumn], selection: Selection) -> tuple[ReadColumn, ...]:
    asked = names_of(selection.columns) if selection.columns is not None else list(_users(known))
    wanted = selection.coordinates
    coordinates = COORDINATES.names if wanted is True else list(wanted or ())
    for name in coordinates:
        if name not in COORDINATES.names:
            raise UnknownColumn(f"{name!r} is not a coordinate; coordinates: {', '.join(COORDINATES.names)}")
    names = [*asked, *(name for name in coordinates if name not in asked)]
    if unknown := [name for name in names if name not in known]:
        raise UnknownColumn(unknown_name(unknown[0], list(known)))
    if len(set(names)) != len(names):
        raise UnknownColumn(f"column {max(names, key=names.count)!r} is requested twice")
    return tuple(known[name] for name in names)


def _users(known: Mapping[str, ReadColumn]) -> Iterator[str]:
    return (name for name, column in known.items() if column.field_id is not None)


def table_columns(plan: ReadPlan) -> dict[str, ReadColumn]:
    """All columns of the plan's table by name: the user's in spec order, then the coordinates."""
    return {column.name: column for column in _columns(orjson.dumps([dict(field) for field in plan.fields]))}


@lru_cache(maxsize=256)
def _columns(fields: bytes) -> tuple[ReadColumn, ...]:
    user = (
        ReadColumn(name=f["name"], type=type_from_json(f["type"]), required=f["required"], field_id=f["id"])
        for f in orjson.loads(fields)
    )
    coordinates = (
        ReadColumn(name=f.name, type=COORDINATE_TYPES[f.name], required=not f.nullable, field_id=None)
        for f in COORDINATES
    )
    return (*user, *coordinates)
