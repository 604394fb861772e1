"""Debezium's change events in JSON: puts and deletes.

An event is ``{"before": ..., "after": ..., "op": ..., "source": ...}``, alone or as the ``payload`` beside a ``schema``
block; of a record's key the same holds. ``r`` (snapshot), ``c`` and ``u`` put `after`; ``d`` and a record without a
value delete. What comes with it (``source``, ``transaction``, times) is not read. The blocks are taken out of the
events here, and `JsonCodec` decodes them. Source: Debezium's documentation of its Postgres connector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness_pipelines.formats.base import Codec, Decoded, Reason, Refused
from harness_pipelines.formats.columns.chunked import left, ranges
from harness_pipelines.formats.columns.shapes import NULL, Unfit, shown
from harness_pipelines.formats.debezium.schema_block import Readings
from harness_pipelines.formats.debezium.toast import Unavailable
from harness_pipelines.formats.keyed_batches import Part, at, inside
from harness_pipelines.formats.keys import wrapper
from harness_pipelines.formats.refusals import explained, malformed, refusal, unsound
from harness_pipelines.formats.schema.wire import gathered
from harness_pipelines.formats.whole_record import Records
from harness_pipelines.protocol.keys import DELETE, PUT
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.table import TableSpec

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BLOCKS = {"schema", "payload"}
_REFUSED_OPS = {
    "t": "a truncate (op t) names no key, so the rows that it removed stay; DELETE them in the source instead (and set "
    "skipped.operations=t), or apply the table again over a new snapshot",
    "m": "a logical message (op m) changes no row; leave it out by message.prefix.exclude.list",
}


class _Body(msgspec.Struct, gc=False):
    op: str | None = None
    before: msgspec.Raw = NULL
    after: msgspec.Raw = NULL


class _Event(_Body, gc=False):
    schema: msgspec.Raw = NULL
    payload: _Body | msgspec.UnsetType | None = msgspec.UNSET


_decode = msgspec.json.Decoder(_Event).decode
_decode_body = msgspec.json.Decoder(_Body).decode
NO_ROW_NAMED = "the record has no key and no `before`, so it does not say which row to delete"
_NO_SCHEMA = b"null"
_TOMBSTONE = _Body(op="d")


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks of records that are decoded alike, in the records' order."""

    places: list[int] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    befores: list[msgspec.Raw] = field(default_factory=list)

    def add(self, place: int, block: bytes, before: msgspec.Raw = NULL) -> None:
        self.places.append(place)
        self.blocks.append(block)
        self.befores.append(before)

    def part(self, operation: str, codec: Codec, where: str) -> Part:
        places = np.array(self.places, np.int64)
        return Part(operation=operation, codec=codec, values=self.blocks, places=places, retold=inside(where))


_Rows = tuple[NDArray[np.int64], Decoded]  #: rows that are made, and the positions of their records


class _AtOnce:
    """`Codec` of rows that are made already."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._schema = arrow_schema(columns)

    def decode(self, values: Sequence[Any]) -> Decoded:
        return gathered(values, [], self._schema)

    def part(self, made: Sequence[_Rows], count: int) -> Part:
        places = np.arange(count, dtype=np.int64)
        return Part(operation=PUT, codec=self, values=made, places=places, retold=inside("`after`"))


@dataclass(frozen=True, slots=True)
class _Told:
    """The key of a delete."""

    where: str  #: it was found, for people
    codec: Codec
    block: bytes  #: what the codec takes


class DebeziumEvents:
    """`Sorter` of the events of one table."""

    def __init__(self, spec: TableSpec) -> None:
        self._key = spec.key_columns
        self._wrap = wrapper(spec)
        self._events = Readings(spec.columns, spec.key_columns, block="after", unknown_fields=spec.unknown_fields)
        self._keys = Readings(spec.key_columns, spec.key_columns, block=None)
        self._unavailable = Unavailable(spec.unavailable_value, spec.columns)
        self._at_once = _AtOnce(spec.columns)

    def sort(self, records: Records) -> tuple[list[Part], list[Refused]]:
        values, keys = records.values, records.keys
        refused: dict[int, Unfit] = {}
        made: list[_Rows] = []
        others: list[int] = []  # what is read one by one
        opened = _Opener()
        for low, high in ranges(values):
            chunk = values[low:high]
            wrong = unsound(chunk)
            refused |= {low + i: why for i, why in wrong.items() if chunk[i] is not None}
            others += [low + i for i in wrong if chunk[i] is None]
            places = left(len(chunk), wrong)
            others += self._put([v for v in at(chunk, places) if v is not None], places + low, opened, made)
        puts: dict[bytes, _Blocks] = {}  # by their schema block
        deletes: dict[tuple[str, Codec], _Blocks] = {}
        for i in sorted(others):
            value = values[i]
            schema, body = (_NO_SCHEMA, _TOMBSTONE) if value is None else opened(value)
            if isinstance(body, Unfit):
                refused[i] = body
            elif body.op != "d":
                puts.setdefault(schema, _Blocks()).add(i, bytes(body.after), body.before)
            elif isinstance(told := self._key_of(keys[i], schema, body.before), Unfit):
                refused[i] = told
            else:
                deletes.setdefault((told.where, told.codec), _Blocks()).add(i, told.block)
        parts = [self._at_once.part(made, len(values))] if made else []
        parts += [part for schema, group in puts.items() if (part := self._puts(schema, group, refused))]
        parts += [group.part(DELETE, codec, where) for (where, codec), group in deletes.items()]
        return parts, [refusal(i, why) for i, why in refused.items()]

    def _put(self, values: Sequence[bytes], places: NDArray[np.int64], opened: _Opener, made: list[_Rows]) -> list[int]:
        """Make the rows of those *values* that put one in the form of the first. Returns: the others' *places*."""
        if not values:
            return []
        schema, front = opened.form(values[0])
        reading = self._events.of(schema)
        if isinstance(reading, Unfit):
            return list(places.tolist())
        texts: list[bytes | memoryview] = [*values]
        if front is not None:
            texts = [_payload(value, front) or b"" for value in values]
        for i in self._unavailable.suspects(texts, of_rows=True):
            texts[i] = b""  # is left
        rows, others = reading.puts.read(texts, bodies=front is not None)
        made.append((np.delete(places, others), rows))
        return list(places[others].tolist())

    def _puts(self, schema: bytes, group: _Blocks, refused: dict[int, Unfit]) -> Part | None:
        """The rows of events with the same *schema* block; adds to *refused* those that have no row."""
        reading = self._events.of(schema)
        if isinstance(reading, Unfit):
            refused |= dict.fromkeys(group.places, reading)
            return None
        for position in self._unavailable.suspects(group.blocks):
            before = bytes(group.befores[position])
            mended = self._unavailable.mended(group.blocks[position], before, reading)
            if isinstance(mended, Unfit):
                refused[group.places[position]] = mended
            else:
                group.blocks[position] = mended
        if not refused.keys() & group.places:
            return group.part(PUT, reading.row, "`after`")
        left = _Blocks()
        for place, block in zip(group.places, group.blocks, strict=True):
            if place not in refused:
                left.add(place, block)
        return left.part(PUT, reading.row, "`after`")

    def _key_of(self, key: bytes | None, schema: bytes, before: msgspec.Raw) -> _Told | Unfit:
        """What tells the key of a delete.

        The record's key counts. `before` does only where there is none: for all columns that are not of the table's
        replica identity it has their defaults, which nothing tells from values.
        """
        if key:
            return self._of_record_key(key)
        block = bytes(before)
        if block[:1] != b"{":
            return Unfit(Reason.MISSING_KEY, NO_ROW_NAMED)
        reading = self._events.of(schema)
        if isinstance(reading, Unfit):
            return reading
        named = _OBJECT.decode(block)
        if lacking := [c.name for c in self._key if bytes(named.get(reading.name_in(c, named), NULL)) == b"null"]:
            return keyless(lacking, "`before`")
        return _Told("`before`", reading.key, block)

    def _of_record_key(self, key: bytes) -> _Told | Unfit:
        where = "the record's key"
        if wrong := unsound([key]):
            return replace(wrong[0], detail=f"{where}: {wrong[0].detail}")
        try:
            found = _OBJECT.decode(key) if key.lstrip()[:1] == b"{" else {}
            schema = bytes(found["schema"]) if found.keys() == _BLOCKS else _NO_SCHEMA
            block = self._wrap(bytes(found["payload"]) if found.keys() == _BLOCKS else key) or b"null"
            named = _OBJECT.decode(block)
        except msgspec.DecodeError as error:
            why = malformed(key) or explained(error)
            return replace(why, detail=f"{where}: {why.detail}")
        reading = self._keys.of(schema)
        name_in = Column.name_in if isinstance(reading, Unfit) else reading.name_in
        if lacking := [c.name for c in self._key if name_in(c, named) not in named]:
            return keyless(lacking, where)
        return reading if isinstance(reading, Unfit) else _Told(where, reading.key, block)


class _Opener:
    """Takes events apart. Mostly the next begins with the schema block of the last, which is then not read again."""

    def __init__(self) -> None:
        self._schema = _NO_SCHEMA
        self._front: bytes | None = None  #: of an event with this schema block, up to its payload

    def __call__(self, value: bytes) -> tuple[bytes, _Body | Unfit]:
        """The schema block of an event, and its body if that puts or deletes."""
        if self._front is not None and (payload := _payload(value, self._front)) is not None:
            try:
                body = _decode_body(payload)
            except msgspec.DecodeError:
                pass  # why, the whole event tells
            else:
                return self._schema, _trouble(body) or body
        return self._whole(value)

    def form(self, value: bytes) -> tuple[bytes, bytes | None]:
        """Return the schema block of an event, and the text before the payload of similar events, if it is constant."""
        schema, _ = self(value)
        front = self._front
        return schema, front if front is not None and value.startswith(front) else None

    def _whole(self, value: bytes) -> tuple[bytes, _Body | Unfit]:
        try:
            event = _decode(value)
        except msgspec.DecodeError as error:
            return _NO_SCHEMA, malformed(value) or explained(error)
        body, schema = event.payload, bytes(event.schema)
        if body is None or (body is msgspec.UNSET and event.op is None and schema != _NO_SCHEMA):
            return schema, Unfit(Reason.MISSING_BLOCK, "the event has a `schema` and no `payload`")
        if isinstance(body, msgspec.UnsetType):
            return _NO_SCHEMA, _trouble(event) or event
        front = b'{"schema":%b,"payload":' % schema
        if value.startswith(front):
            self._schema, self._front = schema, front
        return schema, _trouble(body) or body


def _payload(value: bytes, front: bytes) -> memoryview | None:
    """What stands between *front* and the last brace of an event."""
    return memoryview(value)[len(front) : -1] if value.startswith(front) and value.endswith(b"}") else None


def _trouble(body: _Body) -> Unfit | None:
    """Why the event neither puts nor deletes."""
    return op_trouble(body.op, has_after=bytes(body.after) != b"null", plain="json")


def op_trouble(op: str | None, *, has_after: bool, plain: str) -> Unfit | None:
    """Why an event neither puts nor deletes; *plain*: the format of such events when they are unwrapped."""
    if op is None:
        return Unfit(
            Reason.MISSING_BLOCK,
            "the event has no `op`, so it changes no row. If the connector unwraps its events "
            f"(ExtractNewRecordState), write `format: {plain}`",
        )
    if op in {"c", "r", "u"}:
        if not has_after:
            return Unfit(Reason.MISSING_BLOCK, f"the event has no `after`, which op {op} puts")
        return None
    if op == "d":
        return None
    return Unfit(Reason.UNSUPPORTED_OP, _REFUSED_OPS.get(op) or f"op {shown(op)} is unknown; known are c, r, u, d")


def keyless(lacking: Sequence[str], where: str) -> Unfit:
    names = ", ".join(f"`{name}`" for name in lacking)
    return Unfit(
        Reason.MISSING_KEY,
        f"{where} has no {names}, so the record does not say which row to delete; the connector's "
        "message.key.columns says what its keys hold",
    )
