"""A pandera schema as a contract: checks of one value or one row; other checks are refused.

Of the schema its columns and checks are read, whichever of pandera's backends it was written for; pandera's own
``validate`` is not called: not every backend reports which rows of a batch are wrong.
"""

from __future__ import annotations

import datetime as dt
import importlib
import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from harness_pipelines.errors import HarnessError
from harness_pipelines.extras import MODULES, needs, pip_install
from harness_pipelines.formats.contract.checks import ArrowRule, Places, RowRule
from harness_pipelines.protocol.shape import intake_of
from harness_pipelines.spec.predicate import Ref
from harness_pipelines.spec.sections.contract import Check, Contract, Severity, TextRule, check_regex, column_check
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import Primitive
from harness_pipelines.spec.where import WhereError
from harness_pipelines.spec.wording import shown


class ContractUnusable(HarnessError):
    """A table's contract is not installed, or has a check that one record alone cannot answer."""

    way_on = "install the contract's module where the worker runs, or correct it; the worker looks again by itself"
    setting = ("contract",)


class _Refuses(Exception):
    """A part of the schema that is no check of a value or a row."""


#: pandera's checks that are ours under another word, and the name of their argument.
_WORDS: Mapping[str, tuple[str, str]] = {
    "equal_to": ("eq", "value"),
    "not_equal_to": ("ne", "value"),
    "greater_than": ("gt", "min_value"),
    "greater_than_or_equal_to": ("ge", "min_value"),
    "less_than": ("lt", "max_value"),
    "less_than_or_equal_to": ("le", "max_value"),
    "isin": ("isin", "allowed_values"),
    "notin": ("notin", "forbidden_values"),
}
#: pandera's checks of text, the name of their argument, and the expression that is searched for.
_PATTERNS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "str_matches": ("pattern", lambda pattern: rf"\A(?:{pattern})"),
    "str_contains": ("pattern", lambda pattern: pattern),
    "str_startswith": ("string", lambda text: rf"\A{_quoted(text)}"),
    "str_endswith": ("string", lambda text: rf"{_quoted(text)}\z"),
}
#: Words of a schema, or of a column, that say nothing about a value or a row, and why they are refused.
_BOTH = {
    "unique": "a record's verdict must not depend on other records; a `key` in the spec makes rows unique",
    "coerce": "values are taken as the spec's columns say, and never changed",
    "drop_invalid_rows": "no record is dropped; `severity: quarantine` keeps it apart",
    "parsers": "values are taken as they are, and never changed",
}
_SCHEMA_WORDS: Mapping[str, str] = {
    **_BOTH,
    "add_missing_columns": "the columns are those of the spec",
    "index": "a table has no index",
}
_COLUMN_WORDS: Mapping[str, str] = {
    **_BOTH,
    "default": "values are taken as they are, and never changed",
    "regex": "a column is named as it is",
}


def rules_of(spec: TableSpec) -> list[RowRule]:
    """The checks of the pandera schema that *spec* names. Raises: ContractUnusable."""
    contract = spec.contract
    assert contract is not None
    try:
        rules = list(_Reader(spec, contract).rules(_schema(spec, contract)))
    except (_Refuses, WhereError) as why:
        raise ContractUnusable(
            f"{spec.table}: the contract {_where(contract)} cannot be kept record by record: {why}; nothing was taken. "
            "Change the schema, or leave that out of it, and apply the spec or start the worker again"
        ) from why
    known = [rule.name for rule in rules]
    if unknown := [name for name in contract.severities if name not in known]:
        raise ContractUnusable(
            f"{spec.table}: `severities` names {unknown[0]!r}, and the contract {_where(contract)} has no such check; "
            f"it has: {', '.join(known)}. Correct `severities` in the spec and apply it"
        )
    if not rules:
        raise ContractUnusable(
            f"{spec.table}: the contract {_where(contract)} has no check; write some, or remove `contract`"
        )
    if not intake_of(spec).buffered and (other := [rule for rule in rules if rule.severity != "quarantine"]):
        raise ContractUnusable(
            f"{spec.table}: the check {other[0].name} of {_where(contract)} is to {other[0].severity}, which does not "
            "work with `buffer: none` yet; set `severities` in the spec to quarantine for it, or use `buffer: postgres`"
        )
    return rules


def _where(contract: Contract) -> str:
    return f"{contract.module}.{contract.name}"


def _schema(spec: TableSpec, contract: Contract) -> Any:
    """The schema object. Raises: ContractUnusable."""
    assert contract.module is not None and contract.name is not None
    way_on = (
        "Install the module where the table's workers run (Spark's executors too), or put its folder into PYTHONPATH, "
        "and apply the spec or start the worker again; no record was taken"
    )
    _look_again()  # it may have been installed since the last try
    try:
        found: Any = importlib.import_module(contract.module)
    except ModuleNotFoundError as error:
        if error.name and (contract.module == error.name or contract.module.startswith(f"{error.name}.")):
            raise ContractUnusable(
                f"{spec.table}: the contract's module {contract.module!r} is not there ({error}). {way_on}"
            ) from error
        raise ContractUnusable(
            f"{spec.table}: the contract's module {contract.module!r} needs {error.name!r}, which is not there"
            f"{_of_the_extra(error.name)}. {way_on}"
        ) from error
    except (Exception, SystemExit) as error:  # whatever the user's code raises, other tables continue
        raise ContractUnusable(
            f"{spec.table}: the contract's module {contract.module!r} cannot be imported: {type(error).__name__}: "
            f"{error}. Repair it. {way_on}"
        ) from error
    for part in contract.name.split("."):
        if not hasattr(found, part):
            raise ContractUnusable(
                f"{spec.table}: the contract's module {contract.module!r} ({getattr(found, '__file__', None)}) has no "
                f"{contract.name!r}. {way_on}"
            )
        found = getattr(found, part)
    return _as_schema(spec, contract, found)


def _of_the_extra(module: str | None) -> str:
    return f": {pip_install('contracts')}" if (module or "").partition(".")[0] in MODULES["contracts"] else ""


def _look_again() -> None:
    """Let the next import see what was installed meanwhile.

    `invalidate_caches` deletes what it listed a moment before, and fails where another thread, of whatever library,
    deleted the entry first. Each failure leaves fewer entries, so the loop ends.
    """
    while True:
        try:
            importlib.invalidate_caches()
        except KeyError:
            continue
        return


def _as_schema(spec: TableSpec, contract: Contract, found: Any) -> Any:
    with needs("contracts", f"{spec.table}: the contract {_where(contract)}"):
        from pandera.api.dataframe.container import DataFrameSchema
        from pandera.api.dataframe.model import DataFrameModel

    if isinstance(found, type) and issubclass(found, DataFrameModel):
        try:
            found = found.to_schema()
        except (Exception, SystemExit) as error:  # of pandera, about the user's class
            raise ContractUnusable(
                f"{spec.table}: pandera makes no schema of {_where(contract)}: {type(error).__name__}: {error}; no "
                "record was taken. Repair the class, and apply the spec or start the worker again"
            ) from error
    if not isinstance(found, DataFrameSchema):
        raise ContractUnusable(
            f"{spec.table}: the contract {_where(contract)} is {type(found).__name__}, no pandera DataFrameModel or "
            "DataFrameSchema (of pandera.pandas, pandera.polars or pandera.pyarrow); no record was taken. Name one in "
            "`contract` and apply the spec"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the schema of one table's contract."""

    spec: TableSpec
    contract: Contract

    def rules(self, schema: Any) -> Iterator[RowRule]:
        """Raises: _Refuses, WhereError."""
        _no_others(schema, _SCHEMA_WORDS, "the schema")
        names = _Names()
        for name, column in schema.columns.items():
            yield from self._of_column(str(name), column, names)
        for check in schema.checks:
            yield self._of_rows(check, schema, names)

    def _of_column(self, name: str, column: Any, names: _Names) -> Iterator[RowRule]:
        types = {c.name: c.type for c in self.spec.columns}
        _no_others(column, _COLUMN_WORDS, f"column {name!r}")
        if name not in types:
            if not column.required and not column.checks:
                return
            raise _Refuses(f"the table has no column {name!r}; columns: {', '.join(types)}")
        ref = Ref((name,), types[name])
        if not column.nullable:
            yield self._arrow(f"{name}.not_null", None, ref, *column_check("not_null", True, ref))
        for check in column.checks:
            kind = _kind(check, f"column {name!r}")
            yield from self._of_check(check, kind, ref, names)

    def _of_check(self, check: Any, kind: str | None, ref: Ref, names: _Names) -> Iterator[RowRule]:
        column, given = ref.column, check.statistics
        if not check.ignore_na:
            yield self._arrow(
                names.free(f"{column}.{check.name}_not_null"), check, ref, *column_check("not_null", True, ref)
            )
        if kind is None:
            name = names.free(f"{column}.{check.name}")
            yield ValueRule(name, self._severity(name, check), _said(check), (column,), _asked(check))
        elif kind in _WORDS:
            word, argument = _WORDS[kind]
            value = _plain(given[argument])
            yield self._arrow(names.free(f"{column}.{word}"), check, ref, *column_check(word, value, ref))
        elif kind == "in_range":
            low = "ge" if given.get("include_min", True) else "gt"
            high = "le" if given.get("include_max", True) else "lt"
            for word, argument in ((low, "min_value"), (high, "max_value")):
                value = _plain(given[argument])
                yield self._arrow(names.free(f"{column}.{word}"), check, ref, *column_check(word, value, ref))
        else:
            for word, rule in _text_rules(kind, given, ref):
                yield self._arrow(names.free(f"{column}.{word}"), check, ref, _said(check), rule)

    def _of_rows(self, check: Any, schema: Any, names: _Names) -> RowRule:
        if _kind(check, "the whole schema") is not None:
            raise _Refuses(f"the check {check.name!r} of the whole schema; write it at its columns")
        columns = tuple(name for name in map(str, schema.columns) if name in {c.name for c in self.spec.columns})
        name = names.free(str(check.name))
        ask = _asked(check)
        return RowFunction(name, self._severity(name, check), _said(check), columns, ask, bool(check.ignore_na))

    def _arrow(self, name: str, check: Any, ref: Ref, expected: str, rule: Any) -> RowRule:
        severity = self._severity(name, check)
        return ArrowRule(Check(name=name, severity=severity, expected=expected, rule=rule, columns=(ref.column,)))

    def _severity(self, name: str, check: Any) -> Severity:
        said: Severity = "warn" if check is not None and check.raise_warning else self.contract.severity
        return self.contract.severities.get(name, said)


class _Names:
    """Names that are not taken: the second check of a kind gets a number."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def free(self, name: str) -> str:
        found, number = name, 1
        while found in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._taken.add(found)
        return found


def _no_others(part: Any, words: Mapping[str, str], where: str) -> None:
    """Refuse by name what is about rows together, or changes values."""
    for word, why in words.items():
        said = getattr(part, word, None)
        if said is not None and said is not False and not (isinstance(said, list) and not said):
            raise _Refuses(f"`{word}` of {where}: {why}")


def _kind(check: Any, where: str) -> str | None:
    """The name of pandera's own check; None for a function of the user's that is asked value by value."""
    from pandera.api.function_dispatch import Dispatcher
    from pandera.api.hypotheses import Hypothesis

    if isinstance(check, Hypothesis):
        raise _Refuses(f"the hypothesis test {check.name!r} of {where} is about all values together")
    if check.groupby is not None:
        raise _Refuses(f"the check {check.name!r} of {where} groups values (`groupby`)")
    kind = check.registry_name
    if isinstance(check._check_fn, Dispatcher):  # of pandera; a function of the user's may have the same name
        if kind in _WORDS or kind in _PATTERNS or kind in ("in_range", "str_length"):
            return str(kind)
        raise _Refuses(f"the check {kind!r} of {where} is about all values together")
    if not check.element_wise:
        raise _Refuses(
            f"the check {check.name!r} of {where} gets a whole column, and its verdict may depend on all values in it; "
            "write it for one value (`element_wise=True`)"
        )
    return None


def _text_rules(kind: str, given: Mapping[str, Any], ref: Ref) -> Iterator[tuple[str, TextRule]]:
    if ref.type != Primitive("string"):
        raise WhereError(f"`{kind}` is for text, {ref.column} is {ref.type}")
    if kind == "str_length":
        exact = given.get("exact_value")
        low, high = (given.get("min_value"), given.get("max_value")) if exact is None else (exact, exact)
        if low is not None:
            yield "min_length", TextRule(column=ref.column, min_length=int(low))
        if high is not None:
            yield "max_length", TextRule(column=ref.column, max_length=int(high))
        return
    argument, searched = _PATTERNS[kind]
    pattern = given[argument]
    if isinstance(pattern, re.Pattern):
        if pattern.flags & ~re.UNICODE:
            raise _Refuses(f"the flags of {pattern.pattern!r} of column {ref.column!r}; write them inside it: (?i)...")
        pattern = pattern.pattern
    regex = searched(pattern)
    check_regex(regex)
    yield kind, TextRule(column=ref.column, regex=regex)


def _quoted(text: str) -> str:
    """*text* as RE2 finds it as it is."""
    return "".join(c if c.isalnum() or not c.isascii() else f"\\x{{{ord(c):x}}}" for c in text)


def _said(check: Any) -> str:
    return str(check.error or check.description or check.title or check.name)


def _plain(value: Any) -> Any:
    """A value of Python code as a spec writes it."""
    if isinstance(value, set | frozenset):
        return tuple(sorted(map(_plain, value), key=repr))
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(map(_plain, value))
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat(" ") if isinstance(value, dt.datetime) else value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise _Refuses(f"{value} is no bound of a check")
    if isinstance(value, bool | int | float | str):
        return value
    if type(value).__name__ == "Decimal":
        return str(value)
    raise _Refuses(f"{shown(value)} ({type(value).__name__}) is no number, text, date or time")


def _asked(check: Any) -> Callable[[Any], bool]:
    """The user's function; what raises, does not hold."""
    function, given = check._check_fn, check._check_kwargs

    def holds(value: Any) -> bool:
        try:
            return bool(function(value, **given))
        except (Exception, SystemExit):  # of the user's code, which cannot say yes to this value
            return False

    return holds


@dataclass(frozen=True, slots=True)
class ValueRule:
    """A function of the user's, asked for each value that is not NULL."""

    name: str
    severity: Severity
    expected: str
    columns: tuple[str, ...]
    holds: Callable[[Any], bool]

    def broken(self, rows: pa.Table) -> Places:
        values = rows.column(self.columns[0]).to_pylist()
        return np.array([i for i, v in enumerate(values) if v is not None and not self.holds(v)], np.int64)


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function of the user's, asked for each row as a mapping of the schema's columns."""

    name: str
    severity: Severity
    expected: str
    columns: tuple[str, ...]
    holds: Callable[[Any], bool]
    ignores_nulls: bool  #: as pandera: a row with any NULL passes

    def broken(self, rows: pa.Table) -> Places:
        found = [
            i
            for i, row in enumerate(rows.select(self.columns).to_pylist())
            if not (self.ignores_nulls and None in row.values()) and not self.holds(row)
        ]
        return np.array(found, np.int64)
