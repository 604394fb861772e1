"""Valid bytes and schemas, changed a little: what broken producers, proxies and registries send."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

ODD_BYTES = (
    b"", b"\x00", b"\xff\xfe", b"\x80" * 10, b"\xff" * 11, b'"', b"{", b"[" * 500, b"null", b"1e400", b"\\ud800",
    b"NaN", b"9" * 400, b"\xef\xbb\xbf", b"\\u0000", b"-0", b"1.5", b"true", b"0001-01-01", b"10000-01-01",
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**31, 2**63, 10**30, 1e308, 0.5, "", "x", "null", "record", "string", "long", "boolean",
    "bytes", "a.b", "\ud800", "\0", [], {}, [None], ["null"], ["null", "string"], {"type": "string"}, {"a": {"b": []}},
    {"type": "array", "items": "null"}, {"type": "map", "values": "long"}, {"type": "fixed", "name": "f", "size": -1},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 9}, "decimal", "io.debezium.time.Date",
    {"type": "enum", "name": "e", "symbols": []}, {"$ref": "#"}, {"pattern": "("}, [[]], "timestamp-nanos",
)  # fmt: skip


def mutated_bytes(value: bytes, dice: Random) -> bytes:
    """*value* with up to three changes."""
    made = bytearray(value)
    for _ in range(dice.choice((1, 1, 2, 3))):
        at = dice.randrange(len(made) + 1)
        end = min(len(made), at + dice.choice((1, 1, 2, 4, 16)))
        match dice.randrange(6):
            case 0 if at < len(made):
                made[at] ^= 1 << dice.randrange(8)
            case 1 if at < len(made):
                made[at] = dice.randrange(256)
            case 2:
                del made[at:end]
            case 3:
                made[at:at] = dice.choice(ODD_BYTES)
            case 4:
                made[at:at] = made[at:end] * 2
            case _:
                made[at:end] = dice.choice(ODD_BYTES)
    return bytes(made)


def mutated_json(value: Any, dice: Random) -> str:
    """JSON text of *value*, one part of which is another, is gone or occurs twice."""
    made = json.loads(json.dumps(value))
    places = list(_places(made))
    for _ in range(dice.choice((1, 1, 2))):
        inside, key = dice.choice(places)
        try:
            match dice.randrange(4):
                case 0:
                    del inside[key]
                case 1 if isinstance(inside, dict):
                    inside[dice.choice(("type", "name", "fields", "items", "logicalType", "connect.name", "scale"))] = (
                        dice.choice(ODD_VALUES)
                    )
                case 2 if isinstance(inside, list):
                    inside.append(inside[key])
                case _:
                    inside[key] = dice.choice(ODD_VALUES)
        except (KeyError, IndexError):
            continue  # an earlier change took it
    return json.dumps(made)


def _places(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return [(value, key) for key in value] + [place for one in value.values() for place in _places(one)]
    if isinstance(value, list):
        return [(value, at) for at in range(len(value))] + [place for one in value for place in _places(one)]
    return []


def mutated_text(words: Sequence[str], dice: Random) -> str:
    """*words* of a schema, some of which are gone, others, or there twice."""
    made = list(words)
    for _ in range(dice.choice((1, 1, 2, 3))):
        at = dice.randrange(len(made))
        match dice.randrange(3):
            case 0:
                del made[at]
            case 1:
                made.insert(at, dice.choice(made))
            case _:
                made[at] = dice.choice(
                    (*made, "0", "-1", "536870912", '"', "map", "repeated", "required", "\ud800", "\0")
                )
    return " ".join(made)
