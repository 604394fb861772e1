"""Bytes as producers write them, made by other means than decode them: Apache's avro, and Protobuf by hand."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

import avro.io
import avro.schema

from harness_pipelines.formats.schema.registry import WrittenSchema


def framed(payload: bytes, schema_id: int = 1, *, indexes: tuple[int, ...] | None = None) -> bytes:
    """*payload* in Confluent's wire format; *indexes*: of Protobuf's message."""
    header = b"\x00" + struct.pack(">I", schema_id)
    if indexes is None:
        return header + payload
    if indexes == (0,):
        return header + b"\x00" + payload
    return header + b"".join(zigzag(n) for n in (len(indexes), *indexes)) + payload


def zigzag(number: int) -> bytes:
    return varint((number << 1) ^ (number >> 63))


def varint(number: int) -> bytes:
    left, made = number & (2**64 - 1), bytearray()
    while left > 0x7F:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    made.append(left)
    return bytes(made)


def avro_bytes(schema: Any, value: Any) -> bytes:
    """*value* by Apache's library; logical types are those that it knows."""
    stream = io.BytesIO()
    avro.io.DatumWriter(avro.schema.parse(json.dumps(schema))).write(value, avro.io.BinaryEncoder(stream))
    return stream.getvalue()


def proto_field(number: int, value: Any) -> bytes:
    """A field of Protobuf: an int or bool is a varint, a float a double, text and bytes have a length."""
    match value:
        case bool() | int():
            return varint(number << 3) + varint(int(value))
        case float():
            return varint(number << 3 | 1) + struct.pack("<d", value)
        case str():
            return proto_field(number, value.encode())
        case bytes():
            return varint(number << 3 | 2) + varint(len(value)) + value
    raise AssertionError(value)


def proto_float(number: int, value: float) -> bytes:
    """A field of type float."""
    return varint(number << 3 | 5) + struct.pack("<f", value)


class GivenSchemas:
    """`Schemas` that are known by heart; counts how often each was asked for."""

    def __init__(self, schemas: Mapping[int, WrittenSchema]) -> None:
        self.schemas = dict(schemas)
        self.asked: list[int] = []

    @classmethod
    def avro(cls, *schemas: Any) -> GivenSchemas:
        return cls({i: WrittenSchema(kind="AVRO", text=json.dumps(s)) for i, s in enumerate(schemas, 1)})

    def by_id(self, schema_id: int) -> WrittenSchema | None:
        self.asked.append(schema_id)
        return self.schemas.get(schema_id)

    def close(self) -> None: ...
