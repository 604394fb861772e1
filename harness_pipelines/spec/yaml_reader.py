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
            self._wrong(node, place, f"the tag {_as_written(node.tag)} is not read; write the values without a tag")
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
                is_template = node.flow_style and key.start_mark.index == node.start_mark.index + 1
                said = AS_WRITTEN if is_template else "the name of a setting is text, not a list or a mapping"
                self._wrong(key, place, said)
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
        if node.flow_style:
            self._join_types(node, place)
        return found

    def _join_types(self, node: yaml.MappingNode, place: Place) -> None:
        """Explain a type such as ``decimal(12,2)`` that its comma has cut between braces."""
        cut: tuple[yaml.Node, Place, str] | None = None  # where it begins, and what there is of it
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode):
                cut = None
                continue
            here = (*place, key.value)
            if cut is None:
                if value.style is None and _is_open(value.value):
                    cut = key, here, value.value
                continue
            more = key.value if here in self.bare else f"{key.value}: {value.value}"
            cut = *cut[:2], f"{cut[2]}, {more}"
            self.wrong.add(here)
            if not _is_open(cut[2]):
                self._wrong(cut[0], cut[1], f"quote a type that has commas in it: '{shortened(cut[2])}'")
                cut = None

    def _wrong(self, node: yaml.Node, place: Place, message: str) -> None:
        line = node.start_mark.line + 1
        self.wrong.add(place)
        self.problems.append(SpecProblem(line=line, field=dotted(place), message=message))


AS_WRITTEN = "a spec is taken as it is written: fill in variables and templates first"


def _is_open(text: str) -> bool:
    return any(text.count(left) > text.count(right) for left, right in ("()", "<>"))


def _as_written(tag: str) -> str:
    prefix = "tag:yaml.org,2002:"
    return repr(f"!!{tag.removeprefix(prefix)}" if tag.startswith(prefix) else tag)


_PLAIN_TAGS = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
_NO_COMMA = re.compile(r"expected ',' or '([\]}])'")
_NO_SPACE = re.compile(r"\s*(?:- )?([\w.-]+:[^\s/].*)")


def syntax_trouble(error: yaml.YAMLError, text: str) -> tuple[int | None, str]:
    """Return the line (from 1) where *text* stops being YAML, and why, with a way on."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        if not code:
            return line, "it holds U+0000, as a file in UTF-16 does, or one that is no text; save it as UTF-8"
        return line, f"the character U+{code:04X} cannot stand in YAML; remove it"
    if not isinstance(error, yaml.MarkedYAMLError) or (mark := error.problem_mark or error.context_mark) is None:
        return None, " ".join(str(error).split())
    line, lines = mark.line + 1, text.splitlines()
    if sign := _odd_sign(text, line):
        return line, sign
    return _of_opening(error, text) or (line, _of_document(error) or _of_line(error, lines, mark))


def _of_opening(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str] | None:
    """What is wrong with an earlier line, in which something opens; None if it is another problem."""
    problem, opened, context = error.problem or "", error.context_mark, error.context or ""
    if problem == "mapping values are not allowed here" and error.problem_mark is not None:
        return _stray_colon(text.splitlines(), error.problem_mark.line + 1)
    if opened is None:
        return None
    if problem == "could not find expected ':'":
        is_long = len(text.splitlines()[opened.line]) > _NAME_CHARS_MAX
        why = f"a name has at most {_NAME_CHARS_MAX:,} characters before its colon"
        return opened.line + 1, why if is_long else "a colon is missing: a setting is written `name: value`"
    if context == "while scanning a quoted scalar":
        return opened.line + 1, "the quote that opens in this line is never closed"
    if "<stream end>" in problem and context.startswith("while parsing a flow"):
        sign = text[opened.index] if opened.index < len(text) and text[opened.index] in "[{" else "["
        return opened.line + 1, f"the `{sign}` in this line is never closed"
    return None


def _of_document(error: yaml.MarkedYAMLError) -> str | None:
    """What is wrong with documents, names of nodes and tags; None if it is another problem."""
    problem = error.problem or ""
    if problem.startswith("found undefined alias"):
        name = problem.removeprefix("found undefined alias ").strip("'")
        return f"`*{name}` refers to `&{name}`, which no line above has; a text that begins with `*` needs quotes"
    if problem == "second occurrence" and error.context_mark is not None:
        name = (error.context or "").partition("'")[2].partition("'")[0]
        return f"`&{name}` stands twice, first in line {error.context_mark.line + 1}; give one of them another name"
    if problem == "but found another document":
        return "`---` begins a second document; a file holds one spec"
    if problem.startswith("expected '<document start>'"):
        return "the spec ends above this line, and a file holds one; remove what follows, or indent it"
    if problem.startswith("found incompatible YAML document"):
        return "the version of YAML is 1.1 or 1.2; remove the line that begins with %YAML"
    if problem.startswith("found undefined tag handle"):
        return f"{problem.removeprefix('found ')}; write the values without a tag"
    return None


def _of_line(error: yaml.MarkedYAMLError, lines: list[str], mark: yaml.Mark) -> str:
    problem, line = error.problem or "", mark.line + 1
    if "'\\t'" in problem:
        return "a tab stands where spaces belong; YAML indents with spaces"
    if problem.startswith("expected <block end>"):
        return "the line fits none of the settings above it: align it with one, or quote the text before it"
    if found := _NO_COMMA.match(problem):
        if mark.column > _NAME_CHARS_MAX and problem.endswith("':'"):
            return f"a name has at most {_NAME_CHARS_MAX:,} characters before its colon"
        problem = f"a comma, or the closing `{found[1]}`, is missing before character {mark.column + 1}"
    comment = "; a comment begins with #" if line <= len(lines) and "//" in "".join(lines[line - 2 : line]) else ""
    return f"{problem}{_quote_hint(lines, line) or comment}"


_NAME_CHARS_MAX = 1024  #: of YAML
_UNSEEN_ENDS = "\x85\u2028\u2029"  #: ends of lines, to YAML 1.1
_SIGNS = {
    "\uff1a": ":", "\uff0c": ",", "\u3001": ",", "\uff5b": "{", "\uff5d": "}", "\uff3b": "[", "\uff3d": "]",
    "\uff08": "(", "\uff09": ")", "\uff1c": "<", "\uff1e": ">",
}  # fmt: skip


def _odd_sign(text: str, line: int) -> str:
    """The first sign in *line*, or in the one above, that looks like one of YAML's and is none; empty if none does."""
    for found in text.splitlines(keepends=True)[max(line - 2, 0) : line]:
        for at, letter in enumerate(found, start=1):
            if letter in _SIGNS:
                return (
                    f"character {at} of {shortened(found.strip())!r} is U+{ord(letter):04X}; write `{_SIGNS[letter]}`"
                )
            if letter in _UNSEEN_ENDS:
                return f"a line ends at U+{ord(letter):04X}, behind {shortened(found.strip())!r}; remove the character"
    return ""


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
        return f"; quote a type that has colons or commas in it: '{shortened(_type_in(said))}'"
    return f"; quote a text that begins with `{said[0]}`" if said[:1] in tuple("*&%@`") else ""


def _type_in(said: str) -> str:
    """The first type with parts in *said*, or all of it."""
    begin, depth = re.search(r"(?:struct|map)<", said, re.IGNORECASE), 0
    for at in range(begin.start() if begin else len(said), len(said)):
        depth += (said[at] == "<") - (said[at] == ">")
        if said[at] == ">" and not depth and begin:
            return said[begin.start() : at + 1]
    return said


def _check_depth(text: str, source: str) -> None:
    """Raises: SpecError where lists and mappings are nested too deeply to be composed; yaml.YAMLError."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Words)):
        if count > _VALUES_MAX:  # before as many nodes fill the memory
            line = event.start_mark.line + 1 if event.start_mark else None
            raise SpecError.whole(source, f"more than {_VALUES_MAX:,} values; is this file a spec?", line=line)
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
    raise ValueError(
        f"{found} has the tag {_as_written(node.tag)}, which is not read; write text, a number, true, false or null"
    )
