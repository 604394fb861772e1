"""Accepted changes of a table's columns, and the resulting spec.

A column is its Iceberg field id: names and places change, the id does not. The compatible changes are those of
Iceberg's specification (schema evolution), limited so that each older row, segment and record keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from harness_pipelines.errors import Recovery, UsageError
from harness_pipelines.protocol.lake.overlays import Overlay
from harness_pipelines.protocol.schema import nested
from harness_pipelines.protocol.schema.schemas import Fields, ids_of
from harness_pipelines.protocol.shape import view_set_of
from harness_pipelines.spec.columns import Column, Default
from harness_pipelines.spec.load import dump_spec, read_back
from harness_pipelines.spec.sources import WHOLE
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import (
    DecimalType,
    Primitive,
    Type,
    TypeSpecError,
    iceberg_fields,
    parse_type,
    type_from_json,
)
from harness_pipelines.spec.wording import SpecError, folded, why_same

WIDER = {"int": "long", "float": "double"}


class EvolutionRefused(UsageError):
    """Older rows would not survive the change; nothing was changed."""

    recovery = Recovery.NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChanges:
    """The requested changes, applied in this order; a renamed column has its new name from then on.

    A field inside of a column is named by its path, as `protocol.nested` says.
    """

    rename: tuple[tuple[str, str], ...] = ()  #: (name, new name)
    drop: tuple[str, ...] = ()
    widen: tuple[tuple[str, Type], ...] = ()  #: (name, type)
    optional: tuple[str, ...] = ()
    default: tuple[tuple[str, Default | None], ...] = ()  #: (name, value); None: remove the default
    describe: tuple[tuple[str, str | None], ...] = ()  #: (name, description); None: remove it
    add: tuple[Column, ...] = ()
    order: tuple[str, ...] = ()  #: new names of the columns that come first, in this order; the others follow

    def __bool__(self) -> bool:
        return any(getattr(self, one.name) for one in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolved:
    """A table's spec and fields after a change."""

    spec: TableSpec
    fields: tuple[Mapping[str, Any], ...]
    narrows: bool  #: a column is gone: old reads cannot use what is written from now on
    told: tuple[str, ...]  #: the changes for people, one line each
    schema_id: int | None = None  #: in the registry, that asked for them; none: a person did


def evolved(spec: TableSpec, known: Fields, changes: ColumnChanges, *, next_id: int) -> Evolved:
    """*spec* and its fields, the *known*, after *changes*; new fields get ids from *next_id* on.

    Raises: EvolutionRefused, with the reason and what would be taken.
    """
    if not changes:
        raise EvolutionRefused(f"{spec.table}: no change was asked for; `harness evolve --help` shows how to ask")
    if changes.drop and spec.evolution == "compatible":
        raise EvolutionRefused(
            f"{spec.table}: column {changes.drop[0]!r} would come back with the next record that has its field: "
            "the spec says `evolution: compatible`; apply `evolution: manual` before it is dropped"
        )
    draft = _Draft(spec=spec, columns={c.name: c for c in spec.columns}, fields={f["name"]: f for f in known})
    draft.next_id = next_id
    told = [draft.rename(old, new) for old, new in changes.rename]
    told += [draft.drop(name) for name in changes.drop]
    told += [draft.widen(name, type_) for name, type_ in changes.widen]
    told += [draft.make_optional(name) for name in changes.optional]
    told += [draft.set_default(name, value) for name, value in changes.default]
    told += [draft.describe(name, text) for name, text in changes.describe]
    told += [draft.add(column) for column in changes.add]
    told += draft.order(changes.order)
    if not draft.columns:
        raise EvolutionRefused(f"{spec.table}: a table keeps one column at least")
    if empty := next((f["name"] for f in draft.fields.values() if nested.empty_struct(f["type"])), None):
        raise EvolutionRefused(f"{spec.table}: a struct keeps one field at least, also in column {empty!r}")
    made = _spec(spec, tuple(draft.columns.values()))
    return Evolved(
        spec=made,
        fields=tuple(_field(column, draft.fields[column.name]) for column in made.stored),
        narrows=bool(changes.drop),
        told=tuple(told),
    )


def changes_between(old: TableSpec, new: TableSpec) -> ColumnChanges:
    """The changes that make the columns of *old* those of *new*; a new name with the old one as alias is a rename.

    Raises: EvolutionRefused for what no change does.
    """
    before, after = {c.name: c for c in old.columns}, {c.name: c for c in new.columns}
    renamed: dict[str, str] = {}
    for column in new.columns:
        was = next((a for a in column.aliases if a in before and a not in after), None)
        if column.name not in before and was is not None:
            renamed[was] = column.name
    widen, optional = list[tuple[str, Type]](), list[str]()
    default: list[tuple[str, Default | None]] = []
    describe: list[tuple[str, str | None]] = []
    inside: dict[str, list[tuple[str, Type]]] = {"add": [], "drop": [], "widen": widen, "order": []}
    for name, column in before.items():
        if (now := after.get(renamed.get(name, name))) is None:
            continue
        for what, path, type_ in nested.differences(now.name, column.type, now.type):
            inside[what].append((path, type_))
        if now.default != column.default:
            default.append((now.name, now.default))
        if now.description != column.description:
            describe.append((now.name, now.description))
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
    gone = [name for name in before if name not in after and name not in renamed]
    outer = [] if [*kept, *added] == order else order
    return ColumnChanges(
        rename=tuple(renamed.items()),
        drop=(*gone, *(path for path, _ in inside["drop"])),
        widen=tuple(widen),
        optional=tuple(optional),
        default=tuple(default),
        describe=tuple(describe),
        add=(*(after[name] for name in added), *(Column(name=path, type=type_) for path, type_ in inside["add"])),
        order=(*outer, *(path for path, _ in inside["order"])),
    )


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A table's columns while they are changed; each change gives its line for people."""

    spec: TableSpec
    columns: dict[str, Column]
    fields: dict[str, Mapping[str, Any]]  #: by the columns' names
    next_id: int = 0

    def rename(self, old: str, new: str) -> str:
        if self._place(old, "renamed")[1]:
            raise self._refused(
                f"{old!r} lies inside of a column, and records have one name for such a field, so it keeps it; add a "
                "field of the new name beside it"
            )
        if taken := next((name for name in self.columns if name != old and folded(name) == folded(new)), None):
            raise self._refused(
                f"column {old!r} cannot become {new!r}: there is a column {taken!r} ({why_same(new, taken)})"
            )
        if self._is_derived(old):
            raise self._refused(
                f"column {old!r} is made by `transform.derive` under this name, which is fixed; it cannot be renamed"
            )
        was = self.columns[old]
        # Records that were written before, and those of producers that do not know yet, have the old name.
        aliases = tuple(dict.fromkeys(a for a in (old, *was.aliases) if a != new))
        if self.spec.format == "raw" or was.source in WHOLE:  # no field of the record
            aliases = ()
        now = replace(was, name=new, aliases=aliases)
        self.columns = {new if name == old else name: now if name == old else c for name, c in self.columns.items()}
        self.fields = {new if name == old else name: field for name, field in self.fields.items()}
        return f"rename {old} to {new}"

    def drop(self, name: str) -> str:
        column, steps = self._place(name, "dropped")
        if not steps:
            del self.columns[name], self.fields[name]
        elif not nested.is_struct(nested.at(self.fields[column]["type"], steps[:-1])):
            raise self._refused(f"{name!r} is no field of a struct, so it cannot be dropped alone; drop what it is in")
        else:
            self._change(column, steps[:-1], lambda struct: nested.without(struct, steps[-1]))
        return f"drop {name}"

    def widen(self, name: str, wanted: Type) -> str:
        column, steps = self._place(name, "widened")
        was = type_from_json(nested.at(self.fields[column]["type"], steps))
        found = _widened(self.spec, name, was, wanted, is_nested=bool(steps))
        self._change(column, steps, lambda _: str(found))
        return f"widen {name} from {was} to {found}"

    def make_optional(self, name: str) -> str:
        column, steps = self._place(name, "made optional")
        if steps:
            raise self._refused(f"{name!r} is optional already, as all that lies inside of columns is")
        if not self.columns[column].required:
            raise self._refused(f"column {name!r} is optional already")
        self.columns[column] = replace(self.columns[column], required=False)
        return f"make {name} optional"

    def set_default(self, name: str, value: Default | None) -> str:
        column, steps = self._place(name, None)
        if steps:
            raise self._refused(f"{name!r} lies inside of a column; only columns have a default")
        self.columns[column] = replace(self.columns[column], default=value)
        return f"default of {name}: {'none' if value is None else repr(value)}"

    def describe(self, name: str, text: str | None) -> str:
        column, steps = self._place(name, None)
        if steps:
            raise self._refused(f"{name!r} lies inside of a column; only columns have a description")
        self.columns[column] = replace(self.columns[column], description=text)
        return f"description of {name}: {'none' if text is None else repr(text)}"

    def add(self, column: Column) -> str:
        if (place := self._holder(column.name)) is None:
            _check_addable(self.spec, self.columns, column)
            [fresh] = iceberg_fields([column], first_id=self.next_id)
            self.columns[column.name], self.fields[column.name] = column, fresh
        else:
            inside, steps, name = place
            if column != Column(name=column.name, type=column.type):
                raise self._refused(
                    f"{column.name!r} lies inside of a column, where a field has a name and a type only"
                )
            self._check_free(inside, "changed", inside=True)
            struct = nested.at(self.fields[inside]["type"], steps)
            if taken := next((n for n in nested.names_in(struct) if folded(n) == folded(name)), None):
                raise self._refused(
                    f"there is a field {taken!r} already where {column.name!r} would be ({why_same(name, taken)})"
                )
            [fresh] = iceberg_fields([replace(column, name=name)], first_id=self.next_id)
            self._change(inside, steps, lambda struct: {**struct, "fields": [*struct["fields"], fresh]})
        self.next_id = max(ids_of(fresh)) + 1
        return f"add {column.name} {column.type}" + ("" if column.default is None else f" default {column.default!r}")

    def order(self, names: Sequence[str]) -> list[str]:
        if len(set(names)) != len(names):
            raise self._refused(f"{max(names, key=list(names).count)!r} is named twice in the order")
        outer: list[str] = []
        inside: dict[tuple[str, nested.Steps], list[str]] = {}
        for name in names:
            column, steps = self._place(name, None)
            if not steps:
                outer.append(name)
            elif nested.is_struct(nested.at(self.fields[column]["type"], steps[:-1])):
                inside.setdefault((column, steps[:-1]), []).append(steps[-1])
            else:
                raise self._refused(f"{name!r} is no field of a struct, so it has no place among others")
        if outer:
            self.columns = {name: self.columns[name] for name in (*outer, *(n for n in self.columns if n not in outer))}
        for (column, steps), first in inside.items():
            self._change(column, steps, partial(nested.ordered, names=first))
        told = [f"order {', '.join(self.columns)}"] if outer else []
        return told + [f"order {', '.join(first)} of {'.'.join((c, *steps))}" for (c, steps), first in inside.items()]

    def _change(self, column: str, steps: nested.Steps, change: Callable[[Any], Any]) -> None:
        field = self.fields[column]
        self.fields[column] = {**field, "type": nested.changed(field["type"], steps, change)}
        try:
            type_ = type_from_json(self.fields[column]["type"])
        except TypeSpecError as error:
            raise self._refused(f"with these columns the spec would not hold: {error}") from error
        self.columns[column] = replace(self.columns[column], type=type_)

    def _place(self, path: str, done: str | None) -> tuple[str, nested.Steps]:
        """The column of *path* and the names below it; *done*: what would be done to it."""
        if path in self.columns:
            if done is not None:
                self._check_free(path, done)
            return path, ()
        around = [c for c in self.columns if path.startswith(f"{c}.")]
        ways = [(c, steps) for c in around for steps in nested.ways(self.fields[c]["type"], path[len(c) + 1 :])]
        if not ways:
            there = [f"{c}.{name}" for c in around for name in nested.names_in(self.fields[c]["type"])]
            raise self._refused(f"there is no column {path!r}; columns: {', '.join(there or self.columns)}")
        if len(ways) > 1:
            raise self._refused(f"{path!r} may mean two fields, as names have dots; drop or add a column instead")
        column, steps = ways[0]
        if nested.in_key(self.fields[column]["type"], steps):
            raise self._refused(f"{path!r} is the key of a map, which its values are found by; it stays as it is")
        if done is not None:
            self._check_free(column, done, inside=True)
        return column, steps

    def _holder(self, path: str) -> tuple[str, nested.Steps, str] | None:
        """Where a new field called *path* belongs: column, names below it, its own name; none: it is a column."""
        for at in (at for at in reversed(range(len(path))) if path[at] == "."):
            around, name = path[:at], path[at + 1 :]
            places: list[tuple[str, nested.Steps]] = [(around, ())] if around in self.columns else []
            for column in (c for c in self.columns if around.startswith(f"{c}.")):
                places += [(column, w) for w in nested.ways(self.fields[column]["type"], around[len(column) + 1 :])]
            if len(places) > 1:
                raise self._refused(f"{around!r} may mean two fields, as names have dots; add a column instead")
            for column, steps in places:
                there = nested.at(self.fields[column]["type"], steps)
                if nested.is_struct(there) and "." not in name:
                    return column, steps, name
                if steps or nested.names_in(there):
                    parts = ", ".join(f"{around}.{one}" for one in nested.names_in(there))
                    raise self._refused(
                        f"{path!r} cannot be added: a new field lies directly in a struct, and {around!r} is "
                        f"{type_from_json(there)}" + (f"; in it are {parts}" if parts else "")
                    )
        return None

    def _check_free(self, name: str, done: str, *, inside: bool = False) -> None:
        """Columns that rows are found by stay as they are."""
        if name in self.spec.key:
            raise self._refused(
                f"column {name!r} is part of the key, which rows of all tiers are found by; it cannot be {done}"
            )
        if view_set_of(self.spec).clustered and name in self.spec.indexed:
            raise self._refused(
                f"the batch view is clustered by column {name!r}, and its regions are cut in it; it cannot be {done}"
            )
        if inside and self._is_derived(name):
            raise self._refused(f"column {name!r} is made by `transform.derive`, which says what is inside of it")

    def _is_derived(self, name: str) -> bool:
        return self.spec.transform is not None and name in self.spec.transform.derive

    def _refused(self, why: str) -> EvolutionRefused:
        return EvolutionRefused(f"{self.spec.table}: {why}")


def _widened(spec: TableSpec, name: str, was: Type, wanted: Type, *, is_nested: bool) -> Type:
    match was, wanted:
        case Primitive("float"), Primitive("double") if is_nested:
            can = "no other type, as digests are made of the text of what lies inside of columns"
        case Primitive(known), Primitive(new) if WIDER.get(known) == new:
            return wanted
        case DecimalType(digits, scale), DecimalType(more, same) if scale == same and more > digits:
            return wanted
        case DecimalType(digits, scale), _:
            can = f"decimal(p,{scale}) with more digits than {digits}"
        case Primitive(known), _ if known in WIDER and not (is_nested and known == "float"):
            can = WIDER[known]
        case _:
            can = "no other type"
    raise EvolutionRefused(
        f"{spec.table}: column {name!r} is {was} and cannot become {wanted}: older rows, files and records would not "
        f"fit; it can become {can}. Add {'a field' if is_nested else 'a column'} of the other type beside it"
    )


def _check_addable(spec: TableSpec, columns: Mapping[str, Column], column: Column) -> None:
    if taken := next((name for name in columns if folded(name) == folded(column.name)), None):
        raise EvolutionRefused(
            f"{spec.table}: there is a column {taken!r} already, and {column.name!r} is the same name "
            f"({why_same(column.name, taken)})"
        )
    if column.required:
        raise EvolutionRefused(
            f"{spec.table}: column {column.name!r} cannot be required: older rows have no value for it; add it as "
            "optional"
        )


def _spec(spec: TableSpec, columns: tuple[Column, ...]) -> TableSpec:
    """*spec* with *columns*, checked as a whole; by what the batch view is clustered is written down, so it stays."""
    update: dict[str, Any] = {"columns": columns}
    if view_set_of(spec).clustered and not spec.layout.columns and "_kafka_timestamp" not in spec.indexed:
        update["layout"] = spec.layout.model_copy(update={"columns": spec.indexed})
    try:
        # The dumped words, not the model: a copy is not validated.
        made = read_back(dump_spec(spec.model_copy(update=update)), source=spec.table)
    except SpecError as error:
        why = "; ".join(f"{one.field}: {one.message}" for one in error.problems)
        raise EvolutionRefused(f"{spec.table}: with these columns the spec would not hold: {why}") from error
    if view_set_of(spec).clustered and made.indexed != spec.indexed:
        raise EvolutionRefused(
            f"{spec.table}: the batch view is clustered by the time of the record, because no column suggested itself; "
            f"a column that does ({', '.join(made.indexed)}) cannot be added"
        )
    return made


def _field(column: Column, field: Mapping[str, Any]) -> Mapping[str, Any]:
    """*field* as *column* is now; nested types are as they were changed, with their ids."""
    type_ = field["type"]
    if isinstance(type_, str) and parse_type(type_) != column.type:
        type_ = str(column.type)
    now = {**field, "name": column.name, "type": type_, "required": column.required}
    now.pop("doc", None)
    return now if column.description is None else {**now, "doc": column.description}


def check_none_recalled(table: str, overlays: Sequence[Overlay]) -> None:
    """Recalled rows are proved by digests of all the columns of then. Raises: EvolutionRefused."""
    if overlays:
        raise EvolutionRefused(
            f"{table}: {sum(one.rows for one in overlays):,} rows are recalled to Postgres, and are proved "
            "with all the columns of then; no column can be dropped. Nothing was changed. Give them back first: "
            f"`harness recall {table} --release`"
        )
