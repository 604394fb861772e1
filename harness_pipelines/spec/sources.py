"""What a spec says about how values are written: ``format`` and ``from``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from harness_pipelines.spec.types import DecimalType, ListType, MapType, StructType, Type

if TYPE_CHECKING:
    from harness_pipelines.spec.table import TableSpec

Format = Literal["json", "debezium"]
Source = Literal[
    "iso8601", "epoch_days", "epoch_ms", "epoch_us", "epoch_ns", "ms_of_day", "us_of_day", "ns_of_day", "number",
    "base64",
]  # fmt: skip
_INSTANTS: tuple[Source, ...] = ("iso8601", "epoch_ms", "epoch_us", "epoch_ns")
SOURCES: Mapping[str, tuple[Source, ...]] = {
    "date": ("iso8601", "epoch_days"),
    "time": ("iso8601", "ms_of_day", "us_of_day", "ns_of_day"),
    "timestamp": _INSTANTS,
    "timestamptz": _INSTANTS,
    "decimal": ("number", "base64"),
}  #: by type, the default first
UNAVAILABLE_VALUE = "__debezium_unavailable_value"  #: Debezium's own default of ``unavailable.value.placeholder``
UnavailableValue = Annotated[
    str,
    Field(
        min_length=8,
        pattern=r"^[!#-\[\]-~]+$",
        description="`format: debezium`: the connector's unavailable.value.placeholder, which stands for a value that "
        "the event does not have.",
    ),
]  # of letters that JSON writes as they are, and long enough to be nobody's value


def source_trouble(source: Source, type_: Type) -> str | None:
    """Why values of *type_* are not written so."""
    element = type_
    while isinstance(element, ListType):
        element = element.element
    allowed = SOURCES.get("decimal" if isinstance(element, DecimalType) else str(element))
    if allowed is None:
        return f"`from` is for {', '.join(SOURCES)} and lists of them, not for {type_}"
    if source not in allowed:
        return f"`from: {source}` is not for {type_}; allowed: {', '.join(allowed)}"
    return None


def format_trouble(spec: TableSpec) -> tuple[str, str] | None:
    """The word of *spec* that does not go with its format, and why."""
    if spec.format != "debezium":
        if spec.unavailable_value != UNAVAILABLE_VALUE:
            return "unavailable_value", "only events of `format: debezium` have it; remove it"
        return None
    if not spec.key:
        return "key", "`format: debezium` needs it: without a key each update of a row would count as one more row"
    if spec.delete != "tombstone":
        return "delete", "the events of `format: debezium` say themselves what they delete; remove it"
    if spec.key_format != "json":
        return "key_format", "the record keys of `format: debezium` are json; remove it"
    for column in spec.columns:
        if why := _decimal_trouble(column.type, column.source):
            return "columns", f"column {column.name!r} of type {column.type}: {why}"
    return None


def _decimal_trouble(type_: Type, source: Source | None) -> str | None:
    """A base64 text may look like a number (1234), so it is never guessed."""
    match type_:
        case ListType(element):
            return _decimal_trouble(element, source)
        case MapType(_, value):
            inside = [value]
        case StructType(fields):
            inside = [f.type for f in fields]
        case DecimalType() if source is None:
            return (
                "say how events without a schema block write it: `from: base64` (the connector's "
                "decimal.handling.mode=precise, its default) or `from: number` (string, double)"
            )
        case _:
            return None
    if any(_decimal_trouble(part, None) for part in inside):
        return "decimals in a map or struct cannot be told from text; take it as a string"
    return None
