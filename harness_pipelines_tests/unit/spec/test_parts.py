"""Parts of a spec that Python code builds alone."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from harness_pipelines import spec as spec_package
from harness_pipelines.read.report.costs import Prices
from harness_pipelines.spec.columns import Column, ColumnWords
from harness_pipelines.spec.part import SpecPart
from harness_pipelines.spec.sections.catalogs import CatalogSpec, SecretPlace
from harness_pipelines.spec.sections.contract import ColumnChecks, Contract, RowCheck, StopAbove
from harness_pipelines.spec.sections.formats import GivenSchema
from harness_pipelines.spec.sections.keys import DeleteRule
from harness_pipelines.spec.sections.transform import Transform
from harness_pipelines.spec.table import (
    BufferRules,
    Freshness,
    Layout,
    RecallRules,
    Retention,
    ServeRules,
    StartAt,
    TableSpec,
    TierRules,
)
from harness_pipelines.spec.types import DecimalType, Primitive
from harness_pipelines.spec.wording import SpecError

PARTS: dict[type[SpecPart], tuple[dict[str, Any], str]] = {
    Layout: ({"sample": 3}, "Layout: sample: write a number of at most 0.5, not 3"),
    TierRules: ({"max_age": "soon"}, "TierRules: max_age: 'soon' is not a duration; write a number above 0"),
    BufferRules: ({"max_bytes": "1MB"}, "BufferRules: max_bytes: 1,048,576 bytes are less than two segments"),
    RecallRules: ({"max_row": 3}, "RecallRules: max_row: unknown setting `max_row` (did you mean `max_rows`?)"),
    ServeRules: ({"over": "stop"}, "ServeRules: over: 'stop' is not allowed; allowed: lake, refuse"),
    Retention: ({"lease": "25h"}, "Retention: lease: a lease lasts at most 24h, not 25h"),
    Freshness: ({"lake": None}, "Freshness: lake: None is not a duration"),
    StartAt: ({}, "StartAt: timestamp: `timestamp` is missing"),
    DeleteRule: ({"field": "op"}, "DeleteRule: values: `values` is missing; write `values: [d]`"),
    GivenSchema: ({}, "GivenSchema: text: `text` is missing"),
    Transform: ({"filter": 5}, 'Transform: filter: write an SQL expression as text, such as "amount > 0", not 5'),
    ColumnWords: ({"type": "long", "nullable": True}, "nullable` (did you mean `required`?)"),
    Contract: ({"columns": {"a": {"min": 1}}}, "Contract: columns.a.min: unknown setting `min` (did you mean `ge`?)"),
    ColumnChecks: ({"ge": [1]}, "ColumnChecks: ge: write a number, text, true or false, not [1]"),
    RowCheck: ({"name": "a b", "expr": "a > 0"}, "does not have the form of shipped_after_order"),
    StopAbove: ({"refused": 2}, "StopAbove: refused: 2 is not a share; write 0% to 100%"),
    CatalogSpec: ({"name": "a", "type": "hive"}, "CatalogSpec: type: `type: hive` is planned"),
    SecretPlace: ({}, "SecretPlace: write either {env: NAME} or {file: PATH}"),
    Prices: ({"lake_gb_month": -1}, "Prices: lake_gb_month: write a number of at least 0, not -1"),
    TableSpec: ({"table": "a.b"}, ": columns: `columns` is missing"),
}


def parts(of: type[SpecPart] = SpecPart) -> set[type[SpecPart]]:
    """All models of a spec."""
    return {part for one in of.__subclasses__() for part in (one, *parts(one))}


def test_each_part_of_a_spec_is_tried_alone():
    modules = {part.__module__ for part in parts()}
    assert parts() == PARTS.keys()
    assert {"harness_pipelines.spec.table", "harness_pipelines.spec.sections.catalogs"} < modules


def test_no_model_of_a_spec_is_without_its_sentences():
    for found in pkgutil.iter_modules(spec_package.__path__, f"{spec_package.__name__}."):
        models = vars(importlib.import_module(found.name)).values()
        mine = {one for one in models if isinstance(one, type) and issubclass(one, BaseModel)}
        assert mine <= {BaseModel, SpecPart, *PARTS}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_a_part_that_is_built_alone_is_refused_in_the_sentences_of_a_file(part):
    words, message = PARTS[part]
    ways: tuple[Callable[[], object], ...] = (
        lambda: part(**words),
        lambda: part.model_validate(words),
        lambda: part.model_validate_json(json.dumps(words)),
    )
    for made in ways:
        with pytest.raises(SpecError, match=re.escape(message).replace("None", "(None|null)")) as refused:
            made()
        assert refused.value.__cause__ is None and "pydantic" not in str(refused.value)
    with pytest.raises(SpecError, match=f"{part.__name__}: (write settings, not 5; allowed: |a spec is a mapping)"):
        part.model_validate(5)


def test_parts_of_a_spec_are_what_their_settings_are():
    moment: Any = "2026-01-01T00:00:00Z"
    told: Any = {"layout": {"columns": "n"}, "tier": {"max_age": 300}, "start": {"timestamp": moment}}
    made: Any = {"layout": Layout(columns=("n",)), "tier": TierRules(max_age=300), "start": StartAt(timestamp=moment)}
    table: Any = {"table": "a.b", "columns": {"n": "long"}}
    assert TableSpec(**table, **made) == TableSpec(**table, **told)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"type": 5}, "columns.n.type: expected a type, found '5'"),
        ({"type": "lnog"}, "columns.n.type: "),
        ({"type": DecimalType(99, 3)}, "columns.n.type: "),
        ({"type": Primitive("long"), "source": "nope"}, "columns.n.from: 'nope' is not allowed"),
        ({"type": Primitive("long"), "required": "x"}, "columns.n.required: write true or false, not 'x'"),
        ({"type": Primitive("long"), "aliases": (5,)}, "columns.n.aliases: write a name or a list of names"),
        ({"type": Primitive("long"), "default": [5]}, "columns.n.default: write a number, text, true or false"),
    ],
)
def test_a_wrong_column_that_python_made_is_refused(words, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        TableSpec(table="a.b", columns=(Column(name="n", **words),))


def test_a_column_that_python_made_has_its_type_and_aliases():
    made: Any = Column(name="n", type="long", aliases="m")  # type: ignore[arg-type]  # as a file has them
    assert TableSpec(table="a.b", columns=(made,)).columns == (
        Column(name="n", type=Primitive("long"), aliases=("m",)),
    )
