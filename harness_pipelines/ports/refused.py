"""A quarantined record in the form that Postgres stores: complete, or the head of a very large one.

A value may have more bytes than Postgres can store or send, and no codec decodes more than `VALUE_BYTES_MAX`. The
first bytes, the length and the digest are kept; they identify the record.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from harness_pipelines.formats.base import NO_TEXT, Headers
from harness_pipelines.formats.refusals import VALUE_BYTES_MAX
from harness_pipelines.ports.ledger import RefusedRecord

WHOLE_BYTES_MAX = VALUE_BYTES_MAX  #: of a key, a value, and of all headers: with more, heads are kept
HEAD_BYTES = 2**20
REFUSED_TOGETHER = 1_000  #: records that one statement stores


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The stored form of a record; lengths and digests of the original, None if it is stored completely."""

    record: RefusedRecord
    whole: bool = True
    key_bytes: int | None = None
    value_bytes: int | None = None
    key_sha256: bytes | None = None
    value_sha256: bytes | None = None

    @property
    def bytes(self) -> int:
        return len(self.record.key or b"") + len(self.record.value or b"") + _size(self.record.headers)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of a statement, without the headers."""
        record = self.record
        return {
            "partition": record.partition,
            "offset": record.offset,
            "reason": record.reason,
            "detail": record.detail,
            "key": record.key,
            "value": record.value,
            "kafka_ms": record.kafka_ms,
            "whole": self.whole,
            "key_bytes": self.key_bytes,
            "value_bytes": self.value_bytes,
            "key_sha256": self.key_sha256,
            "value_sha256": self.value_sha256,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON for Postgres, with the headers; bytes are hexadecimal."""
        told = self.parameters()
        named = {name: one.hex() if isinstance(one, bytes) else one for name, one in told.items()}
        return {**named, "headers": self.headers()}

    def headers(self) -> list[list[str | None]]:
        # Postgres' JSON has no U+0000.
        return [
            [name.replace("\0", NO_TEXT), None if value is None else value.hex()] for name, value in self.record.headers
        ]


def kept(record: RefusedRecord) -> Kept:
    """Return the stored form of *record*."""
    sizes = len(record.key or b""), len(record.value or b""), _size(record.headers)
    if max(sizes) <= WHOLE_BYTES_MAX:
        return Kept(record=record)
    head = replace(record, key=_head(record.key), value=_head(record.value), headers=_first(record.headers))
    return Kept(
        record=head,
        whole=False,
        key_bytes=None if record.key is None else sizes[0],
        value_bytes=None if record.value is None else sizes[1],
        key_sha256=_sha256(record.key),
        value_sha256=_sha256(record.value),
    )


def _head(value: bytes | None) -> bytes | None:
    return value if value is None or len(value) <= HEAD_BYTES else value[:HEAD_BYTES]


def _first(headers: Headers) -> Headers:
    """Return the first of *headers*, up to the size limit."""
    found: list[tuple[str, bytes | None]] = []
    room = HEAD_BYTES
    for name, value in headers:
        if (room := room - len(name)) < 0:
            break
        found.append((name, None if value is None else value[:room]))
        room -= len(value or b"")
        if room <= 0:
            break
    return found


def _size(headers: Headers) -> int:
    return sum(len(name) + len(value or b"") for name, value in headers)


def _sha256(value: bytes | None) -> bytes | None:
    return None if value is None else hashlib.sha256(value).digest()
