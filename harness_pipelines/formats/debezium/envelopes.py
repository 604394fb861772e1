"""The envelope of change events: `source`, by which a filter distinguishes the tables of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa

from harness_pipelines.formats.base import Decoded
from harness_pipelines.formats.columns.shapes import NULL
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.spec.columns import Column


class _Envelope(msgspec.Struct, gc=False):
    payload: msgspec.Raw = NULL


_decode = msgspec.json.Decoder(_Envelope).decode


class JsonSources:
    """`Sources` of events in JSON, with or without their schema block."""

    def __init__(self, column: Column) -> None:
        """*column*: `source`, with the fields that are read."""
        self._codec = JsonCodec([replace(column, required=False)])

    def __call__(self, values: Sequence[bytes | None]) -> pa.Array:
        return spread(self._codec.decode([_body(value) for value in values]), np.arange(len(values)), len(values))


def _body(value: bytes | None) -> bytes | None:
    if value is None:
        return None
    try:
        payload = bytes(_decode(value).payload)
    except msgspec.DecodeError:
        return None
    return payload if payload[:1] == b"{" else value


def spread(decoded: Decoded, places: Sequence[int] | np.ndarray, count: int) -> pa.Array:
    """Return the only column of *decoded* spread over *count* rows: its records go to *places*, the others are NULL."""
    of = np.full(count, -1, np.int64)
    of[np.asarray(places, np.int64)[decoded.accepted]] = np.arange(len(decoded.accepted))
    return decoded.rows.column(0).combine_chunks().take(pa.array(of, mask=of < 0))
