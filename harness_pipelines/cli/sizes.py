"""Sizes of memory as options take them."""

from __future__ import annotations

import re

import click

MEMORY_BYTES_MIN = 64 << 20  #: DuckDB does little with less
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def size(_ctx: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """Turn ``512MiB``, ``4GB`` or plain bytes into bytes (a click callback)."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", value.strip().lower())
    unit = _UNITS.get(found[2]) if found else None
    if found is None or unit is None or not MEMORY_BYTES_MIN <= float(found[1]) * unit <= 1 << 50:
        raise click.BadParameter(f"{value!r} is no size of at least 64 MiB, such as 512MiB or 4GB")
    return int(float(found[1]) * unit)
