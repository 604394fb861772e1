"""Lists, structs and maps as one line of JSON text in a segment: exact both ways, and vectorised.

The text uses few JSON types, so that Arrow's and Spark's JSON readers agree on every value: booleans, integers (also
for dates in days and times in microseconds) and strings (floats, decimals, hexadecimal bytes, UUIDs). A struct is an
object with the keys ``f0, f1, …`` by position; a map is a list of ``{"key": …, "value": …}``.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from harness_pipelines.protocol.schema.schemas import DigestLayout, Slot

UUID_BYTES = 16
_UUID_DASHES = (8, 13, 18, 23)
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint8).reshape(256, 2)
_NIBBLE = np.zeros(256, dtype=np.uint8)
for _value, _digit in enumerate(b"0123456789abcdef"):
    _NIBBLE[_digit] = _value
_NEEDS_ESCAPE = '[\\x00-\\x1f"\\\\]'


def encode_json(column: pa.Array, layout: DigestLayout | None = None) -> pa.StringArray:
    """The JSON text of each value of *column*; null stays null. *layout*: as digests want it."""
    return _encode(unsliced(column), layout)


def decode_json(text: pa.StringArray, target: pa.DataType) -> pa.Array:
    """Read what `encode_json` wrote back into *target*."""
    if len(text) == 0:
        return pa.array([], type=target)
    if text.null_count == len(text):
        return pa.nulls(len(text), type=target)
    lines = pc.binary_join_element_wise('{"v":', pc.fill_null(text, "null"), "}\n", "")
    first, last = lines.offset, lines.offset + len(lines)
    offsets = np.frombuffer(lines.buffers()[1], dtype=np.int32)
    data = lines.buffers()[2].slice(int(offsets[first]), int(offsets[last] - offsets[first]))
    schema = pa.schema([("v", wire_type(target))])
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
    )
    return _decode(unsliced(pa.concat_arrays(table.column("v").chunks)), target)


def wire_type(target: pa.DataType) -> pa.DataType:
    """The type that a JSON reader is asked for."""
    if pa.types.is_boolean(target) or pa.types.is_int32(target) or pa.types.is_date32(target):
        return pa.bool_() if pa.types.is_boolean(target) else pa.int32()
    if pa.types.is_int64(target) or pa.types.is_time64(target) or pa.types.is_timestamp(target):
        return pa.int64()
    if pa.types.is_map(target):
        entry = pa.struct([("key", wire_type(target.key_type)), ("value", wire_type(target.item_type))])
        return pa.list_(entry)
    if pa.types.is_list(target):
        return pa.list_(wire_type(target.value_type))
    if pa.types.is_struct(target):
        return pa.struct([(f"f{i}", wire_type(field.type)) for i, field in enumerate(target)])
    return pa.string()


def _encode(array: pa.Array, layout: DigestLayout | None = None) -> pa.StringArray:
    kind = array.type
    inside = layout.element if layout is not None else None
    if pa.types.is_map(kind):
        entries = _object([("key", array.keys, Slot(0, True, None)), ("value", array.items, Slot(1, True, inside))])
        return _joined(array, entries)
    if pa.types.is_list(kind):
        return _joined(array, pc.fill_null(_encode(unsliced(array.values), inside), "null"))
    if pa.types.is_struct(kind):
        slots = layout.slots if layout is not None else [Slot(i, True, None) for i in range(kind.num_fields)]
        fields = [
            (f"f{i}", None if slot.place is None else array.field(slot.place), slot) for i, slot in enumerate(slots)
        ]
        text = _object(fields)
        return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))
    if pa.types.is_date32(kind):
        return array.view(pa.int32()).cast(pa.string())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return array.view(pa.int64()).cast(pa.string())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return array.cast(pa.string())
    if pa.types.is_string(kind):
        return _quoted(_escaped(array))
    if pa.types.is_binary(kind):
        return _quoted(_hex(array))
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == UUID_BYTES:
        return _quoted(uuid_text(array))
    return _quoted(array.cast(pa.string()))  # floats and decimals: Arrow writes the shortest text that reads back


def _object(members: list[tuple[str, pa.Array | None, Slot]]) -> pa.StringArray:
    parts: list[Any] = []
    for i, (name, child, slot) in enumerate(members):
        begin = f'{"," if i else "{"}"{name}":'
        if child is None:
            parts += [begin, "null"] if slot.always else []
            continue
        text = _encode(unsliced(child), slot.inside)
        if slot.always:
            parts += [begin, pc.fill_null(text, "null")]
        else:
            parts.append(pc.fill_null(pc.binary_join_element_wise(begin, text, ""), ""))
    return pc.binary_join_element_wise(*parts, "}", "")


def _joined(array: pa.Array, elements: pa.StringArray) -> pa.StringArray:
    texts = pa.ListArray.from_arrays(array.offsets, elements)
    joined = pc.binary_join_element_wise("[", pc.binary_join(texts, ","), "]", "")
    return pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.string()))


def _quoted(text: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise('"', text, '"', "")


def _escaped(text: pa.StringArray) -> pa.StringArray:
    if not pc.any(pc.match_substring_regex(text, _NEEDS_ESCAPE)).as_py():
        return text
    text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    if not pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
        return text
    return reduce(lambda t, code: pc.replace_substring(t, chr(code), f"\\u{code:04x}"), range(32), text)


def uuid_text(array: pa.FixedSizeBinaryArray) -> pa.StringArray:
    """The canonical 36-character text of 16-byte values."""
    array = unsliced(array)
    raw = np.frombuffer(array.buffers()[1], dtype=np.uint8)[: len(array) * UUID_BYTES].reshape(-1, UUID_BYTES)
    text = np.full((len(array), 36), ord("-"), dtype=np.uint8)
    text[:, [i for i in range(36) if i not in _UUID_DASHES]] = _HEX[raw].reshape(-1, 32)
    offsets = np.arange(len(array) + 1, dtype=np.int32) * 36
    return _with_validity(array, pa.string(), offsets, text)


def _hex(array: pa.BinaryArray) -> pa.StringArray:
    raw, offsets = _bytes_of(array)
    return _with_validity(array, pa.string(), offsets * 2, _HEX[raw])


def _unhex(text: pa.StringArray) -> pa.BinaryArray:
    digits, offsets = _bytes_of(text)
    pairs = _NIBBLE[digits].reshape(-1, 2)
    return _with_validity(text, pa.binary(), offsets // 2, (pairs[:, 0] << 4) | pairs[:, 1])


def _bytes_of(array: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int32]]]:
    """The value bytes and the n + 1 offsets of a string or binary array of offset 0."""
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[: len(array) + 1]
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return raw[offsets[0] : offsets[-1]], offsets - offsets[0]


def _with_validity(
    like: pa.Array, kind: pa.DataType, offsets: np.ndarray[Any, Any], data: np.ndarray[Any, Any]
) -> pa.Array:
    buffers = [like.buffers()[0], pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(kind, len(like), buffers, like.null_count)


def _decode(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_map(target):
        entries = unsliced(array.values)
        keys, items = _decode(entries.field(0), target.key_type), _decode(entries.field(1), target.item_type)
        return pa.MapArray.from_arrays(null_offsets(array), keys, items, type=target)
    if pa.types.is_list(target):
        values = _decode(unsliced(array.values), target.value_type)
        return pa.ListArray.from_arrays(null_offsets(array), values, type=target)
    if pa.types.is_struct(target):
        children = [_decode(unsliced(array.field(i)), field.type) for i, field in enumerate(target)]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())
    if pa.types.is_binary(target):
        return _unhex(array)
    if pa.types.is_fixed_size_binary(target):
        return _unhex(unsliced(pc.replace_substring(array, "-", ""))).cast(target)
    if pa.types.is_date32(target) or pa.types.is_timestamp(target) or pa.types.is_time64(target):
        return array.view(target)
    return array.cast(target)


def unsliced(array: pa.Array) -> pa.Array:
    """*array* with offset 0, because offsets of children and validity must begin together."""
    return array.take(pa.array(np.arange(len(array)))) if array.offset else array


def null_offsets(array: pa.Array) -> pa.Int32Array:
    """The offsets of a list or map array of offset 0, null where the list is null: `from_arrays` reads them so."""
    nulls = np.append(array.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(array.offsets.to_numpy(), mask=nulls, type=pa.int32())
