"""Messages for invalid JSON text, before it is decoded."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from harness_pipelines.formats.base import Reason, Refused
from harness_pipelines.formats.columns.shapes import Unfit

VALUE_BYTES_MAX = 64 * 2**20
NESTING_MAX = 400  #: deeper is refused; far below what Python's stack takes, so that the caller's depth is no matter
DETAIL_CHARS = 300
_ANY_JSON = msgspec.json.Decoder(msgspec.Raw)
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
#: Escapes that begin with a backslash; a pair of surrogates is one.
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
_PATH = re.compile(r"(.*) - at (`key` in )?`\$\.?(.*)`", re.DOTALL)
_JSON_NAMES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}


def refusal(index: int, why: Unfit) -> Refused:
    """*why* of the record at *index*, on one line."""
    detail = why.detail if why.detail.isprintable() else repr(why.detail)[1:-1]
    return Refused(index=index, reason=why.reason, detail=detail[:DETAIL_CHARS])


def unsound(values: Sequence[bytes | None], value_bytes_max: int = VALUE_BYTES_MAX) -> dict[int, Unfit]:
    """Return why some of *values* are refused before they are parsed, by position."""
    if _surely_sound(values, value_bytes_max):
        return {}
    return {i: why for i, value in enumerate(values) if (why := _unsound(value, value_bytes_max))}


def _surely_sound(values: Sequence[bytes | None], value_bytes_max: int) -> bool:
    """A quick yes for all of some values; no means: look at each."""
    if None in values:
        return False
    lengths = list(map(len, values))  # type: ignore[arg-type]
    if min(lengths, default=0) == 0 or max(lengths) > value_bytes_max:
        return False
    if max(lengths) > NESTING_MAX and any(map(too_deep, values)):  # type: ignore[arg-type]
        return False
    text = b"\n".join(values)  # type: ignore[arg-type]
    return text.isascii() or _bad_utf8(text) is None


def _unsound(value: bytes | None, value_bytes_max: int) -> Unfit | None:
    if not value:
        return Unfit(Reason.NULL_VALUE, "the record has no value" if value is None else "the value is empty")
    if len(value) > value_bytes_max:
        return Unfit(Reason.TOO_LARGE, f"the value has {len(value):,} bytes; at most {value_bytes_max:,} are decoded")
    if not value.isascii() and (at := _bad_utf8(value)) is not None:
        return Unfit(Reason.MALFORMED, f"not UTF-8 at byte {at}")
    if too_deep(value):
        return Unfit(Reason.MALFORMED, f"nested more than {NESTING_MAX} deep")
    return None


def _bad_utf8(value: bytes) -> int | None:
    """Where *value* stops being UTF-8; msgspec does not look at the text of fields that it skips."""
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def too_deep(value: bytes) -> bool:
    """Whether *value* is nested deeper than `NESTING_MAX`: ask before each parser, which may raise RecursionError."""
    brackets = value.count(b"[") + value.count(b"{") if len(value) > NESTING_MAX else 0
    return brackets > NESTING_MAX and depth(value) > NESTING_MAX


def depth(value: bytes) -> int:
    """How deep arrays and objects of JSON are nested, at most."""
    signs = np.frombuffer(_STRINGS.sub(b"", value), np.uint8)
    steps = np.isin(signs, (ord("["), ord("{"))).astype(np.int64) - np.isin(signs, (ord("]"), ord("}")))
    return int(steps.cumsum().max(initial=0))


def malformed(value: bytes) -> Unfit | None:
    """Return whether *value* is JSON to its end: a wrong type near its start would hide a later syntax error."""
    try:
        _ANY_JSON.decode(value)
    except msgspec.DecodeError as error:
        said = str(error).removeprefix("JSON is malformed: ")
        return Unfit(Reason.MALFORMED, f"not JSON: {_byte_order_mark(value) or _surrogate(value) or said}")
    return None


def _byte_order_mark(value: bytes) -> str | None:
    return "it begins with a byte order mark, which JSON has none of" if value.startswith(b"\xef\xbb\xbf") else None


def _surrogate(value: bytes) -> str | None:
    """Return the half of a surrogate pair that is the only reason why *value* is not JSON, if so."""
    lone = [found for found in _ESCAPES.finditer(value) if found["lone"]]
    if not lone:
        return None
    try:
        _ANY_JSON.decode(_ESCAPES.sub(lambda found: b"\\ufffd" if found["lone"] else found[0], value))
    except msgspec.DecodeError:
        return None
    first = lone[0]
    return f"half of a surrogate pair, {first[0].decode()}, at byte {first.start()} stands for no character"


def explained(error: msgspec.DecodeError) -> Unfit:
    """msgspec's message as a reason and a detail that begins with the field."""
    text = str(error)
    found = _PATH.fullmatch(text)
    what, of_key, path = found.groups() if found else (text, None, "")
    if what.startswith("Object "):
        name = what[what.index("`") + 1 : what.rindex("`")]
        path = f"{path}.{name}" if path else name
        if what.startswith("Object missing"):
            return Unfit(Reason.MISSING_FIELD, f"`{path}`: required, but missing")
        return Unfit(Reason.UNKNOWN_FIELD, f"`{path}`: no column or field has this name")
    if not path:
        return Unfit(Reason.MALFORMED, f"not a JSON object, but {_json_name(what.rpartition('got ')[2])}")
    reason, detail = _misfit(what)
    return Unfit(reason, f"`{path}{' key' if of_key else ''}`: {detail}")


def _misfit(what: str) -> tuple[Reason, str]:
    if bound := re.fullmatch(r"Expected `int` ([<>]=) (-?\d+)", what):
        side = "larger" if bound[1] == "<=" else "smaller"
        return Reason.OUT_OF_RANGE, f"expected integer {bound[1]} {bound[2]}, got a {side} one"
    if what in {"Number out of range", "Integer value out of range"}:
        return Reason.OUT_OF_RANGE, "the number does not fit"
    if types := re.fullmatch(r"Expected (`.*`), got (`.*`)", what):
        if types[2] == "`null`":
            return Reason.MISSING_FIELD, "required, but null"
        return Reason.WRONG_TYPE, f"expected {_json_name(types[1])}, got {_json_name(types[2])}"
    return Reason.WRONG_TYPE, what[:1].lower() + what[1:]


def _json_name(quoted: str) -> str:
    """JSON's name of msgspec's type, such as "`int | null`"."""
    name = quoted.strip("`").removesuffix(" | null")
    return _JSON_NAMES.get(name, name)
