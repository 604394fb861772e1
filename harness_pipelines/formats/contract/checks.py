"""Apply a table's contract to decoded rows.

Each check looks at one value or at one row, so that the verdict on a record never depends on the records beside it. The
checks that a spec writes, and those of a pandera schema that have a name (``ge``, ``isin``, ...), are Arrow's functions
over whole columns; a function of the user's own is asked value by value.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.formats.base import Decoded, Reason, Refused
from harness_pipelines.formats.columns.shapes import SHOWN_CHARS
from harness_pipelines.formats.refusals import DETAIL_CHARS
from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.keys import PUT
from harness_pipelines.spec import predicate as p
from harness_pipelines.spec.predicate import Op, Predicate, Ref
from harness_pipelines.spec.sections.contract import Check, Severity, TextRule, written_checks
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import Primitive
from harness_pipelines.spec.where import Pair

Places = NDArray[np.int64]  #: ascending positions of rows
_PLACE = "\x00at"
_COMPARE: Mapping[Op, Callable[[Any, Any], Any]] = {
    Op.EQ: pc.equal,
    Op.NE: pc.not_equal,
    Op.LT: pc.less,
    Op.LE: pc.less_equal,
    Op.GT: pc.greater,
    Op.GE: pc.greater_equal,
}
_ORDER: Mapping[Severity, int] = {"stop": 0, "quarantine": 1, "warn": 2}


class RowRule(Protocol):
    """One check, ready to be asked."""

    @property
    def name(self) -> str: ...

    @property
    def severity(self) -> Severity: ...

    @property
    def expected(self) -> str:
        """In words: ``>= 0``."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """What it reads."""
        ...

    def broken(self, rows: pa.Table) -> Places:
        """The rows that break it."""
        ...


class ContractJudge:
    """The checks of one table."""

    def __init__(self, rules: Iterable[RowRule]) -> None:
        # Those that stop come first, those that only warn last: what a record is refused for is the first it breaks.
        self.rules = sorted(rules, key=lambda rule: _ORDER[rule.severity])

    def broken(self, rows: pa.Table) -> Iterator[tuple[RowRule, Places]]:
        """The checks that *rows* break, and where."""
        puts = _puts(rows)
        asked = rows if puts is None else rows.take(pa.array(puts))
        for rule in self.rules:
            if len(broken := rule.broken(asked)):
                yield rule, broken if puts is None else puts[broken]

    def judged(self, decoded: Decoded) -> Decoded:
        """*decoded* without the rows that break a check; what breaks one that only warns stays and is counted.

        A delete of a keyed table is not checked: it has no values but its key, and it must take effect.
        """
        puts = _puts(decoded.rows)
        rows = decoded.rows if puts is None else decoded.rows.take(pa.array(puts))
        first: dict[int, RowRule] = {}
        warned: Counter[str] = Counter()
        for rule in self.rules:
            broken = rule.broken(rows)
            if rule.severity == "warn":
                warned[rule.name] += sum(at not in first for at in broken.tolist()) if first else len(broken)
            else:
                for at in broken.tolist():
                    first.setdefault(at, rule)
        warned = +warned  # without the checks that every record passed
        if not first:
            return replace(decoded, warned=warned)
        at_rows = np.array(sorted(first), np.int64)
        whole = at_rows if puts is None else puts[at_rows]
        indices = decoded.accepted[whole]
        refused = [_refusal(int(i), first[at], rows, at) for i, at in zip(indices, at_rows.tolist(), strict=True)]
        kept = np.ones(decoded.rows.num_rows, np.bool_)
        kept[whole] = False
        return replace(
            decoded,
            rows=decoded.rows.filter(pa.array(kept)).combine_chunks(),
            accepted=decoded.accepted[kept],
            refused=sorted([*decoded.refused, *refused], key=lambda one: one.index),
            warned=warned,
        )


def judge_of(spec: TableSpec) -> ContractJudge | None:
    """Return the judge of *spec*'s contract; None without a contract.

    Raises: ContractUnusable when its Python code is not there, or is no contract.
    """
    if spec.contract is None:
        return None
    if spec.contract.is_code:
        from harness_pipelines.formats.contract.pandera import rules_of

        return ContractJudge(rules_of(spec))
    checks, _ = written_checks(spec.contract, spec.columns)  # the spec was refused if there is any trouble
    return ContractJudge([ArrowRule(check) for check in checks])


def _puts(rows: pa.Table) -> Places | None:
    """The rows that are puts; None: all of them."""
    if OPERATION not in rows.column_names:
        return None
    puts = pc.equal(rows.column(OPERATION), PUT).to_numpy()
    return None if puts.all() else np.flatnonzero(puts)


def _refusal(index: int, rule: RowRule, rows: pa.Table, at: int) -> Refused:
    found = [rows.column(name)[at] for name in rule.columns]
    told = shown_value(found[0]) if len(found) == 1 else ", ".join(
        f"{name} {shown_value(value)}" for name, value in zip(rule.columns, found, strict=True)
    )  # fmt: skip
    detail = f"`{rule.name}`: expected {rule.expected}, got {told}"
    detail = detail if detail.isprintable() else repr(detail)[1:-1]
    return Refused(
        index=index,
        reason=Reason.CONTRACT,
        detail=detail[:DETAIL_CHARS],
        check=rule.name,
        stops=rule.severity == "stop",
    )


def shown_value(value: pa.Scalar) -> str:
    """A value on one line, cut off when it is long. (Of a time its text: as Python it may not be there.)"""
    if not value.is_valid:
        return "NULL"
    if pa.types.is_string(value.type):
        text = value.as_py()
        return repr(text) if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]!r}... ({len(text):,} characters)"
    if pa.types.is_binary(value.type) or pa.types.is_fixed_size_binary(value.type):
        text = f"x'{value.as_py().hex()}'"
    elif pa.types.is_boolean(value.type):
        text = str(value.as_py()).lower()
    else:
        text = str(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


class ArrowRule:
    """A check by Arrow's functions. What is unknown (NULL) breaks nothing."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.name, self.severity, self.expected, self.columns = (
            check.name, check.severity, check.expected, check.columns
        )  # fmt: skip
        if not isinstance(check.rule, TextRule):
            self._breaks = _breaks(check.rule)
            self._reads = tuple(dict.fromkeys(ref.column for ref in p.refs(check.rule)))

    def broken(self, rows: pa.Table) -> Places:
        if isinstance(self.check.rule, TextRule):
            return _places(_text_breaks(self.check.rule, rows.column(self.check.rule.column)))
        pairs = {pair.name: _pair(pair, rows) for pair in self.check.pairs}
        asked = pa.table({name: pairs[name] if name in pairs else rows.column(name) for name in self._reads})
        asked = asked.append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
        found: Places = np.sort(asked.filter(self._breaks).column(_PLACE).to_numpy())
        return found


def _breaks(rule: Predicate) -> pc.Expression:
    """Where *rule* is false; of a NaN, which no comparison holds for, where it is not true."""
    from harness_pipelines.spec.arrow import to_arrow

    found = to_arrow(p.negate(rule))
    floats = [pc.is_nan(_field(ref)) for ref in p.refs(rule) if ref.type in (Primitive("float"), Primitive("double"))]
    return found | (reduce(operator.or_, floats) & ~to_arrow(p.comparisons(rule))) if floats else found


def _field(ref: Ref) -> pc.Expression:
    return pc.field(ref.path if ref.is_nested else ref.column)


def _pair(pair: Pair, rows: pa.Table) -> Any:
    left, right = (_values(ref, rows) for ref in (pair.left, pair.right))
    return _COMPARE[pair.op](left, right)


def _values(ref: Ref, rows: pa.Table) -> Any:
    column = rows.column(ref.column)
    return pc.struct_field(column, list(ref.path[1:])) if ref.is_nested else column


def _text_breaks(rule: TextRule, column: Any) -> Any:
    if rule.regex is not None:
        return pc.invert(pc.match_substring_regex(column, rule.regex))
    lengths = pc.utf8_length(column)
    return pc.less(lengths, rule.min_length) if rule.min_length is not None else pc.greater(lengths, rule.max_length)


def _places(broken: Any) -> Places:
    """The rows of a boolean column that are true; NULL is not."""
    return np.flatnonzero(pc.fill_null(broken, False).to_numpy())
