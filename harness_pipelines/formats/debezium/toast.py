"""Values missing in a Debezium event: unchanged columns that are stored out of line (TOAST).

In their place stands the connector's ``unavailable.value.placeholder``, in a form that the column's type takes: the
text itself, its bytes in base64 or hex, a list of the text, of its bytes as numbers or of a uuid made of it, a map of
the text to itself. These are the forms of Debezium's `UnchangedToastedPlaceholder`, found in what a real connector
wrote too. Where a table has REPLICA IDENTITY FULL newer connectors write the value itself.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.columns.chunked import CHUNK_RECORDS
from harness_pipelines.formats.columns.shapes import NULL, Unfit
from harness_pipelines.formats.debezium.schema_block import Field, Reading
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import ListType

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
#: Debezium's stand-ins for geometry and geography, in the well-known binary form.
_PLACES = ("0101000020E6100000000000FC83D797C1000000FC83D797C1", "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640")


class Unavailable:
    """Finds placeholders in the columns of a table, and the values that they stand for."""

    def __init__(self, placeholder: str, columns: Sequence[Column]) -> None:
        data = placeholder.encode()
        # Java's UUID.nameUUIDFromBytes
        named = uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3)
        self._columns = columns
        self._has_lists = any(isinstance(column.type, ListType) for column in columns)
        self._texts = {
            placeholder, _base64(data), data.hex(), str(named),
            f'{{"{placeholder}":"{placeholder}"}}',  # an hstore as JSON text
            *(_base64(bytes.fromhex(place)) for place in _PLACES),
        }  # fmt: skip
        self._data, self._numbers = data, [*data]
        self._marks = [text.encode() for text in self._texts if '"' not in text]
        self._listed = re.compile(rb",\s*".join(b"%d" % byte for byte in data))

    def suspects(self, blocks: Sequence[bytes | memoryview], *, of_rows: bool = False) -> list[int]:
        """The positions of those that may hold a placeholder; *of_rows*: in a value that fits its column."""
        lists = self._has_lists or not of_rows
        found: list[int] = []
        for low in range(0, len(blocks), CHUNK_RECORDS):
            chunk = blocks[low : low + CHUNK_RECORDS]
            if self._is_in(b"\n".join(chunk), lists=lists):  # mostly there is none, and one look at all of them says so
                found += [low + i for i, block in enumerate(chunk) if self._is_in(bytes(block), lists=lists)]
        return found

    def _is_in(self, text: bytes, *, lists: bool) -> bool:
        return any(mark in text for mark in self._marks) or (lists and self._listed.search(text) is not None)

    def mended(self, after: bytes, before: bytes, reading: Reading) -> bytes | Unfit:
        """*after* without placeholders, their values taken from *before* where that surely has them."""
        now = _OBJECT.decode(after)
        names = {column.name: reading.name_in(column, now) for column in self._columns}
        lacking = {own: name for own, name in names.items() if name in now and self._stands_in(_parsed(now[name]))}
        if not lacking:
            return after
        old = _OBJECT.decode(before) if before[:1] == b"{" else {}
        fields = reading.fields
        if untold := [own for own, name in lacking.items() if not self._is_told(old.get(name, NULL), fields.get(own))]:
            return _unavailable(untold)
        return msgspec.json.encode(now | {name: old[name] for name in lacking.values()})

    def filled(
        self, now: Mapping[str, Any], before: Mapping[str, Any] | None, defaults: Mapping[str, Any]
    ) -> Mapping[str, Any] | Unfit:
        """Like `mended`, of values that are read; *defaults*: of the columns, by the event's schema."""
        lacking = [name for name in defaults if self._stands_in(now[name])]
        if not lacking:
            return now
        old = before or {}
        if untold := [name for name in lacking if not self._differs(old.get(name), defaults[name])]:
            return _unavailable(untold)
        return {**now, **{name: old[name] for name in lacking}}

    def _differs(self, value: Any, default: Any) -> bool:
        """As `_is_told`."""
        return bool(value) and value != default and not self._stands_in(value)

    def _stands_in(self, value: Any) -> bool:
        match value:
            case str():
                return value in self._texts
            case bytes():
                return value == self._data
            case list():
                return value == self._numbers or (len(value) == 1 and self._stands_in(value[0]))
            case dict():
                return self._stands_in(value.get("wkb")) or any(k in self._texts and k == v for k, v in value.items())
        return False

    def _is_told(self, given: msgspec.Raw, field: Field | None) -> bool:
        """Return whether *given* is a real value of the row, not the connector's filler in `before`.

        Unless the replica identity is FULL, `before` has nulls, zeros, empty texts and the defaults of the columns
        for all that is not of the identity; only the schema block tells the defaults. A value out of line is long.
        """
        value = _parsed(given)
        return field is not None and bool(value) and value != _parsed(field.default) and not self._stands_in(value)


def _unavailable(names: Sequence[str]) -> Unfit:
    shown = ", ".join(f"`{name}`" for name in names)
    return Unfit(
        Reason.UNAVAILABLE_VALUE,
        f"{shown}: not in the event, as it did not change (TOAST). Set REPLICA IDENTITY FULL for the source's table, "
        "or give the connector a ReselectColumnsPostProcessor; then update the row once more",
    )


def _parsed(value: msgspec.Raw) -> Any:
    return msgspec.json.decode(value)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
