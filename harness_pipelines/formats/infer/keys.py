"""Infer which columns the keys of records are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from harness_pipelines.formats.infer.values import parsed
from harness_pipelines.spec.sections.keys import KEY_COLUMNS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredKey:
    """Record keys that are the values of columns."""

    columns: tuple[str, ...]
    format: Literal["json", "text"]


def infer_key(keys: Sequence[bytes | None], rows: Sequence[Mapping[str, Any]]) -> InferredKey | None:
    """Which fields of *rows* have the values of the records' *keys*; None: no fields have, in each record.

    Records without a key say nothing.
    """
    pairs = [(key, row) for key, row in zip(keys, rows, strict=True) if key is not None]
    if not pairs:
        return None
    objects = [_object(key) for key, _ in pairs]
    if all(one is not None for one in objects):
        return _of_objects([one for one in objects if one is not None], [row for _, row in pairs])
    return _of_one_value(pairs)


def key_fields(keys: Sequence[bytes | None]) -> tuple[str, ...]:
    """The fields of keys that are JSON objects, with or without their schema block; empty: they are not."""
    there = [_object(key) for key in keys if key is not None]
    first = there[0] if there else None
    return () if first is None or any(one is None or one.keys() != first.keys() for one in there) else tuple(first)


def _object(key: bytes) -> dict[str, Any] | None:
    try:
        found = parsed(key)
    except ValueError:
        return None
    if isinstance(found, dict) and found.keys() == {"schema", "payload"} and isinstance(found["payload"], dict):
        found = found["payload"]
    return found if isinstance(found, dict) and found else None


def _of_objects(objects: Sequence[dict[str, Any]], rows: Sequence[Mapping[str, Any]]) -> InferredKey | None:
    names = tuple(objects[0])
    are_same = all(
        one.keys() == objects[0].keys() and all(name in row and row[name] == one[name] for name in names)
        for one, row in zip(objects, rows, strict=True)
    )
    return InferredKey(columns=names, format="json") if are_same and len(names) <= KEY_COLUMNS_MAX else None


def _of_one_value(pairs: Sequence[tuple[bytes, Mapping[str, Any]]]) -> InferredKey | None:
    """Of several fields with the keys' values the one with most different values, the first of those."""
    found: list[tuple[int, InferredKey]] = []
    for name in pairs[0][1]:
        values = [row.get(name) for _, row in pairs]
        for format_, written in _WRITTEN.items():
            if all(written(value) == key for value, (key, _) in zip(values, pairs, strict=True)):
                found.append((len(set(map(str, values))), InferredKey(columns=(name,), format=format_)))
                break
    return max(found, key=lambda one: one[0])[1] if found else None


def _json(value: Any) -> bytes | None:
    return msgspec.json.encode(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _text(value: Any) -> bytes | None:
    return str(value).encode(errors="replace") if isinstance(value, str | int) and not isinstance(value, bool) else None


_WRITTEN: Mapping[Literal["json", "text"], Callable[[Any], bytes | None]] = {"json": _json, "text": _text}
