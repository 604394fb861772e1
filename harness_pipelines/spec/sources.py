"""The setting ``from`` of a column: the encoding of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from harness_pipelines.spec.types import DecimalType, ListType, MapType, StructType, Type

Source = Literal[
    "iso8601", "epoch_days", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns", "ms_of_day", "us_of_day", "ns_of_day",
    "number", "base64", "headers", "raw_key", "raw_value",
]  # fmt: skip
_INSTANTS: tuple[Source, ...] = ("iso8601", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns")
SOURCES: Mapping[str, tuple[Source, ...]] = {
    "date": ("iso8601", "epoch_days"),
    "time": ("iso8601", "ms_of_day", "us_of_day", "ns_of_day"),
    "timestamp": _INSTANTS,
    "timestamptz": _INSTANTS,
    "decimal": ("number", "base64"),
}  #: by type, the default first
WHOLE: Mapping[Source, tuple[str, ...]] = {
    "headers": ("list<struct<key: string, value: binary>>",),
    "raw_key": ("binary", "string"),
    "raw_value": ("binary", "string"),
}  #: by what a column has as a whole: its types
UNAVAILABLE_VALUE = "__debezium_unavailable_value"  #: Debezium's own default of ``unavailable.value.placeholder``
UNAVAILABLE_FORM = r"^[!#-\[\]-~]+$"
UnavailableValue = Annotated[
    str,
    Field(
        min_length=8,
        pattern=UNAVAILABLE_FORM,
        description="`format: debezium`: the connector's unavailable.value.placeholder, which stands for a value that "
        "the event does not have.",
    ),
]  # of letters that JSON does not escape, and long enough to be no real value


def source_trouble(source: Source, type_: Type) -> str | None:
    """Why values of *type_* are not written so."""
    if source in WHOLE:
        given = WHOLE[source]
        return (
            None
            if str(type_) in given
            else f"`from: {source}` gives {' or '.join(given)}, not {type_}; write that type"
        )
    element = type_
    while isinstance(element, ListType):
        element = element.element
    allowed = SOURCES.get("decimal" if isinstance(element, DecimalType) else str(element))
    if allowed is None:
        return f"`from` is for {', '.join(SOURCES)} and lists of them, not for {type_}"
    if source not in allowed:
        return f"`from: {source}` is not for {type_}; allowed: {', '.join(allowed)}"
    return None


def decimal_trouble(type_: Type, source: Source | None) -> str | None:
    """Return why a decimal is ambiguous: a base64 text may look like a number (1234)."""
    match type_:
        case ListType(element):
            return decimal_trouble(element, source)
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
    if any(decimal_trouble(part, None) for part in inside):
        return "decimals in a map or struct cannot be told from text; take it as a string"
    return None
