"""Fields inside a column: resolving a path, and changing the column's type.

A path is written as Spark's ALTER TABLE has it: `customer.phone`, and through lists and maps `items.element.price`,
`props.value.x`. Types are in Iceberg's JSON form, so that a field keeps its id wherever it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from harness_pipelines.spec.types import ListType, MapType, StructType, Type

Steps = tuple[str, ...]  #: names below a column, one for each level
Difference = tuple[Literal["add", "drop", "widen", "order"], str, Type]  #: what, the path, its new type
_PARTS: Mapping[str, Steps] = {"list": ("element",), "map": ("key", "value")}


def names_in(type_: Any) -> Steps:
    """What is directly inside of *type_*."""
    if isinstance(type_, str):
        return ()
    return _PARTS.get(type_["type"]) or tuple(f["name"] for f in type_["fields"])


def ways(type_: Any, path: str) -> Iterator[Steps]:
    """All places in *type_* that *path* may mean: names may hold dots."""
    for name in names_in(type_):
        if path == name:
            yield (name,)
        elif path.startswith(f"{name}."):
            yield from ((name, *more) for more in ways(part(type_, name), path[len(name) + 1 :]))


def part(type_: Any, name: str) -> Any:
    if type_["type"] == "struct":
        return next(f["type"] for f in type_["fields"] if f["name"] == name)
    return type_[name]


def at(type_: Any, steps: Steps) -> Any:
    """The type at *steps* of *type_*."""
    return at(part(type_, steps[0]), steps[1:]) if steps else type_


def changed(type_: Any, steps: Steps, change: Callable[[Any], Any]) -> Any:
    """*type_* with *change* made of what is at *steps*."""
    if not steps:
        return change(type_)
    first, more = steps[0], steps[1:]
    if type_["type"] != "struct":
        return {**type_, first: changed(type_[first], more, change)}
    fields = [{**f, "type": changed(f["type"], more, change)} if f["name"] == first else f for f in type_["fields"]]
    return {**type_, "fields": fields}


def is_struct(type_: Any) -> bool:
    return not isinstance(type_, str) and type_["type"] == "struct"


def in_key(type_: Any, steps: Steps) -> bool:
    """Return whether *steps* lead through the key of a map."""
    if not steps:
        return False
    return (type_["type"] == "map" and steps[0] == "key") or in_key(part(type_, steps[0]), steps[1:])


def without(type_: Any, name: str) -> Any:
    """The struct *type_* without its field *name*."""
    return {**type_, "fields": [f for f in type_["fields"] if f["name"] != name]}


def ordered(type_: Any, names: Sequence[str]) -> Any:
    """The struct *type_* with the fields *names* first, in this order."""
    by_name = {f["name"]: f for f in type_["fields"]}
    return {**type_, "fields": [by_name[n] for n in (*names, *(n for n in by_name if n not in names))]}


def empty_struct(type_: Any) -> bool:
    """Return whether a struct in *type_* has no field."""
    if isinstance(type_, str):
        return False
    return not names_in(type_) or any(empty_struct(part(type_, name)) for name in names_in(type_))


def differences(path: str, old: Type, new: Type) -> Iterator[Difference]:
    """Return the changes from the type *old* of *path* to the type *new*, inside of it where possible."""
    match old, new:
        case StructType(before), StructType(after):
            was, now = {f.name: f.type for f in before}, {f.name: f.type for f in after}
            for name, type_ in was.items():
                if name in now:
                    yield from differences(f"{path}.{name}", type_, now[name])
                else:
                    yield "drop", f"{path}.{name}", type_
            added = [name for name in now if name not in was]
            yield from (("add", f"{path}.{name}", now[name]) for name in added)
            if [*(name for name in was if name in now), *added] != list(now):
                yield from (("order", f"{path}.{name}", type_) for name, type_ in now.items())
        case ListType(element), ListType(other):
            yield from differences(f"{path}.element", element, other)
        case MapType(key, value), MapType(other_key, other):
            yield from differences(f"{path}.key", key, other_key)
            yield from differences(f"{path}.value", value, other)
        case _ if old != new:
            yield "widen", path, new
