"""A good spec that was changed at random is a spec or a refusal by name, and never anything else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import NoSchemas
from harness_pipelines.spec.load import dump_spec, load_spec_text
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.wording import SpecError
from harness_pipelines_tests.unit.spec.wrong import SPECS

_FULL = {
    "table": "shop.orders",
    "topic": "orders",
    "start": {"timestamp": "2026-01-01T00:00:00Z"},
    "format": "json",
    "columns": {
        "id": {"type": "long", "required": True},
        "name": {"type": "string", "aliases": ["title"], "default": "none"},
        "amount": "decimal(12,2)",
        "at": {"type": "timestamptz", "from": "epoch_ms"},
        "place": "struct<city: string, zip: list<int>>",
    },
    "views": "both",
    "layout": {"columns": ["id", "at"], "queries": [["id"], ["at"]], "sample": 0.01, "regions": 4},
    "tier": {"max_rows": 1000, "max_bytes": "1MB", "max_age": "5s"},
    "recall": {"max_rows": 10},
    "stop_above": {"refused": "5%", "of_last": 100},
    "retention": {"versions": "1h", "snapshots": 5, "lease": "1m", "grace": "30s"},
    "freshness": {"visible": "1s", "lake": "1m"},
    "mode": "manual",
}
_KEYED = {
    "table": "shop.people",
    "columns": {"id": "long", "city": "string", "total": "double"},
    "key": ["id"],
    "key_format": "json",
    "delete": {"field": "op", "values": ["d", 1, True]},
    "contract": {
        "columns": {"id": {"ge": 0, "not_null": True}, "city": {"isin": ["a", "b"], "matches": "[a-z]*"}},
        "rows": [{"name": "positive", "expr": "id > 0 or city = 'x'", "severity": "warn"}],
        "severities": {"id.ge": "stop"},
    },
    "transform": {"fields": {"price": "double"}, "derive": {"total": "price * 2"}, "filter": "price > 0"},
}
_SCHEMED = {
    "table": "shop.things",
    "topics": ["a", "b"],
    "format": "avro",
    "schema": {"text": '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'},
    "columns": {"id": "long"},
}
_NAMES = st.sampled_from(
    ["table", "columns", "type", "from", "key", "values", "max_rows", "text", "file", "id", "", "<<", "~", "1", "on",
     "\u0456d", "a b", "_op", "x" * 70]
)  # fmt: skip
_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), _NAMES,
    st.sampled_from(["long", "json", "avro", "5s", "9" * 30 + "d", "1e400", "struct<", "sum(id)", "{", "*a", "&b"]),
    st.lists(st.integers() | st.text(max_size=3), max_size=3), st.dictionaries(_NAMES, st.integers(), max_size=2),
)  # fmt: skip


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for word, one in entries for found in ((*place, word), *_places(one, (*place, word)))]


@st.composite
def _mutated(draw: st.DrawFn) -> str:
    """The YAML of a good spec after one to three changes."""
    spec = copy.deepcopy(draw(st.sampled_from([_FULL, _KEYED, _SCHEMED])))
    for _ in range(draw(st.integers(1, 3))):
        if not (places := _places(spec)):
            break
        *path, word = draw(st.sampled_from(places))
        around: Any = spec
        for step in path:
            around = around[step]
        match draw(st.sampled_from(["drop", "rename", "retype", "nest", "flatten"])):
            case "drop":
                del around[word]
            case "rename" if isinstance(around, dict):
                around[draw(_NAMES)] = around.pop(word)
            case "nest":
                around[word] = draw(st.sampled_from([[around[word]], {"value": around[word]}, {word: around[word]}]))
            case "flatten" if isinstance(around, dict) and isinstance(around[word], dict):
                around |= around.pop(word)
            case _:
                around[word] = draw(_VALUES)
    return yaml.safe_dump(
        spec, sort_keys=False, allow_unicode=draw(st.booleans()), default_flow_style=draw(st.booleans())
    )


@st.composite
def _garbled(draw: st.DrawFn) -> str:
    """The text of a spec, good or wrong, with a few characters that do not belong there."""
    good = [yaml.safe_dump(spec, sort_keys=False) for spec in (_FULL, _KEYED, _SCHEMED)]
    text = draw(st.sampled_from([*good, *SPECS.values()]))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        size = draw(st.integers(0, 3))
        text = (
            text[:at]
            + draw(st.sampled_from([*"{}[]:,-?!&*#|>'\"%@`\t\n\0\u00a0\ufeff\x85 <", "<<: ", "!!x ", ""]))
            + text[at + size :]
        )
    return text


def _judged(text: str) -> None:
    """Raises: whatever is neither a spec nor a refusal."""
    try:
        spec = load_spec_text(text, source="orders.yaml")
    except SpecError as error:
        assert error.problems and all(problem.message for problem in error.problems)
        return
    assert TableSpec.model_validate(dump_spec(spec)) == spec
    try:
        RecordCodec(spec, NoSchemas())
    except HarnessError as error:
        assert str(error)


def test_the_specs_are_good_before_they_are_changed():
    for spec in (_FULL, _KEYED, _SCHEMED):
        RecordCodec(load_spec_text(yaml.safe_dump(spec)), NoSchemas())


@settings(max_examples=350, deadline=None, suppress_health_check=list(HealthCheck))
@given(_mutated())
def test_a_spec_that_was_changed_is_a_spec_or_refused_by_name(text: str):
    _judged(text)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(_garbled())
def test_a_garbled_text_is_a_spec_or_refused_by_name(text: str):
    _judged(text)


@pytest.mark.long
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(_mutated() | _garbled())
def test_thousands_of_changed_specs_are_specs_or_refused_by_name(text: str):
    _judged(text)
