"""What can be broken in a SQL statement: one lock, fence, comparison, order or bound at a time.

A statement is edited as text, so that the rest of it stays as it is. Nothing is parsed beyond words, parentheses and
CASE: the statements are our own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["lock", "where", "or", "compare", "order", "bound", "conflict", "if", "call", "count", "fence"]

_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*)
      | (?P<text>'(?:[^']|'')*' | "(?:[^"]|"")*" | \$function\$)
      | (?P<given>%\(\w+\)s | %% | \$\d+)
      | (?P<word>\w+)
      | (?P<sign><=|>=|<>|->>|->|\#>>|\|\||::|:=|@>|<@|.)""",
    re.VERBOSE,
)
_COMMENT = re.compile(r"--[^\n]*")
_LOCK = re.compile(r"\s*\bFOR (?:NO KEY UPDATE|UPDATE|KEY SHARE|SHARE)(?: OF \w+)?\b")
_ADVISORY = re.compile(r"pg_(?:try_)?advisory_xact_lock(?:_shared)?\([^()]*(?:\([^()]*\)[^()]*)*\)")
_CALL = re.compile(r"\bPERFORM harness\.\w+\([^()]*\)")
_CONFLICT = re.compile(r"\s*\bON CONFLICT(?: \([^)]*\))? DO NOTHING\b")
_ENDS = frozenset(
    {
        *("ORDER", "GROUP", "LIMIT", "FOR", "RETURNING", "UNION", "HAVING", "WINDOW", "ON", "INTO", "LOOP", "THEN"),
        *("SET", ";"),
    }
)
_OTHER_SIDE = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_OTHER_END = {"greatest": "least", "least": "greatest"}
DETAIL_MAX = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A statement with one thing broken."""

    kind: Kind
    detail: str  #: what was there
    text: str  #: the whole statement afterwards


@dataclass(frozen=True, slots=True)
class _Token:
    what: str
    text: str
    start: int
    end: int
    depth: int  #: of parentheses and CASEs around it

    @property
    def upper(self) -> str:
        return self.text.upper() if self.what == "word" else self.text


def edits(text: str) -> list[Edit]:
    """All ways to break *text*, with details that differ."""
    tokens = _tokens(text)
    said = _COMMENT.sub(lambda m: " " * len(m.group()), text)  # a comment may name a lock
    found = [
        *(_cut(text, m.start(), m.end(), "", kind="lock") for m in _LOCK.finditer(said)),
        *(_cut(text, m.start(), m.end(), "NULL", kind="lock") for m in _ADVISORY.finditer(said)),
        *(_cut(text, m.start(), m.end(), "", kind="conflict") for m in _CONFLICT.finditer(said)),
        *(_cut(text, m.start(), m.end(), "PERFORM 1", kind="call") for m in _CALL.finditer(said)),
        *_conditions(text, tokens),
        *_orders(text, tokens),
        *(
            _cut(text, t.start, t.end, _OTHER_END[t.text], kind="bound", beside=text[t.start : t.end + 50])
            for t in tokens
            if t.text in _OTHER_END
        ),
    ]
    return _told_apart(found)


def _tokens(text: str) -> list[_Token]:
    depth, cases, found = 0, 0, []
    for match in _TOKEN.finditer(text):
        what, word = match.lastgroup or "", match.group()
        if what == "skip":
            continue
        closes = word == ")" or (word.upper() == "END" and cases > 0)
        depth -= closes
        cases -= closes and word != ")"
        found.append(_Token(what, word, match.start(), match.end(), depth))
        depth += word == "(" or word.upper() == "CASE"
        cases += word.upper() == "CASE"
    return found


def _until(tokens: Sequence[_Token], first: int) -> int:
    """Where the clause that begins at token *first* ends: the index of the first token behind it."""
    depth = tokens[first].depth if first < len(tokens) else 0
    for at in range(first, len(tokens)):
        one = tokens[at]
        if one.depth < depth or (one.depth == depth and one.upper in _ENDS):
            return at
    return len(tokens)


def _conditions(text: str, tokens: Sequence[_Token]) -> Iterator[Edit]:
    """What WHERE and IF ask for: each part left out, each comparison with its other side."""
    for at, token in enumerate(tokens):
        if token.upper not in {"WHERE", "IF", "ELSIF"} or at + 1 == len(tokens):
            continue
        clause = tokens[at + 1 : _until(tokens, at + 1)]
        if not clause or (token.upper == "IF" and at and tokens[at - 1].upper == "END"):
            continue
        parts, ways = (_split(clause, word, depth=clause[0].depth) for word in ("AND", "OR"))
        if token.upper != "WHERE":
            yield _cut(text, clause[0].start, clause[-1].end, "false AND ({})", kind="if")
        if token.upper == "WHERE" or len(parts) > 1:
            for part in parts:
                yield _cut(text, part[0].start, part[-1].end, "(true OR ({}))", kind="where")
                yield from _alternatives(text, part)
        if len(ways) > 1:
            for way in ways:
                yield _cut(text, way[0].start, way[-1].end, "(false AND ({}))", kind="or")
        for one in clause:
            if one.text in _OTHER_SIDE:
                around = text[max(clause[0].start, one.start - 40) : min(clause[-1].end, one.end + 30)]
                yield _cut(text, one.start, one.end, _OTHER_SIDE[one.text], kind="compare", beside=around)


def _alternatives(text: str, part: Sequence[_Token]) -> Iterator[Edit]:
    """`(a OR b)` without a, and without b."""
    if part[0].text != "(" or part[-1].text != ")":
        return
    ways = _split(part[1:-1], "OR", depth=part[0].depth + 1)
    if len(ways) > 1:
        for way in ways:
            yield _cut(text, way[0].start, way[-1].end, "(false AND ({}))", kind="or")


def _split(tokens: Sequence[_Token], word: str, *, depth: int) -> list[list[_Token]]:
    parts: list[list[_Token]] = [[]]
    for one in tokens:
        if one.upper == word and one.depth == depth:
            parts.append([])
        else:
            parts[-1].append(one)
    return [part for part in parts if part]


def _orders(text: str, tokens: Sequence[_Token]) -> Iterator[Edit]:
    """Each ORDER BY the other way round: one that is only left out is kept by chance where there are few rows."""
    for at, token in enumerate(tokens):
        if token.upper != "ORDER" or tokens[at + 1].upper != "BY":
            continue
        clause = tokens[at + 2 : _until(tokens, at + 2)]
        keys = []
        for key in _split(clause, ",", depth=clause[0].depth):
            down = key[-1].upper == "DESC"
            said = text[key[0].start : (key[-2] if down else key[-1]).end]
            keys.append(said if down else f"{said} DESC")
        yield _cut(text, clause[0].start, clause[-1].end, ", ".join(keys).replace("{", "{{"), kind="order")


def _cut(text: str, start: int, end: int, by: str, *, kind: Kind, beside: str | None = None) -> Edit:
    was = text[start:end]
    put = by.format(was) if kind in {"where", "or", "if"} else by.replace("{{", "{")
    return Edit(kind=kind, detail=_short(beside or was), text=text[:start] + put + text[end:])


def _short(text: str) -> str:
    one_line = " ".join(re.sub(r"--[^\n]*", "", text).split())
    return one_line if len(one_line) <= DETAIL_MAX else one_line[: DETAIL_MAX - 3] + "..."


def _told_apart(found: Sequence[Edit]) -> list[Edit]:
    seen: Counter[tuple[str, str]] = Counter()
    made = []
    for one in found:
        seen[one.kind, one.detail] += 1
        number = seen[one.kind, one.detail]
        detail = one.detail if number == 1 else f"{one.detail} #{number}"
        made.append(Edit(kind=one.kind, detail=detail, text=one.text))
    return made
