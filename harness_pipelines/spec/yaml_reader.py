"""YAML text to plain values, with the line of each; what is wrong with the YAML is said in a user's words."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from harness_pipelines.spec.types import unstorable
from harness_pipelines.spec.wording import Place, SpecError, SpecProblem, dotted, shortened

_NESTING_MAX = 50
_VALUES_MAX = 200_000  #: with aliases followed: thousands of columns, each with its words


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


class Reader:
    """YAML text to plain values, remembering the line of each place."""

    def __init__(self) -> None:
        self.problems: list[SpecProblem] = []
        self.wrong: set[Place] = set()  #: the places of the problems
        self.bare: set[Place] = set()  #: words without a value between braces, such as ``b`` in ``{a: 1, b}``
        self._values = 0
        self._open: set[int] = set()  # nodes around the one that is read
        self._lines: dict[Place, int] = {}

    def read(self, text: str, source: str) -> Any:
        """Raises: SpecError when it is not YAML at all."""
        try:
            _check_depth(text, source)  # PyYAML composes recursively, and reads events without recursion
            node = yaml.compose(text, Loader=_Words)
        except yaml.YAMLError as error:
            line, why = syntax_trouble(error, text)
            raise SpecError.whole(source, f"not YAML: {why}", line=line) from error
        if node is None:
            raise SpecError.whole(source, "the spec is empty; it starts with `table: namespace.name`")
        found = self._value(node, ())
        if self._values > _VALUES_MAX:
            line = node.start_mark.line + 1
            raise SpecError.whole(source, f"more than {_VALUES_MAX:,} values once its aliases are followed", line=line)
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
        if node.tag not in _PLAIN_TAGS:
            self._wrong(node, place, f"the tag {node.tag!r} is not read; write the values without a tag")
            return None
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
                self._wrong(key, place, f"the name of a setting has {why}; remove the character")
                continue
            if word == "<<" and key.style is None:
                self._wrong(key, place, "the merge key `<<` is not read; write its settings out here")
                continue
            here = (*place, word)
            if word in found:
                self._wrong(key, here, f"`{word}` occurs twice, first in line {self._lines[here]}")
                continue
            self._lines[here] = key.start_mark.line + 1
            if (
                node.flow_style
                and isinstance(value, yaml.ScalarNode)
                and value.start_mark.index == value.end_mark.index
            ):
                self.bare.add(here)
            found[word] = self._value(value, here)
        return found

    def _wrong(self, node: yaml.Node, place: Place, message: str) -> None:
        line = node.start_mark.line + 1
        self.wrong.add(place)
        self.problems.append(SpecProblem(line=line, field=dotted(place), message=message))


_PLAIN_TAGS = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
_NO_SPACE = re.compile(r"\s*(?:- )?([\w.-]+:[^\s/].*)")


def syntax_trouble(error: yaml.YAMLError, text: str) -> tuple[int | None, str]:
    """Return the line (from 1) where *text* stops being YAML, and why, with a way on."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        return line, f"the character U+{code:04X} cannot stand in YAML; remove it"
    if not isinstance(error, yaml.MarkedYAMLError) or (mark := error.problem_mark or error.context_mark) is None:
        return None, " ".join(str(error).split())
    problem, opened, line = error.problem or "", error.context_mark, mark.line + 1
    if "'\\t'" in problem:
        return line, "a tab stands where spaces belong; YAML indents with spaces"
    if problem == "mapping values are not allowed here":
        return _stray_colon(text.splitlines(), line)
    if opened is not None and error.context == "while scanning a quoted scalar":
        return opened.line + 1, "the quote that opens in this line is never closed"
    if opened is not None and "<stream end>" in problem and (error.context or "").startswith("while parsing a flow"):
        sign = text[opened.index] if opened.index < len(text) and text[opened.index] in "[{" else "["
        return opened.line + 1, f"the `{sign}` in this line is never closed"
    if problem.startswith("found undefined alias"):
        name = problem.removeprefix("found undefined alias ").strip("'")
        return line, f"`*{name}` refers to `&{name}`, which no line above has; a text that begins with `*` needs quotes"
    if problem == "but found another document":
        return line, "`---` begins a second document; a file holds one spec"
    if problem.startswith("expected <block end>"):
        return line, "the line fits none of the settings above it: align it with one, or quote the text before it"
    lines = text.splitlines()
    comment = "; a comment begins with #" if line <= len(lines) and "//" in "".join(lines[line - 2 : line]) else ""
    return line, f"{problem}{_quote_hint(lines, line) or comment}"


def _stray_colon(lines: list[str], line: int) -> tuple[int, str]:
    """Explain a second colon, or an indented setting below one that has a value."""
    here = lines[line - 1]
    if hint := _quote_hint(lines, line):
        return line, f"a second `: ` in one value{hint}"
    before = next((at for at in range(line - 1, 0, -1) if lines[at - 1].split("#")[0].strip()), None)
    if before is not None and (found := _NO_SPACE.fullmatch(lines[before - 1])) and ": " not in found[1]:
        name, _, rest = found[1].partition(":")
        return before, f"a space is missing after a colon: write `{name}: {shortened(rest)}`"
    indent = len(here) - len(here.lstrip())
    if before is not None and indent > len(lines[before - 1]) - len(lines[before - 1].lstrip()):
        return line, f"it is indented below line {before}, which has a value already; align the two"
    return line, "a second `: ` in one line; quote a text that has one: 'a: b'"


def _quote_hint(lines: list[str], line: int) -> str:
    """The way on where YAML takes the colon of a struct, or a `*`, `&`, `%`, `@` or backtick of a text, for its own."""
    said = lines[line - 1].partition(":")[2].strip() if line <= len(lines) else ""
    if "struct<" in said.lower() or "map<" in said.lower():
        return f"; quote a type that has colons or commas in it: '{shortened(said)}'"
    return f"; quote a text that begins with `{said[0]}`" if said[:1] in tuple("*&%@`") else ""


def _check_depth(text: str, source: str) -> None:
    """Raises: SpecError where lists and mappings are nested too deeply to be composed; yaml.YAMLError."""
    depth = 0
    for event in yaml.parse(text, Loader=_Words):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _NESTING_MAX:
                line = event.start_mark.line + 1 if event.start_mark else None
                raise SpecError.whole(source, f"nested more than {_NESTING_MAX} deep", line=line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _scalar(node: yaml.Node) -> Any:
    """The value of one scalar. Raises: ValueError with what is wrong, in a spec's words."""
    found = shortened(repr(node.value))
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
    raise ValueError(f"{found} has the tag {node.tag!r}, which is not read; write text, a number, true, false or null")
