"""Rows with a value of each type, and how other engines give them back."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

COLUMNS = {
    "id": {"type": "long", "required": True},
    "b": "boolean",
    "i": "int",
    "f": "float",
    "d": "double",
    "price": "decimal(12,2)",
    "wide": "decimal(38,5)",
    "day": "date",
    "at": "timestamp",
    "zoned": "timestamptz",
    "clock": "time",
    "s": "string",
    "u": "uuid",
    "raw": "binary",
    "tags": "list<string>",
    "counts": "map<string, int>",
    "place": "struct<city: string, pos: struct<lat: double, lon: double>>",
}
Row = dict[str, Any]  #: a record's values by column, as Python has them


def record(number: int, rng: random.Random) -> Row:
    """Values of every type, some of them NULL; columns that the batch view is clustered by among them."""
    moment = datetime(1900, 1, 1) + timedelta(microseconds=rng.randrange(200 * 365 * 86_400 * 10**6))
    row: Row = {
        "b": rng.random() < 0.5,
        "i": rng.randrange(-(2**31), 2**31),
        "f": rng.choice([0.5, -1.25, 2.0**100]),
        "d": rng.choice([1e308, rng.gauss(0, 1)]),
        "price": Decimal(rng.randrange(-(10**12), 10**12)).scaleb(-2),
        "wide": Decimal(f"{rng.randrange(-(10**30), 10**30)}.12345"),
        "day": date(1900, 1, 1) + timedelta(days=rng.randrange(200 * 365)),
        "at": moment,
        "zoned": moment.replace(tzinfo=UTC),
        "clock": moment.time(),
        "s": rng.choice(["", "ä", "\U0001f600" * 9, f"https://example.org/{number}"]),
        "u": UUID(int=rng.getrandbits(128)),
        "raw": rng.randbytes(7),
        "tags": ["a", None, str(number)][: rng.randrange(4)],
        "counts": {"x": number, "y": None},
        "place": {"city": "Oslo", "pos": rng.choice([None, {"lat": 59.9, "lon": None}])},
    }
    return {"id": number} | {name: rng.choice([value] * 4 + [None]) for name, value in row.items()}


def plain(row: Row) -> Row:
    """*row* with one Python type per column, whichever of its own types an engine gave."""
    return {name: value if value is None else PLAIN.get(name, lambda v: v)(value) for name, value in row.items()}


PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "at": lambda value: value.replace(tzinfo=None),
    "clock": lambda micros: (datetime.min + timedelta(microseconds=micros)).time(),
    "u": lambda value: UUID(bytes=value) if isinstance(value, bytes) else UUID(str(value)),
    "raw": lambda value: bytes.fromhex(value) if isinstance(value, str) else value,
    "counts": dict,
}


def without_nested_null(row: Row) -> Row:
    """*row* as an engine has it that knows no NULL list, map or struct."""
    place = row["place"] or {"city": None, "pos": None}
    pos = place["pos"] or {"lat": None, "lon": None}
    return row | {"tags": row["tags"] or [], "counts": row["counts"] or {}, "place": place | {"pos": pos}}
