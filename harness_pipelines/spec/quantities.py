"""Durations, sizes and counts of a spec: as a person writes them, and as numbers."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, SerializationInfo, WithJsonSchema

from harness_pipelines.spec.wording import quote

DURATION_S_MAX = 36_500 * 86_400  # the ledger keeps moments, and a moment in a thousand years has no use
COUNT_MAX = 2**63 - 1  # what the ledger's columns hold
WRITTEN = "written"  #: context of a dump in which durations and sizes are texts, as a person writes them
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+)\s*(B|KB|MB|GB|TB)", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def seconds_of(value: Any) -> float:
    """Seconds of ``60s``, ``15m`` or a number of seconds. Raises: ValueError."""
    seconds = value
    if isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
        seconds = float(found[1]) * _SECONDS[found[2]]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ValueError(
            f"{quote(value)} is not a duration; write a number above 0 and ms, s, m, h or d (60s, 15m), or "
            "plain seconds"
        )
    if not seconds <= DURATION_S_MAX:
        raise ValueError(f"{quote(value)} is too long; write at most {DURATION_S_MAX // 86400:g}d")
    return float(seconds)


def bytes_of(value: Any) -> int:
    """Bytes of ``256MB`` or a number of bytes. Raises: ValueError."""
    size = value
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        size = int(found[1]) * _BYTES[found[2].upper()]
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size < COUNT_MAX:
        raise ValueError(
            f"{quote(value)} is not a size; write a whole number above 0 and B, KB, MB, GB or TB (256MB), "
            "or plain bytes"
        )
    return size


def duration_text(seconds: float) -> str | float:
    """What `seconds_of` reads as the same number: a text in the largest unit of which there is a whole number."""
    for unit in ("d", "h", "m", "s", "ms"):
        count = round(seconds / _SECONDS[unit])
        if count and seconds_of(text := f"{count}{unit}") == seconds:
            return text
    return seconds


def size_text(size: int) -> str | int:
    """What `bytes_of` reads as the same number: a text in the largest unit of which there is a whole number."""
    unit = next((unit for unit in ("TB", "GB", "MB", "KB") if size % _BYTES[unit] == 0), None)
    return size if unit is None else f"{size // _BYTES[unit]}{unit}"


def _shown_seconds(seconds: float, info: SerializationInfo) -> str | float:
    return duration_text(seconds) if info.context == WRITTEN else seconds


def _shown_bytes(size: int, info: SerializationInfo) -> str | int:
    return size_text(size) if info.context == WRITTEN else size


def _words(form: str, pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "string", "pattern": pattern}, {"type": form, "exclusiveMinimum": 0}]})


Seconds = Annotated[
    float,
    BeforeValidator(seconds_of),
    PlainSerializer(_shown_seconds),
    _words("number", r"^\d+(\.\d+)?\s*(ms|s|m|h|d)$"),
]
Bytes = Annotated[
    int, BeforeValidator(bytes_of), PlainSerializer(_shown_bytes), _words("integer", r"^\d+\s*([bB]|[kmgtKMGT][bB])$")
]
Count = Annotated[int, Field(ge=1, le=COUNT_MAX, strict=True)]
