"""JSON objects whose columns have more than one name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from harness_pipelines.formats.columns.arrow import FieldWords, struct_type
from harness_pipelines.spec.columns import Column

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Aliased:
    """Reads objects by all names of their columns.

    All names are fields of one type, so that most records are decoded once. A record that this type refuses is renamed
    and decoded by the columns' own names, which settles it: a field that does not count may hold anything, and what is
    wrong is said of the column.
    """

    def __init__(
        self, columns: Sequence[Column], words: Sequence[FieldWords], more: Sequence[FieldWords], *, strict_fields: bool
    ) -> None:
        """*words*: of each of *columns*, by its own name; *more*: fields that are no columns."""
        self._columns = [column for column in columns if column.aliases]
        self._by_own_names = msgspec.json.Decoder(struct_type([*words, *more], strict_fields=strict_fields)).decode
        first, others = list[FieldWords](), list[FieldWords]()
        for column, (name, python, default) in zip(columns, words, strict=True):
            first.append((name, python, msgspec.UNSET if column.aliases else default))
            others += [(alias, python, msgspec.UNSET) for alias in column.aliases]
        # Columns come first in both types: a getter of an attribute reads the records of either.
        self.record = struct_type([*first, *others, *more], strict_fields=strict_fields)
        #: One record by all names; `complete` says whether it counts.
        self.decode = msgspec.json.Decoder(self.record).decode
        self._getters, self._lacking = _getters(columns, words, self.record.__struct_fields__)

    def getter(self, column: int) -> Callable[[Any], Any]:
        """What gives the cell of a record, by the *column*'s position."""
        return self._getters[column]

    def complete(self, records: Sequence[Any]) -> bool:
        """Return whether all decoded *records* have the columns that are required."""
        return not any(lacks(record) for lacks in self._lacking for record in records)

    def read(self, value: bytes) -> Any:
        """The record of *value*. Raises: msgspec.DecodeError."""
        try:
            record = self.decode(value)
            if self.complete([record]):
                return record
        except msgspec.DecodeError:
            pass  # it may be in a field that does not count
        return self._by_own_names(self._renamed(value))

    def _renamed(self, value: bytes) -> bytes:
        """*value* with no names but the columns' own."""
        found = _OBJECT.decode(value)
        names = {column.name_in(found): column.name for column in self._columns}
        left_out = {alias for column in self._columns for alias in column.aliases} - names.keys()
        if all(name not in found or name == own for name, own in names.items()) and left_out.isdisjoint(found):
            return value
        return msgspec.json.encode({names.get(name, name): raw for name, raw in found.items() if name not in left_out})


def _getters(
    columns: Sequence[Column], words: Sequence[FieldWords], attributes: Sequence[str]
) -> tuple[list[Callable[[Any], Any]], list[Callable[[Any], bool]]]:
    """The getter of each of *columns*, and what says that a record lacks one that is required."""
    getters, lacking = list[Callable[[Any], Any]](), list[Callable[[Any], bool]]()
    after = len(columns)
    for at, (column, (_, _, default)) in enumerate(zip(columns, words, strict=True)):
        own = attrgetter(attributes[at])
        if not column.aliases:
            getters.append(own)
            continue
        others = attributes[after : after + len(column.aliases)]
        after += len(column.aliases)
        getter = _first_set(own, [attrgetter(name) for name in others], default)
        getters.append(getter)
        if column.required:
            lacking.append(_is_lacking(getter))
    return getters, lacking


def _first_set(own: Callable[[Any], Any], others: Sequence[Callable[[Any], Any]], missing: Any) -> Callable[[Any], Any]:
    def get(record: Any) -> Any:
        if (cell := own(record)) is not msgspec.UNSET:
            return cell
        for other in others:
            if (cell := other(record)) is not msgspec.UNSET:
                return cell
        return missing

    return get


def _is_lacking(getter: Callable[[Any], Any]) -> Callable[[Any], bool]:
    return lambda record: getter(record) is msgspec.NODEFAULT
