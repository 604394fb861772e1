"""Record keys as JSON objects with the key's columns."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from harness_pipelines.formats.columns.encodings import WHOLE_NUMBERS
from harness_pipelines.formats.refusals import too_deep
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.table import TableSpec

_ANY_JSON = msgspec.json.Decoder(msgspec.Raw)
_BARE_JSON = frozenset({"boolean", "int", "long"})


def wrapper(spec: TableSpec) -> Callable[[bytes | None], bytes | None]:
    """What makes a JSON object with the key's columns of a record's key; what is no JSON stays, to be refused."""
    if len(spec.key) != 1:
        return lambda key: key
    name = msgspec.json.encode(spec.key[0])
    is_quoted = spec.key_format == "text" and not _is_bare(spec.key_columns[0])

    def wrap(key: bytes | None) -> bytes | None:
        if not key or (spec.key_format != "text" and key.lstrip()[:1] == b"{"):
            return key
        if not is_quoted and too_deep(key):
            return key
        try:
            value = msgspec.json.encode(key.decode()) if is_quoted else bytes(_ANY_JSON.decode(key))
        except (UnicodeDecodeError, msgspec.DecodeError):
            return key
        return b"{" + name + b":" + value + b"}"

    return wrap


def _is_bare(column: Column) -> bool:
    """The text form of its values is their JSON form."""
    return str(column.type) in _BARE_JSON or column.source in WHOLE_NUMBERS
