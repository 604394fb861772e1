"""Specs from and to text; errors name the file, the line and the allowed settings."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from harness_pipelines.errors import UsageError
from harness_pipelines.spec.catalogs import CatalogSpec
from harness_pipelines.spec.columns import ColumnWords
from harness_pipelines.spec.contract import ColumnChecks, Contract, RowCheck, StopAbove
from harness_pipelines.spec.deletes import never_fires
from harness_pipelines.spec.formats import SCHEMA_CHARS_MAX, GivenSchema
from harness_pipelines.spec.table import (
    Freshness,
    Layout,
    Retention,
    StartAt,
    TableSpec,
    TierRules,
    reserved_words,
)
from harness_pipelines.spec.transform import Transform
from harness_pipelines.spec.types import unstorable

SPEC_BYTES_MAX = 8 * 2**20  #: room for two schemas and thousands of columns
_NESTING_MAX = 50
_VALUES_MAX = 200_000  #: with aliases followed: thousands of columns, each with its words
_FOUND_CHARS = 60
_PARTS: dict[str, type[BaseModel]] = {
    "tier": TierRules, "layout": Layout, "retention": Retention, "freshness": Freshness, "start": StartAt,
    "columns": ColumnWords, "contract": Contract, "contract.columns": ColumnChecks, "contract.rows": RowCheck,
    "stop_above": StopAbove, "transform": Transform, "transform.fields": ColumnWords,
    "schema": GivenSchema, "key_schema": GivenSchema, "catalogs": CatalogSpec,
}  # fmt: skip
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecProblem:
    """One error in a spec."""

    line: int | None  #: from 1; None when no line is to blame
    field: str  #: dotted, such as ``columns.amount.type``; empty for the whole
    message: str  #: what was found and what is allowed


class SpecError(UsageError):
    """The spec is invalid; nothing was done. The message has one line per problem."""

    def __init__(self, source: str, problems: Iterable[SpecProblem]) -> None:
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda p: p.line or 0))
        super().__init__("\n".join(self._line(p) for p in self.problems))

    def _line(self, problem: SpecProblem) -> str:
        where = self.source if problem.line is None else f"{self.source}:{problem.line}"
        return f"{where}: {problem.field}: {problem.message}" if problem.field else f"{where}: {problem.message}"


def load_spec(path: str | Path) -> TableSpec:
    """Read a YAML (or JSON) file. Raises: SpecError."""
    try:
        text = _read_text(Path(path), SPEC_BYTES_MAX)
    except _Unreadable as error:
        raise _whole(str(path), f"the spec {error}") from error
    return load_spec_text(text, source=str(path), folder=Path(path).parent)


def load_spec_text(text: str, *, source: str = "<text>", folder: Path | None = None) -> TableSpec:
    """Read a spec from YAML (or JSON) text; *source* stands for the file in messages, files lie beside *folder*.

    Raises: SpecError.
    """
    reader = _Reader()
    words = reader.read(text, source)
    problems = reader.problems
    if not isinstance(words, dict):
        raise _whole(source, "a spec is a mapping of settings, starting with `table: namespace.name`", line=1)
    problems += _read_schemas(words, reader, folder or Path())
    reserved = reserved_words({word: value for word, value in words.items() if value is not None})
    problems += [SpecProblem(line=reader.line((word,)), field=word, message=why) for word, why in reserved.items()]
    try:
        spec = TableSpec.model_validate({word: value for word, value in words.items() if word not in reserved})
    except ValidationError as error:
        for one in error.errors(include_url=False):
            place = tuple(one["loc"])
            field = ".".join(map(str, place))
            problems.append(SpecProblem(line=reader.line(place), field=field, message=_message(dict(one), place)))
    if problems:
        raise SpecError(source, problems)
    check_rule(spec, source=source, line=reader.line(("delete", "field")))
    return spec


def check_rule(spec: TableSpec, *, source: str, line: int | None = None) -> None:
    """Tables that are there keep such a rule: it is asked where a spec is applied, not where one is read back.

    Raises: SpecError where no record can be a delete by the rule of *spec*.
    """
    if (why := never_fires(spec)) is not None:
        raise SpecError(source, [SpecProblem(line=line, field="delete", message=why)])


def _read_schemas(words: dict[str, Any], reader: _Reader, folder: Path) -> list[SpecProblem]:
    """Put the text of the files that `schema` and `key_schema` name in their places."""
    problems: list[SpecProblem] = []
    for word in ("schema", "key_schema"):
        said = words.get(word)
        if not isinstance(said, dict) or "file" not in said:
            continue
        path, why = folder / str(said["file"]), ""
        text = ""
        if "text" in said:
            why = "write `file` or `text`, not both"
        else:
            try:
                text = _read_text(path, 4 * SCHEMA_CHARS_MAX)
            except _Unreadable as error:
                why = f"{path} {error}"
        if not why and len(text) > SCHEMA_CHARS_MAX:
            why = f"{path} has {len(text):,} characters; at most {SCHEMA_CHARS_MAX:,} are kept"
        if why:
            problems.append(SpecProblem(line=reader.line((word, "file")), field=f"{word}.file", message=why))
            words[word] = None
        else:
            words[word] = {"text": text, **{w: v for w, v in said.items() if w != "file"}}
    return problems


class _Unreadable(Exception):
    """Why a file is no text; the name of the file belongs before it."""


def _read_text(path: Path, bytes_max: int) -> str:
    """Read a file that somebody else wrote; one without an end (a device) is not read on for ever."""
    try:
        with path.open("rb") as file:
            found = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:  # a path with U+0000 is a ValueError
        raise _Unreadable(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(found) > bytes_max:
        raise _Unreadable(f"is larger than {bytes_max:,} bytes")
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise _Unreadable(f"is not UTF-8: {error.reason} at byte {error.start}") from error


def load_value(text: str) -> Any:
    """A single value as a spec has it: true and false, numbers and null, else text. Raises: SpecError."""
    reader = _Reader()
    found = reader.read(text, text)
    if reader.problems:
        raise SpecError(_shortened(text), reader.problems)
    return found


def dump_spec(spec: TableSpec) -> dict[str, Any]:
    """The JSON form that the ledger keeps (columns as a list); ``TableSpec.model_validate`` reads it back."""
    return spec.model_dump(mode="json", by_alias=True)


def _whole(source: str, message: str, *, line: int | None = None) -> SpecError:
    return SpecError(source, [SpecProblem(line=line, field="", message=message)])


class _Words(yaml.SafeLoader):
    """YAML in which only ``true``/``false``, numbers and ``null`` are not text (``on`` and dates are)."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (the name is PyYAML's)


_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?")
_DIGITS_MAX = 400
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", _INT.pattern, "-+0123456789"),
    ("float", _FLOAT.pattern, "-+0123456789"),
):
    _Words.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


class _Reader:
    """YAML text to plain values, remembering the line of each place."""

    def __init__(self) -> None:
        self.problems: list[SpecProblem] = []
        self._values = 0
        self._open: set[int] = set()  # nodes around the one that is read
        self._lines: dict[Place, int] = {}

    def read(self, text: str, source: str) -> Any:
        """Raises: SpecError when it is not YAML at all."""
        try:
            _check_depth(text, source)  # PyYAML composes recursively, and reads events without recursion
            node = yaml.compose(text, Loader=_Words)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line if mark else None
            hint = _quote_hint(text, line) if line is not None else ""
            raise _whole(source, f"not YAML: {error.problem}{hint}", line=None if line is None else line + 1) from error
        except yaml.YAMLError as error:
            raise _whole(source, f"not YAML: {' '.join(str(error).split())}") from error
        if node is None:
            raise _whole(source, "the spec is empty; it starts with `table: namespace.name`")
        found = self._value(node, ())
        if self._values > _VALUES_MAX:
            line = node.start_mark.line + 1
            raise _whole(source, f"more than {_VALUES_MAX:,} values once its aliases are followed", line=line)
        return found

    def line(self, place: Place) -> int | None:
        """The line of *place*, or of the closest thing around it that is in the text."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place)

    def _value(self, node: yaml.Node, place: Place) -> Any:
        self._values += 1
        if self._values > _VALUES_MAX:
            return None
        self._lines.setdefault(place, node.start_mark.line + 1)
        if len(place) > _NESTING_MAX:
            self._wrong(node, place[:3], f"nested more than {_NESTING_MAX} deep")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if id(node) in self._open:
            self._wrong(node, place, "an alias is inside the node that it names")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, place)
            return [self._value(child, (*place, i)) for i, child in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: yaml.Node, place: Place) -> Any:
        try:
            return _scalar(node)
        except ValueError as error:
            self._wrong(node, place, str(error))
            return None

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            word = key.value if isinstance(key, yaml.ScalarNode) else None
            if word is None:
                self._wrong(key, place, "the name of a setting is text, not a list or a mapping")
                continue
            if (why := unstorable(word)) is not None:
                self._wrong(key, place, f"the name of a setting with {why}")
                continue
            here = (*place, word)
            if word in found:
                self._wrong(key, here, f"`{word}` occurs twice, first in line {self._lines[here]}")
                continue
            self._lines[here] = key.start_mark.line + 1
            found[word] = self._value(value, here)
        return found

    def _wrong(self, node: yaml.Node, place: Place, message: str) -> None:
        line = node.start_mark.line + 1
        self.problems.append(SpecProblem(line=line, field=".".join(map(str, place)), message=message))


def _quote_hint(text: str, line: int) -> str:
    """The way on where YAML takes the colon of a struct, or a `{`, `[`, `*`, `&` or `%` of a text, for its own."""
    lines = text.splitlines()
    said = lines[line].partition(":")[2].strip() if line < len(lines) else ""
    if "struct<" in said.lower() or "map<" in said.lower():
        return f"; quote a type that has colons or commas in it: '{_shortened(said)}'"
    return "; quote a text with such characters: '...'" if said[:1] in tuple("*&%@`") else ""


def _check_depth(text: str, source: str) -> None:
    """Raises: SpecError where lists and mappings are nested too deeply to be composed; yaml.YAMLError."""
    depth = 0
    for event in yaml.parse(text, Loader=_Words):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _NESTING_MAX:
                line = event.start_mark.line + 1 if event.start_mark else None
                raise _whole(source, f"nested more than {_NESTING_MAX} deep", line=line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _scalar(node: yaml.Node) -> Any:
    """The value of one scalar. Raises: ValueError with what is wrong, in a spec's words."""
    found = _shortened(repr(node.value))
    match node.tag.removeprefix("tag:yaml.org,2002:"):
        case "null":
            return None
        case "bool" if node.value.lower() in ("true", "false"):
            return node.value.lower() == "true"
        case "int" if _INT.fullmatch(node.value):
            if len(node.value) > _DIGITS_MAX:
                raise ValueError(f"{found} has {len(node.value):,} characters; a number has at most {_DIGITS_MAX}")
            return int(node.value)
        case "float" if _FLOAT.fullmatch(node.value):
            number = float(node.value)
            if not math.isfinite(number):
                raise ValueError(f"{found} is beyond the range of a number")
            return number
        case "str":
            if (why := unstorable(node.value)) is not None:
                raise ValueError(f"the text has {why}, which no table can hold")
            return node.value
    raise ValueError(f"{found} with the tag {node.tag!r}: write plain text, a number, true, false or null")


def _shortened(found: str) -> str:
    return found if len(found) <= _FOUND_CHARS else f"{found[:_FOUND_CHARS]}..."


def _message(error: dict[str, Any], place: Place) -> str:
    """pydantic's error in the words of a spec."""
    found = _shortened(repr(error["input"]))
    match error["type"]:
        case "extra_forbidden":
            allowed = _allowed_words(place[:-1])
            return (
                f"unknown setting `{place[-1]}`{_did_you_mean(str(place[-1]), allowed)}; allowed: {', '.join(allowed)}"
            )
        case "missing":
            return f"`{place[-1]}` is missing"
        case "literal_error":
            allowed = re.findall(r"'([^']*)'", error["ctx"]["expected"]) or [error["ctx"]["expected"]]
            hint = _did_you_mean(str(error["input"]), allowed)
            return f"{found} is not allowed{hint}; allowed: {', '.join(allowed)}"
        case "value_error":
            return str(error["ctx"]["error"])
        case "column":
            return str(error["msg"])
        case "timezone_aware":
            return f"{found} has no offset; write it with one, such as 2026-01-01T00:00:00Z"
        case "model_type":
            return f"write settings below it, not {found}; allowed: {', '.join(_allowed_words(place))}"
    return f"{str(error['msg']).replace('Input should', 'it should')}, found {found}"


def _allowed_words(place: Place) -> list[str]:
    """The words that may stand directly below *place*."""
    nearer = ".".join(map(str, place[:2]))
    model = _PARTS.get(nearer) or _PARTS[str(place[0])] if place else TableSpec
    return [field.alias or name for name, field in model.model_fields.items()]


def _did_you_mean(word: str, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(word.lower(), allowed, n=1)
    return f" (did you mean `{near[0]}`?)" if near else ""
