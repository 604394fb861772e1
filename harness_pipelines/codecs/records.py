"""Kafka records to rows: the value by its codec, and for keyed tables what is put and what is deleted.

In a keyed table a record without a value (Kafka's tombstone) deletes the key that the record's key tells; a record
whose value says so by the spec's rule deletes the key that its value tells. The row of a delete has its key columns
and coordinates, all else is NULL. Like the codecs below it, a record's verdict never depends on others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness_pipelines.codecs.base import Codec, Decoded, Reason, Refused
from harness_pipelines.codecs.json import JsonCodec
from harness_pipelines.protocol.keys import DELETE, PUT
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.keys import DeleteRule
from harness_pipelines.spec.table import TableSpec

OPERATION = "_op"
_ANY_JSON = msgspec.json.Decoder(msgspec.Raw)
_BARE_JSON = frozenset({"boolean", "int", "long"})  #: whose text is their JSON form


class RecordCodec:
    """Decodes the records of one table."""

    def __init__(self, spec: TableSpec) -> None:
        self._values: Codec = JsonCodec(spec.columns, unknown_fields=spec.unknown_fields)
        self._keyed = _Keyed(spec, self._values) if spec.key else None

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        """Decode records by their *values* and *keys*; all appear in the result, as a row or as refused.

        The rows of a keyed table have `_op` in front of the user's columns.
        """
        return self._values.decode(values) if self._keyed is None else self._keyed.decode(values, keys)


class _Keyed:
    """Puts and deletes, told apart before anything is decoded."""

    def __init__(self, spec: TableSpec, values: Codec) -> None:
        self._values = values
        self._key_of_value: Codec = JsonCodec(spec.key_columns)
        self._key: Codec = JsonCodec(spec.key_columns)
        self._wrap = _wrapper(spec)
        self._says_delete = _Rule(spec.delete) if isinstance(spec.delete, DeleteRule) else None
        self._schema = arrow_schema(spec.stored).insert(0, pa.field(OPERATION, pa.string(), nullable=False))

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        none = np.array([value is None for value in values], np.bool_)
        ruled = np.zeros(len(values), np.bool_)
        if self._says_delete is not None:
            ruled = np.array([value is not None and self._says_delete(value) for value in values], np.bool_)
        parts = [
            self._put(self._values.decode(_at(values, places)), places) for places in _places(~(none | ruled))
        ] + [
            self._deleted(self._key_of_value.decode(_at(values, places)), places, _moved) for places in _places(ruled)
        ] + [
            self._deleted(self._key.decode([self._wrap(key) for key in _at(keys, places)]), places, _of_the_key)
            for places in _places(none)
        ]  # fmt: skip
        accepted = np.concatenate([np.empty(0, np.int64), *(part.accepted for part in parts)])
        rows = pa.concat_tables([self._schema.empty_table(), *(part.rows for part in parts)])
        in_order = np.argsort(accepted, kind="stable")
        refused = sorted((one for part in parts for one in part.refused), key=lambda one: one.index)
        if len(parts) > 1:
            rows, accepted = rows.take(pa.array(in_order)), accepted[in_order]
        return Decoded(rows=rows.combine_chunks(), accepted=accepted, refused=refused)

    def _put(self, found: Decoded, places: NDArray[np.int64]) -> Decoded:
        operation = pa.repeat(pa.scalar(PUT), found.rows.num_rows)
        rows = pa.table([operation, *found.rows.columns], schema=self._schema)
        return Decoded(
            rows=rows,
            accepted=places[found.accepted],
            refused=[_moved(one, int(places[one.index])) for one in found.refused],
        )

    def _deleted(self, found: Decoded, places: NDArray[np.int64], told: Callable[[Refused, int], Refused]) -> Decoded:
        count = found.rows.num_rows
        columns: list[Any] = [pa.repeat(pa.scalar(DELETE), count)]
        for field in list(self._schema)[1:]:
            is_key = field.name in found.rows.column_names
            columns.append(found.rows.column(field.name) if is_key else pa.nulls(count, field.type))
        return Decoded(
            rows=pa.table(columns, schema=self._schema),
            accepted=places[found.accepted],
            refused=[told(one, int(places[one.index])) for one in found.refused],
        )


def _moved(refused: Refused, index: int) -> Refused:
    return replace(refused, index=index)


def _of_the_key(refused: Refused, index: int) -> Refused:
    """A tombstone is refused for what its key is not."""
    if refused.reason is Reason.NULL_VALUE:
        detail = "the record has neither a value nor a key: it deletes nothing"
        return replace(refused, index=index, reason=Reason.MISSING_KEY, detail=detail)
    return replace(refused, index=index, detail=f"the key of a record without a value: {refused.detail}")


class _Rule:
    """Whether a value says that it deletes. What is no JSON object says nothing; it is refused as a put."""

    def __init__(self, rule: DeleteRule) -> None:
        kind: Any = msgspec.defstruct("Ruled", [("told", Any, None)], rename={"told": rule.field})
        self._decode = msgspec.json.Decoder(kind).decode
        self._values = {(type(value), value) for value in rule.values}  # true is not 1

    def __call__(self, value: bytes) -> bool:
        try:
            told = self._decode(value).told
        except msgspec.DecodeError:
            return False
        return isinstance(told, str | int | bool) and (type(told), told) in self._values


def _wrapper(spec: TableSpec) -> Callable[[bytes | None], bytes | None]:
    """What makes a JSON object with the key's columns of a record's key; what is no JSON stays, to be refused."""
    if len(spec.key) != 1:
        return lambda key: key
    name = msgspec.json.encode(spec.key[0])
    is_quoted = spec.key_format == "text" and str(spec.key_columns[0].type) not in _BARE_JSON

    def wrap(key: bytes | None) -> bytes | None:
        if not key or (spec.key_format == "json" and key.lstrip()[:1] == b"{"):
            return key
        try:
            value = msgspec.json.encode(key.decode()) if is_quoted else bytes(_ANY_JSON.decode(key))
        except (UnicodeDecodeError, msgspec.DecodeError):
            return key
        return b"{" + name + b":" + value + b"}"

    return wrap


def _at(records: Sequence[bytes | None], places: NDArray[np.int64]) -> Sequence[bytes | None]:
    return records if len(places) == len(records) else [records[i] for i in places.tolist()]


def _places(chosen: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """The positions that are *chosen*, as one part; no part where there is none."""
    found = np.flatnonzero(chosen)
    return [found] if len(found) else []
