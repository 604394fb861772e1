"""Which changes of a table's columns are taken, and what becomes of its spec.

A column is its Iceberg field id: names and places change, the id does not. The compatible changes are those of
Iceberg's specification (schema evolution) as far as every older row, segment and record keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from harness_pipelines.errors import Recovery, UsageError
from harness_pipelines.protocol.schemas import Fields
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.spec.sources import WHOLE
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import (
    DecimalType,
    ListType,
    MapType,
    Primitive,
    StructType,
    Type,
    iceberg_fields,
    parse_type,
)

WIDER = {"int": "long", "float": "double"}


class EvolutionRefused(UsageError):
    """The change is not one that every older row survives; nothing was changed."""

    recovery = Recovery.NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is asked for, done in this order: what is renamed goes by its new name from then on."""

    rename: tuple[tuple[str, str], ...] = ()  #: (name, new name)
    drop: tuple[str, ...] = ()
    widen: tuple[tuple[str, Type], ...] = ()  #: (name, type)
    optional: tuple[str, ...] = ()
    add: tuple[Column, ...] = ()
    order: tuple[str, ...] = ()  #: new names of the columns that come first, in this order; the others follow

    def __bool__(self) -> bool:
        return any((self.rename, self.drop, self.widen, self.optional, self.add, self.order))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolved:
    """A table's spec and fields after a change."""

    spec: TableSpec
    fields: tuple[Mapping[str, Any], ...]
    narrows: bool  #: a column is gone: old reads cannot use what is written from now on
    told: tuple[str, ...]  #: the changes for people, one line each
    schema_id: int | None = None  #: in the registry, that asked for them; none: a person did


def evolved(spec: TableSpec, fields: Fields, changes: Changes, *, next_id: int) -> Evolved:
    """*spec* and its *fields* after *changes*; new fields get ids from *next_id* on.

    Raises: EvolutionRefused, with the reason and what would be taken.
    """
    if not changes:
        raise EvolutionRefused(f"{spec.table}: no change was asked for; `harness evolve --help` shows how to ask")
    if changes.drop and spec.evolution == "compatible":
        raise EvolutionRefused(
            f"{spec.table}: column {changes.drop[0]!r} would come back with the next record that has its field: "
            "the spec says `evolution: compatible`; apply `evolution: manual` before it is dropped"
        )
    ids = {f["name"]: f["id"] for f in fields}
    columns = {c.name: c for c in spec.columns}
    told: list[str] = []
    for old, new in changes.rename:
        columns, ids = _renamed(spec, columns, ids, old, new)
        told.append(f"rename {old} to {new}")
    for name in changes.drop:
        _check_free(spec, columns, name, "dropped")
        del columns[name], ids[name]
        told.append(f"drop {name}")
    for name, type_ in changes.widen:
        _check_free(spec, columns, name, "widened")
        told.append(f"widen {name} from {columns[name].type} to {type_}")
        columns[name] = replace(columns[name], type=_widened(spec, columns[name], type_))
    for name in changes.optional:
        _check_free(spec, columns, name, "made optional")
        if not columns[name].required:
            raise EvolutionRefused(f"{spec.table}: column {name!r} is optional already")
        columns[name] = replace(columns[name], required=False)
        told.append(f"make {name} optional")
    for column in changes.add:
        _check_addable(spec, columns, column)
        columns[column.name] = column
        told.append(f"add {column.name} {column.type}")
    if changes.order:
        columns = _ordered(spec, columns, changes.order)
        told.append(f"order {', '.join(columns)}")
    if not columns:
        raise EvolutionRefused(f"{spec.table}: a table keeps one column at least")
    made = _spec(spec, tuple(columns.values()))
    return Evolved(
        spec=made,
        fields=_fields(made, fields, ids, next_id=next_id),
        narrows=bool(changes.drop),
        told=tuple(told),
    )


def changes_between(old: TableSpec, new: TableSpec) -> Changes:
    """The changes that make the columns of *old* those of *new*; a new name with the old one as alias is a rename.

    Raises: EvolutionRefused for what no change does.
    """
    before, after = {c.name: c for c in old.columns}, {c.name: c for c in new.columns}
    renamed: dict[str, str] = {}
    for column in new.columns:
        was = next((a for a in column.aliases if a in before and a not in after), None)
        if column.name not in before and was is not None:
            renamed[was] = column.name
    widen, optional = [], []
    for name, column in before.items():
        if (now := after.get(renamed.get(name, name))) is None:
            continue
        if now.type != column.type:
            widen.append((now.name, now.type))
        if column.required and not now.required:
            optional.append(now.name)
        if now.required and not column.required:
            raise EvolutionRefused(f"{old.table}: column {name!r} is optional, and older rows may lack it; leave it so")
        if now.source != column.source:
            raise EvolutionRefused(
                f"{old.table}: column {name!r} is read `from: {column.source}`, and old records are; add another column"
            )
    came_from = set(renamed.values())
    kept = [renamed.get(name, name) for name in before if renamed.get(name, name) in after]
    added = [c.name for c in new.columns if c.name not in before and c.name not in came_from]
    order = [c.name for c in new.columns]
    return Changes(
        rename=tuple(renamed.items()),
        drop=tuple(name for name in before if name not in after and name not in renamed),
        widen=tuple(widen),
        optional=tuple(optional),
        add=tuple(after[name] for name in added),
        order=() if [*kept, *added] == order else tuple(order),
    )


def _renamed(
    spec: TableSpec, columns: dict[str, Column], ids: dict[str, int], old: str, new: str
) -> tuple[dict[str, Column], dict[str, int]]:
    _check_free(spec, columns, old, "renamed")
    if new in columns:
        raise EvolutionRefused(f"{spec.table}: column {old!r} cannot become {new!r}: there is such a column")
    was = columns[old]
    if spec.transform and old in spec.transform.derive:
        raise EvolutionRefused(
            f"{spec.table}: column {old!r} is made by `transform.derive` under this name, which is fixed; it cannot be "
            "renamed"
        )
    # Records that were written before, and those of producers that do not know yet, have the old name.
    aliases = tuple(dict.fromkeys(a for a in (old, *was.aliases) if a != new))
    if spec.format == "raw" or was.source in WHOLE:  # no field of the record
        aliases = ()
    now = replace(was, name=new, aliases=aliases)
    return (
        {now.name if name == old else name: now if name == old else c for name, c in columns.items()},
        {new if name == old else name: i for name, i in ids.items()},
    )


def _check_free(spec: TableSpec, columns: Mapping[str, Column], name: str, done: str) -> None:
    """Columns that rows are found by stay as they are."""
    if "." in name and name not in columns:
        raise EvolutionRefused(
            f"{spec.table}: {name!r} lies inside of a column, and fields of structs cannot be changed yet; add a column"
        )
    if name not in columns:
        raise EvolutionRefused(f"{spec.table}: there is no column {name!r}; columns: {', '.join(columns)}")
    if name in spec.key:
        raise EvolutionRefused(
            f"{spec.table}: column {name!r} is part of the key, which rows of all tiers are found by; it cannot be "
            f"{done}"
        )
    if spec.views != "stream" and name in spec.indexed:
        raise EvolutionRefused(
            f"{spec.table}: the batch view is clustered by column {name!r}, and its regions are cut in it; it cannot "
            f"be {done}"
        )


def _widened(spec: TableSpec, column: Column, wanted: Type) -> Type:
    match column.type, wanted:
        case Primitive(name), Primitive(new) if WIDER.get(name) == new:
            return wanted
        case DecimalType(digits, scale), DecimalType(more, same) if scale == same and more > digits:
            return wanted
        case DecimalType(digits, scale), _:
            can = f"decimal(p,{scale}) with more digits than {digits}"
        case Primitive(name), _ if name in WIDER:
            can = WIDER[name]
        case _:
            can = "no other type"
    raise EvolutionRefused(
        f"{spec.table}: column {column.name!r} is {column.type} and cannot become {wanted}: older rows, files and "
        f"records would not fit; it can become {can}. Add a column of the other type beside it"
    )


def _check_addable(spec: TableSpec, columns: Mapping[str, Column], column: Column) -> None:
    if taken := next((name for name in columns if name.lower() == column.name.lower()), None):
        raise EvolutionRefused(f"{spec.table}: there is a column {taken!r} already")
    if column.required:
        raise EvolutionRefused(
            f"{spec.table}: column {column.name!r} cannot be required: older rows have no value for it; add it as "
            "optional"
        )


def _ordered(spec: TableSpec, columns: dict[str, Column], order: Sequence[str]) -> dict[str, Column]:
    if unknown := [name for name in order if name not in columns]:
        raise EvolutionRefused(f"{spec.table}: there is no column {unknown[0]!r}; columns: {', '.join(columns)}")
    if len(set(order)) != len(order):
        raise EvolutionRefused(f"{spec.table}: {max(order, key=list(order).count)!r} is named twice in the order")
    return {name: columns[name] for name in (*order, *(n for n in columns if n not in order))}


def _spec(spec: TableSpec, columns: tuple[Column, ...]) -> TableSpec:
    """*spec* with *columns*, checked as a whole; by what the batch view is clustered is written down, so it stays."""
    update: dict[str, Any] = {"columns": columns}
    if spec.views != "stream" and not spec.layout.columns and "_kafka_timestamp" not in spec.indexed:
        update["layout"] = spec.layout.model_copy(update={"columns": spec.indexed})
    try:
        # The dumped words, not the model: a copy is not validated.
        made = TableSpec.model_validate(dump_spec(spec.model_copy(update=update)))
    except ValidationError as error:
        why = "; ".join(str(e["msg"]) for e in error.errors())
        raise EvolutionRefused(f"{spec.table}: with these columns the spec would not hold: {why}") from error
    if spec.views != "stream" and made.indexed != spec.indexed:
        raise EvolutionRefused(
            f"{spec.table}: the batch view is clustered by the time of the record, because no column suggested itself; "
            f"a column that does ({', '.join(made.indexed)}) cannot be added"
        )
    return made


def _fields(spec: TableSpec, known: Fields, ids: Mapping[str, int], *, next_id: int) -> tuple[Mapping[str, Any], ...]:
    by_id = {f["id"]: f for f in known}
    found: list[Mapping[str, Any]] = []
    for column in spec.stored:
        if column.name in ids:
            old = by_id[ids[column.name]]
            is_nested = isinstance(column.type, ListType | MapType | StructType)
            same = is_nested or parse_type(old["type"]) == column.type  # nested types keep their ids
            type_ = old["type"] if same else str(column.type)
            found.append({**old, "name": column.name, "type": type_, "required": column.required})
        else:
            [fresh] = iceberg_fields([column], first_id=next_id)
            next_id = max(_ids_of(fresh)) + 1
            found.append(fresh)
    return tuple(found)


def _ids_of(value: Any) -> Iterable[int]:
    """All ids in a field's JSON form."""
    if isinstance(value, Mapping):
        for word, part in value.items():
            if word == "id" or word.endswith("-id"):
                yield part
            else:
                yield from _ids_of(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _ids_of(part)
