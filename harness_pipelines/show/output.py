"""Output of commands: one JSON object for programs, readable text for people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import click

STANDARD_OUTPUT = "-"
Function = TypeVar("Function", bound=Callable[..., Any])


def json_option(function: Function) -> Function:
    """Add ``--json [FILE]`` to a command; the argument `json_target` goes to `emit` as it is."""
    return click.option(
        "--json",
        "json_target",
        is_flag=False,
        flag_value=STANDARD_OUTPUT,
        default=None,
        metavar="[FILE]",
        help="Print one JSON object on standard output, or write it to FILE. Give it last, or as --json=FILE.",
    )(function)


def emit(result: Mapping[str, Any], json_target: str | None, human: Callable[[], None] | None = None) -> None:
    """Print *result* as JSON if `json_option` asks for it, else call *human* (also beside a FILE)."""
    if json_target == STANDARD_OUTPUT:
        click.echo(to_json(result))
        return
    if json_target is not None:
        path = Path(json_target)
        draft = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(to_json(result) + "\n")
            draft.replace(path)
        except OSError as error:
            raise click.FileError(json_target, hint=error.strerror or str(error)) from error
    if human is not None:
        human()


def printable(text: str) -> str:
    """Return *text* with what moves the cursor, begins a line or is not seen written as an escape.

    Records hold what their producers like. In a terminal it could pass for the harness's own words.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def to_json(result: Mapping[str, Any]) -> str:
    """Return one JSON object. Decimals keep their digits as strings; times are ISO 8601.

    JSON has no NaN and no infinities; they become the strings "NaN", "Infinity" and "-Infinity", as in Protobuf's JSON.
    """
    try:
        return json.dumps(result, default=_plain, ensure_ascii=False, allow_nan=False)
    except ValueError:  # there are some
        return json.dumps(json_floats(result), default=_plain, ensure_ascii=False, allow_nan=False)


def json_floats(value: Any) -> Any:
    """Return *value* with strings in place of numbers that JSON does not have."""
    if isinstance(value, float):
        return json_float(value)
    if isinstance(value, Mapping):
        return {json_floats(key): json_floats(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_floats(part) for part in value]
    return value


def json_float(value: float) -> float | str:
    """Return a number in a form that JSON has."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _plain(value: object) -> object:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | Path):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def note(message: str) -> None:
    """Print progress on standard error; standard output is for results."""
    click.echo(message, err=True)
