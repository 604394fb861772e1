"""The codec of each format: what decodes values and record keys, and what tells a delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from harness_pipelines.codecs.base import Codec, Decoded, Reason
from harness_pipelines.codecs.json import JsonCodec
from harness_pipelines.codecs.keys import wrapper
from harness_pipelines.codecs.raw import NoColumns, RawCodec
from harness_pipelines.codecs.refusals import too_deep
from harness_pipelines.codecs.schemas import Schemas
from harness_pipelines.spec.keys import DeleteRule
from harness_pipelines.spec.table import Column, TableSpec

Rule = Callable[[bytes], bool]  #: whether a value says that it deletes


def value_codec(spec: TableSpec, columns: Sequence[Column], schemas: Schemas, *, all_fields: bool = True) -> Codec:
    """The codec of values that have *columns*; without *all_fields* what else they have is no matter."""
    if not columns:
        return NoColumns()
    return JsonCodec(columns, unknown_fields=spec.unknown_fields if all_fields else "ignore")


def key_codec(spec: TableSpec, schemas: Schemas) -> Codec:
    """The codec of record keys, which gives the columns of the table's key."""
    if spec.key_format == "raw":
        return RawCodec(replace(spec.key_columns[0], required=True), missing=Reason.NULL_VALUE)
    return _JsonKeys(spec)


class _JsonKeys:
    """`Codec` of keys in JSON, or of the text of their only value."""

    def __init__(self, spec: TableSpec) -> None:
        self._wrap = wrapper(spec)
        self._codec = JsonCodec(spec.key_columns)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        return self._codec.decode([self._wrap(value) for value in values])


def delete_rule(spec: TableSpec, schemas: Schemas) -> Rule | None:
    """What of *spec* tells deletes; none: only tombstones do."""
    if not isinstance(spec.delete, DeleteRule):
        return None
    return _JsonRule(spec.delete)


class _JsonRule:
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
