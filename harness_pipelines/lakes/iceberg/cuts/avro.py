"""Avro's container files as Iceberg keeps its metadata in them: entries of manifests, and lists of manifests.

PyIceberg resolves two schemas against each other for each file that it writes, which takes more time than all other
work of a cut. What is written here has one shape, that of Iceberg's format 2 (specification, "Manifests"), so each
value is encoded where it stands. How a value is encoded: Apache Avro 1.12, "Binary Encoding" and "Object Container
Files".

fastavro would do as well, and writes the same values. It is not used: it takes three times as long for a manifest of
500 files, and twenty times as long where their entries are known, since it has no way to take over an entry that was
encoded before, which is what a cut does with most of them. A record for it, with Avro's lists of keys and values, is as
much code as the encoding. And PyIceberg does not bring it along: it would be one more dependency of what serves.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import orjson
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

FORMAT: Final = 2  #: of Iceberg's metadata
_MAGIC, _SYNC_BYTES = b"Obj\x01", 16
_NULL, _SOME = b"\x00", b"\x02"  #: the branches of Iceberg's unions, which begin with null
_END = b"\x00"  #: of the blocks of an array or a map
Value = TypeVar("Value")


def long(value: int) -> bytes:
    """A number of type int or long: seven bits a byte, the sign in the last one."""
    left, found = (value << 1) ^ (value >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def raw(value: bytes) -> bytes:
    return long(len(value)) + value


def text(value: str) -> bytes:
    return raw(value.encode())


def boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def maybe(value: Value | None, encode: Callable[[Value], bytes]) -> bytes:
    return _NULL if value is None else _SOME + encode(value)


def array(parts: Sequence[bytes]) -> bytes:
    """An array of values that are encoded."""
    return long(len(parts)) + b"".join(parts) + _END if parts else _END


def _numbers(of: Mapping[int, int]) -> bytes:
    return array([long(key) + long(value) for key, value in of.items()])


def _bounds(of: Mapping[int, bytes]) -> bytes:
    return array([long(key) + raw(value) for key, value in of.items()])


def data_file(file: DataFile) -> bytes:
    """What a manifest says of a file. Partitions are by whole numbers, as all of the harness are."""
    counts = (file.column_sizes, file.value_counts, file.null_value_counts, file.nan_value_counts)
    return b"".join([
        long(int(file.content)),
        text(file.file_path),
        text(file.file_format),
        *(maybe(file.partition[place], long) for place in range(len(file.partition))),
        long(file.record_count),
        long(file.file_size_in_bytes),
        *(maybe(count, _numbers) for count in counts),
        *(maybe(bounds, _bounds) for bounds in (file.lower_bounds, file.upper_bounds)),
        maybe(file.key_metadata, raw),
        maybe(file.split_offsets, lambda offsets: array(list(map(long, offsets)))),
        maybe(file.equality_ids, lambda ids: array(list(map(long, ids)))),
        maybe(file.sort_order_id, long),
    ])  # fmt: skip


def entry(status: int, body: bytes, *, snapshot: int, sequence: int, written: int) -> bytes:
    """An entry of a manifest: *body* is `data_file`, *written* the sequence number of the snapshot that brought it."""
    return long(int(status)) + b"".join(_SOME + long(number) for number in (snapshot, sequence, written)) + body


def container(schema: bytes, metadata: Mapping[str, str], records: Iterable[bytes]) -> bytes:
    """A file of *records*, which are encoded in *schema*, in one block."""
    told = {"avro.schema": schema, "avro.codec": b"deflate"} | {k: v.encode() for k, v in metadata.items()}
    sync, parts = os.urandom(_SYNC_BYTES), list(records)
    head = _MAGIC + array([text(key) + raw(value) for key, value in told.items()]) + sync
    if not parts:
        return head
    squeeze = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return head + long(len(parts)) + raw(squeeze.compress(b"".join(parts)) + squeeze.flush()) + sync


@lru_cache(64)
def entry_schema(partition: StructType) -> bytes:
    """The schema of the entries of a manifest whose files are partitioned by *partition*.

    Iceberg in Java has all values of partitions optional, PyIceberg those of required columns not; readers take both.
    """
    optional = StructType(*(field.model_copy(update={"required": False}) for field in partition.fields))
    file = data_file_with_partition(partition_type=optional, format_version=FORMAT)
    return _avro_of(manifest_entry_schema_with_data_file(format_version=FORMAT, data_file=file), "manifest_entry")


@lru_cache(1)
def list_schema() -> bytes:
    """The schema of a list of manifests."""
    return _avro_of(MANIFEST_LIST_FILE_SCHEMAS[FORMAT], "manifest_file")


def _avro_of(schema: Any, name: str) -> bytes:
    return orjson.dumps(AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name))
