"""Events that put rows, decoded in one pass with one type for the operation and the row.

That type takes nothing else. Whatever it does not take (deletes, what is wrong, other forms) is left to
`harness_pipelines.formats.debezium.json`, which reads events exactly and says why: both make the same row of an event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from harness_pipelines.formats.base import Decoded
from harness_pipelines.formats.columns.chunked import left
from harness_pipelines.formats.json.objects import JsonCodec

_PUTS = Literal["c", "r", "u"]
_NOTHING = Annotated[int, msgspec.Meta(ge=1, le=0)]  #: no value is one
_AFTER = attrgetter("after")


class OnePass:
    """Reads the events that put rows of one codec, as many as a chunk has at most."""

    def __init__(self, codec: JsonCodec) -> None:
        self._codec = codec
        fields: list[Any] = [("op", _PUTS), ("after", codec.record)]
        body = msgspec.defstruct("Body", fields, gc=False)
        event = msgspec.defstruct("Event", [*fields, ("payload", _NOTHING, 1)], gc=False)
        self._event, self._body = msgspec.json.Decoder(event).decode, msgspec.json.Decoder(body).decode

    def read(self, texts: Sequence[bytes | memoryview], *, bodies: bool) -> tuple[Decoded, list[int]]:
        """The rows of *texts*, and the positions of those that are left; *bodies*: they are payloads of events."""
        events, others = read_each(self._body if bodies else self._event, texts)
        records = list(map(_AFTER, events))
        if not self._codec.complete(records):
            records, others = [], list(range(len(texts)))
        rows = self._codec.rows_of(records)
        if rows.refused:
            there = left(len(texts), others)
            others = sorted([*others, *(int(there[one.index]) for one in rows.refused)])
            rows = replace(rows, accepted=np.arange(len(rows.accepted), dtype=np.int64), refused=[])
        return rows, others


def read_each(decode: Callable[[Any], Any], texts: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Return what *decode* makes of *texts*, and the positions of the texts that it refuses."""
    found: list[Any] = []
    others: list[int] = []
    rest = map(decode, texts)
    while True:
        try:
            found.extend(rest)  # keeps what came before an error; the next call continues after it
            break
        except msgspec.DecodeError:
            others.append(len(found) + len(others))
    assert len(found) + len(others) == len(texts), "every text is read once"
    return found, others
