"""Check that numbers in Avro bytes fit into 64 bits, of which fastavro silently keeps the low ones, and blocks' sizes.

A number is a varint of at most ten bytes, the tenth of which is 0 or 1. A block of a list with a count below 0 has as
many elements as the count without its sign, which the least number does not have; fastavro reads none then. Such a
block states its size in bytes too, which fastavro does not compare with what it reads. The walk over a record's bytes
is plain Python, so it is only for records that may have such numbers or blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

#: A number that does not fit, or the least one; or text that is not ASCII.
SUSPECT = re.compile(rb"[\x80-\xff]{9}[\x02-\xff]|\xff{9}\x01")
BYTES: Mapping[str, int] = {"null": 0, "float": 4, "double": 8}
_VARINT_BYTES = 10
_COUNT_MAX = 2**63 - 1
_TOO_LONG = "a number has more than 64 bits"


def may_be_suspect(text: bytes) -> bool:
    """Whether nine bytes in a row have their highest bit. If not, `SUSPECT` finds nothing: this is the quicker look."""
    high = np.frombuffer(text, np.uint8) >> 7
    two = high[:-1] & high[1:]
    four = two[:-2] & two[2:]
    eight = four[:-4] & four[4:]
    return bool((eight[:-1] & high[8:]).any())


class Wrong(Exception):
    """A number that no value can have here."""


class Numbers:
    """Looks at the numbers in values of one schema, which names no type that is within itself."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.named = dict(_named(schema))
        #: Whether a value may have blocks: arrays and maps.
        self.has_blocks = any(one.get("type") in ("array", "map") for one in _parts(schema))

    def trouble(self, payload: bytes) -> str | None:
        """What is wrong with a number of *payload*; none as well where its bytes are no value of the schema."""
        try:
            self.after(self.schema, payload, 0)
        except Wrong as wrong:
            return str(wrong)
        except IndexError:
            pass  # the reader reports the reason
        return None

    def after(self, schema: Any, payload: bytes, at: int) -> int:
        """Where a value that begins at *at* ends. Raises: Wrong, IndexError."""
        if at > len(payload):
            raise IndexError
        if isinstance(schema, list):
            branch, at = _number(payload, at)
            return self.after(schema[branch] if branch >= 0 else schema[len(schema)], payload, at)
        if isinstance(schema, str):
            return self._after_named(schema, payload, at)
        match schema["type"]:
            case "record":
                for field in schema["fields"]:
                    at = self.after(field["type"], payload, at)
                return at
            case "array":
                return self._after_blocks([schema["items"]], payload, at)
            case "map":
                return self._after_blocks(["string", schema["values"]], payload, at)
            case "enum":
                return _number(payload, at)[1]
            case "fixed":
                return at + int(schema["size"])
        return self.after(schema["type"], payload, at)

    def _after_named(self, name: str, payload: bytes, at: int) -> int:
        if name in self.named:
            return self.after(self.named[name], payload, at)
        if name in BYTES:
            return at + BYTES[name]
        number, at = _number(payload, at)
        if name in ("bytes", "string"):
            return at + max(number, 0)
        return at

    def _after_blocks(self, parts: list[Any], payload: bytes, at: int) -> int:
        while True:
            count, at = _number(payload, at)
            if count == 0:
                return at
            if abs(count) > _COUNT_MAX:
                raise Wrong(f"a block has no count of {count}")
            size, begin = _number(payload, at) if count < 0 else (None, at)
            at = self.after_elements(parts, abs(count), payload, begin)
            if size not in (None, at - begin) and at <= len(payload):
                raise Wrong(f"a block of an array or map states {size:,} bytes, and its elements take {at - begin:,}")

    def after_elements(self, parts: list[Any], count: int, payload: bytes, at: int) -> int:
        """Where *count* elements of *parts* end, each of which takes a byte at least. Raises: Wrong, IndexError."""
        if count > len(payload) - at:
            raise IndexError
        for _ in range(count):
            for part in parts:
                at = self.after(part, payload, at)
        return at


def _named(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the types that *schema* names, wherever they are: a null may stand where one is defined."""
    return ((one["name"], one) for one in _parts(schema) if "name" in one)


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the types in *schema* that have more than a name."""
    if isinstance(schema, list):
        for one in schema:
            yield from _parts(one)
    elif isinstance(schema, dict):
        yield schema
        for part in (*(field["type"] for field in schema.get("fields", ())), schema.get("items"), schema.get("values")):
            yield from _parts(part)


def _number(payload: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and where it ends. Raises: Wrong, IndexError."""
    number = 0
    for place in range(_VARINT_BYTES):
        byte = payload[at + place]
        if place == _VARINT_BYTES - 1 and byte > 1:
            raise Wrong(_TOO_LONG)
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at + place + 1
    raise Wrong(_TOO_LONG)
