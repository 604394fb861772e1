"""Words of messages: errors of a spec, values as YAML writes them, counts, the nearest allowed name, equal names.

Spark ignores case by Java's rules, folders of macOS ignore how an accent is spelled, DuckDB ignores ASCII's case,
Postgres and Iceberg compare as written. Two columns that any of these takes for one would lose values without an
error, so a table has only one of them.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness_pipelines.errors import UsageError

_ENTRIES_MAX = 8
_CHARS_MAX = 60
_CUTOFF = 0.65  #: of difflib; below it a suggestion misleads more often than it helps

_RULES = "names ignore case, the spelling of accents and blanks around them"
_UNSEEN = re.compile(
    # What Unicode calls default ignorable and Python printable, and the blank pattern of Braille.
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_DOTTED_I = re.compile("i[\u0300-\u036f]+")
_DOT = "\u0307"

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecProblem:
    """One error in a spec."""

    line: int | None  #: from 1; None when no line is to blame
    field: str  #: dotted, such as ``columns.amount.type``; empty for the whole
    message: str  #: what was found and what is allowed


_PROBLEMS_MAX = 50  #: that a message shows


class SpecError(UsageError):
    """The spec is invalid; nothing was done. The message has one line per problem."""

    def __init__(self, source: str, problems: Iterable[SpecProblem]) -> None:
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda p: p.line or 0))
        more = len(self.problems) - _PROBLEMS_MAX
        rest = [f"{source}: {quantity(more, 'more problem')}"] if more > 0 else []
        super().__init__("\n".join([*(self._line(p) for p in self.problems[:_PROBLEMS_MAX]), *rest]))

    @classmethod
    def whole(cls, source: str, message: str, *, line: int | None = None) -> SpecError:
        """Return the error of a text that no setting is to blame for."""
        return cls(source, [SpecProblem(line=line, field="", message=message)])

    def _line(self, problem: SpecProblem) -> str:
        where = self.source if problem.line is None else f"{self.source}:{problem.line}"
        return f"{where}: {problem.field}: {problem.message}" if problem.field else f"{where}: {problem.message}"


def dotted(place: Place) -> str:
    """Return a place as messages show it; a name that cannot be seen stands in quotes."""
    return ".".join(repr(p) if isinstance(p, str) and (p != p.strip() or not p.isprintable() or not p) else str(p)
                    for p in place)  # fmt: skip


def shown(value: Any) -> str:
    """Show a value of the spec in a message, in YAML's flow style."""
    if isinstance(value, tuple | list):
        return f"[{_entries([shown(one) for one in value[: _ENTRIES_MAX + 1]])}]"
    if isinstance(value, Mapping):
        first = list(value.items())[: _ENTRIES_MAX + 1]
        return f"{{{_entries([f'{name}: {shown(one)}' for name, one in first])}}}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value) if isinstance(value, str) else str(value)


def _entries(texts: Sequence[str]) -> str:
    return ", ".join([*texts[:_ENTRIES_MAX], *(["..."] if len(texts) > _ENTRIES_MAX else [])])


def shortened(text: str) -> str:
    """Cut *text* to the length that a message can quote."""
    return text if len(text) <= _CHARS_MAX else f"{text[:_CHARS_MAX]}..."


def quote(value: Any) -> str:
    """Show a value of the spec, cut to the length that a message can quote."""
    return shortened(shown(value))


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that *name* most likely means; case and dashes count little."""
    plain = {one.lower(): one for one in allowed}
    word = name.lower().strip().replace("-", "_")
    found = [word] if word in plain else difflib.get_close_matches(word, plain, n=1, cutoff=_CUTOFF)
    return plain[found[0]] if found else None


def odd_letter(name: str, allowed: Iterable[str] = ()) -> str:
    """Describe the first letter of *name* that looks like another or like none; empty if there is none.

    A letter that occurs in one of the *allowed* names is not odd.
    """
    usual = set("".join(allowed))
    for at, letter in enumerate(name, start=1):
        if not letter.isascii() and letter not in usual:
            return f"; character {at} is U+{ord(letter):04X} {unicodedata.name(letter, '(without a name)')}"
    return ""


def quantity(count: int, what: str) -> str:
    """Return *count* of the noun *what*, a singular that an ``s`` makes a plural: ``1 row``, ``1,000 rows``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def unknown_name(name: str, allowed: Sequence[str], *, what: str = "column") -> str:
    """Return the sentence about a name that is not among the *allowed* ones."""
    near = nearest(name, allowed)
    hint = f" (did you mean {near!r}?)" if near else ""
    listed = f"; {what}s: {', '.join(allowed)}" if allowed else ""
    return f"there is no {what} {name!r}{hint}{odd_letter(name, allowed)}{listed}"


def folded(name: str) -> str:
    """The form that is equal for names that an engine, or a reader, cannot tell apart; empty if nothing can be seen.

    It is coarser than the rule of any engine: compatibility forms (NFKD) and full case folding.
    """
    plain = unicodedata.normalize("NFKD", _UNSEEN.sub("", unicodedata.normalize("NFKD", name)))
    plain = unicodedata.normalize("NFKD", plain.upper().casefold())
    # Java takes the i of Turkish, with its dot or without, for any other i.
    return _DOTTED_I.sub(lambda found: found[0].replace(_DOT, ""), plain).strip()


def why_same(name: str, other: str) -> str:
    """The rule by which *name* and *other* are one name, and the first letter that looks like another or like none."""
    plain = all(one.isascii() and one == one.strip() for one in (name, other))
    return "names ignore case" if plain else f"{_RULES}{odd_letter(name) or odd_letter(other)}"
