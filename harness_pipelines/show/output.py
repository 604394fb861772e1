"""Output of commands: one JSON object for programs, readable text for people."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
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


def emit(
    result: Mapping[str, Any],
    json_target: str | None,
    human: Callable[[], None] | None = None,
    *,
    is_private: bool = False,
) -> None:
    """Print *result* as JSON if `json_option` asks for it, else call *human* (also beside a FILE).

    Only its owner can read a file that is private: it holds a secret.
    """
    if json_target == STANDARD_OUTPUT:
        click.echo(to_json(result))
        return
    if json_target is not None:
        path = Path(json_target)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, is_private=is_private) as sink:
                sink.write(f"{to_json(result)}\n".encode())
        except OSError as error:
            raise click.FileError(json_target, hint=error.strerror or str(error)) from error
    if human is not None:
        human()


@contextmanager
def replacing(path: Path, *, is_private: bool = False) -> Iterator[BinaryIO]:
    """What is written becomes the file *path* once the block has ended without an error; until then nothing changes.

    A file that was there keeps its permissions, and a link goes on leading to it. A device or a pipe, such as
    ``/dev/stdout``, gets the bytes as they come: a file in its place would break it for all programs.
    Raises: OSError.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as sink:
            yield sink
        return
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    was = None if is_private or not target.exists() else stat.S_IMODE(target.stat().st_mode)
    mode = 0o666 if was is None and not is_private else 0o600
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as sink:
            if was is not None:
                os.fchmod(sink.fileno(), was)
            yield sink
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


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
