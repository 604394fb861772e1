"""Confluent's wire format: a zero byte, the schema's id in four bytes (big-endian), then the value.

Protobuf has the message's path in its file in between: how many indexes, and each of them, as zigzag varints; a lone
zero stands for the first message. Source: Confluent's documentation, "Wire format".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from harness_pipelines.formats.base import Codec, Decoded, Reason, Refused
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.refusals import refusal

HEADER_BYTES = 5
INDEXES_MAX = 32  #: no message is nested deeper
_GUID_MAGIC = 1


@dataclass(frozen=True, slots=True)
class NamedSchema:
    """The schema that a record names."""

    schema_id: int
    indexes: tuple[int, ...] = ()  #: Protobuf: of the message, the outermost first


Find = Callable[[NamedSchema], Codec]  #: the codec of the schema's records, without their headers


def header_trouble(value: bytes) -> Unfit | None:
    """Why *value* does not begin with the id of a schema."""
    if value and value[0]:
        hint = "; it names its schema by a GUID, which is not read" if value[0] == _GUID_MAGIC else ""
        return Unfit(Reason.WRONG_MAGIC_BYTE, f"the first byte is {value[0]}, not 0{hint}")
    if len(value) < HEADER_BYTES:
        return Unfit(
            Reason.TRUNCATED_HEADER, f"there are {len(value)} bytes; the id of a schema takes {HEADER_BYTES} in front"
        )
    return None


def schema_id_of(value: bytes | None) -> int | None:
    """The id that *value* begins with; None: with none."""
    return None if value is None or header_trouble(value) else int.from_bytes(value[1:HEADER_BYTES], "big")


def opened(value: bytes, *, has_indexes: bool) -> tuple[NamedSchema, int] | Unfit:
    """The schema that *value* names, and how long its header is."""
    if (why := header_trouble(value)) is not None:
        return why
    schema_id = int.from_bytes(value[1:HEADER_BYTES], "big")
    if not has_indexes:
        return NamedSchema(schema_id), HEADER_BYTES
    cut = Unfit(Reason.TRUNCATED_HEADER, "it ends within the message's indexes")
    if (first := _varint(value, HEADER_BYTES)) is None:
        return cut
    count, end = first
    if count == 0:
        return NamedSchema(schema_id, (0,)), end
    if not 0 < count <= INDEXES_MAX:
        return Unfit(Reason.MALFORMED, f"the header has {count} indexes of messages; at most {INDEXES_MAX} are read")
    indexes = []
    for _ in range(count):
        if (found := _varint(value, end)) is None:
            return cut
        index, end = found
        indexes.append(index)
    return NamedSchema(schema_id, tuple(indexes)), end


def _varint(value: bytes, at: int) -> tuple[int, int] | None:
    """A zigzag varint at *at* and where it ends."""
    number, shift = 0, 0
    for end in range(at, min(at + 10, len(value))):
        number |= (value[end] & 0x7F) << shift
        shift += 7
        if value[end] < 0x80:
            return (number >> 1) ^ -(number & 1), end + 1
    return None


class Framed:
    """`Codec` of values that begin with a header: each schema's records are decoded by their own codec."""

    def __init__(self, schema: pa.Schema, find: Find, *, has_indexes: bool = False) -> None:
        """*schema*: of the rows. *find* may raise what `Schemas.by_id` does."""
        self._schema, self._find, self._has_indexes = schema, find, has_indexes

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        groups, refused = grouped(values, has_indexes=self._has_indexes)
        found = [(np.array(places, np.int64), self._find(named).decode(parts)) for named, places, parts in groups]
        return gathered(found, [refusal(i, why) for i, why in refused.items()], self._schema)


def grouped(
    values: Sequence[bytes | None], *, has_indexes: bool = False
) -> tuple[list[tuple[NamedSchema, list[int], list[bytes]]], dict[int, Unfit]]:
    """The *values* by the schema that they name, without headers, each group with its positions; and the others."""
    known = HEADER_BYTES + has_indexes
    if (named := _only(values, known, has_indexes=has_indexes)) is not None:
        return [(named, list(range(len(values))), [value[known:] for value in values if value])], {}
    headers: dict[bytes, tuple[NamedSchema, int]] = {}
    groups: dict[NamedSchema, tuple[list[int], list[bytes]]] = {}
    refused: dict[int, Unfit] = {}
    for i, value in enumerate(values):
        if not value:
            refused[i] = _no_value(value)
            continue
        front = value[:known]  # mostly the whole header; longer ones are read each time
        header: tuple[NamedSchema, int] | Unfit | None = headers.get(front)
        if header is None:
            header = opened(value, has_indexes=has_indexes)
            if not isinstance(header, Unfit) and header[1] == known:
                headers[front] = header
        if isinstance(header, Unfit):
            refused[i] = header
            continue
        named, end = header
        places, parts = groups.setdefault(named, ([], []))
        places.append(i)
        parts.append(value[end:])
    return [(named, places, parts) for named, (places, parts) in groups.items()], refused


def _only(values: Sequence[bytes | None], known: int, *, has_indexes: bool) -> NamedSchema | None:
    """The schema that all *values* name, by headers of *known* bytes; mostly there is one, and it is quickly seen."""
    fronts = [value[:known] for value in values if value is not None]
    if not fronts or fronts.count(fronts[0]) != len(values):
        return None
    header = opened(fronts[0], has_indexes=has_indexes)
    return header[0] if not isinstance(header, Unfit) and header[1] == known else None


def _no_value(value: bytes | None) -> Unfit:
    return Unfit(Reason.NULL_VALUE, "the record has no value" if value is None else "the value is empty")


def gathered(
    parts: Sequence[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Decoded]],
    refused: Sequence[Refused],
    schema: pa.Schema,
) -> Decoded:
    """What *parts* gave, each with the positions of its records, in the order of the input."""
    accepted = np.concatenate([np.empty(0, np.int64), *(places[decoded.accepted] for places, decoded in parts)])
    rows = pa.concat_tables([schema.empty_table(), *(decoded.rows for _, decoded in parts)])
    if (np.diff(accepted) < 0).any():
        in_order = np.argsort(accepted, kind="stable")
        rows, accepted = rows.take(pa.array(in_order)), accepted[in_order]
    every = [*refused]
    for places, decoded in parts:
        every += [Refused(index=int(places[r.index]), reason=r.reason, detail=r.detail) for r in decoded.refused]
    return Decoded(rows=rows.combine_chunks(), accepted=accepted, refused=sorted(every, key=lambda one: one.index))
