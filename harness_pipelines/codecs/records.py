"""Kafka records to rows: the value by its codec, and for keyed tables what is put and what is deleted.

In a keyed table a record without a value (Kafka's tombstone) deletes the key that the record's key tells; a record
whose value says so by the spec's rule deletes the key that its value tells. Change events say themselves what they do
(`DebeziumEvents`). The row of a delete has its key columns and coordinates, all else is NULL. Like the codecs below
it, a record's verdict never depends on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from harness_pipelines.codecs.base import Codec, Decoded, Reason, Refused
from harness_pipelines.codecs.contract import judge_of
from harness_pipelines.codecs.debezium import DebeziumEvents
from harness_pipelines.codecs.json import JsonCodec
from harness_pipelines.codecs.keys import wrapper
from harness_pipelines.codecs.parts import OPERATION, Part, Sorter, at, decode_parts, places_of
from harness_pipelines.codecs.refusals import too_deep
from harness_pipelines.protocol.keys import DELETE, PUT
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.keys import DeleteRule
from harness_pipelines.spec.table import TableSpec


class RecordCodec:
    """Decodes the records of one table, and judges them by its contract: whoever decodes cannot forget it."""

    def __init__(self, spec: TableSpec) -> None:
        """Raises: ContractUnusable."""
        self._judge = judge_of(spec)
        self._values: Codec = JsonCodec(spec.columns, unknown_fields=spec.unknown_fields)
        self._sorter: Sorter | None = None
        if spec.key:
            self._sorter = DebeziumEvents(spec) if spec.format == "debezium" else _KeyedJson(spec, self._values)
        self._schema = arrow_schema(spec.stored).insert(0, pa.field(OPERATION, pa.string(), nullable=False))

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        """Decode records by their *values* and *keys*; all appear in the result, as a row or as refused.

        The rows of a keyed table have `_op` in front of the user's columns.
        """
        decoded = self._decoded(values, keys)
        return decoded if self._judge is None else self._judge.judged(decoded)

    def _decoded(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        if self._sorter is None:
            return self._values.decode(values)
        return decode_parts(*self._sorter.sort(values, keys), self._schema)


class _KeyedJson:
    """`Sorter` of plain values: one that is missing deletes, and so does one that the spec's rule speaks of."""

    def __init__(self, spec: TableSpec, values: Codec) -> None:
        self._values = values
        self._key: Codec = JsonCodec(spec.key_columns)
        self._wrap = wrapper(spec)
        self._says_delete = _Rule(spec.delete) if isinstance(spec.delete, DeleteRule) else None

    def sort(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> tuple[list[Part], list[Refused]]:
        none = np.array([value is None for value in values], np.bool_)
        ruled = np.zeros(len(values), np.bool_)
        if self._says_delete is not None:
            ruled = np.array([value is not None and self._says_delete(value) for value in values], np.bool_)
        parts = [
            Part(operation=PUT, codec=self._values, values=at(values, places), places=places)
            for places in places_of(~(none | ruled))
        ] + [
            Part(operation=DELETE, codec=self._key, values=at(values, places), places=places)
            for places in places_of(ruled)
        ]  # fmt: skip
        for places in places_of(none):
            named = [self._wrap(key) for key in at(keys, places)]
            parts.append(Part(operation=DELETE, codec=self._key, values=named, places=places, retold=_of_the_key))
        return parts, []


def _of_the_key(refused: Refused, index: int) -> Refused:
    """A tombstone is refused for what its key is not."""
    if refused.reason is Reason.NULL_VALUE:
        detail = "the record has neither a value nor a key: it deletes nothing"
        return replace(refused, index=index, reason=Reason.MISSING_KEY, detail=detail)
    return replace(refused, index=index, detail=f"the key of a record without a value: {refused.detail}")


class _Rule:
    """Whether a value says that it deletes.

    What is no JSON object or nested too deep says nothing; it is refused as a put.
    """

    def __init__(self, rule: DeleteRule) -> None:
        kind: Any = msgspec.defstruct("Ruled", [("told", Any, None)], rename={"told": rule.field})
        self._decode = msgspec.json.Decoder(kind).decode
        self._values = {(type(value), value) for value in rule.values}  # true is not 1

    def __call__(self, value: bytes) -> bool:
        if too_deep(value):
            return False
        try:
            told = self._decode(value).told
        except msgspec.DecodeError:
            return False
        return isinstance(told, str | int | bool) and (type(told), told) in self._values
