"""Specs that Python code gives: what no file could hold is refused by name, whatever its class does."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import pytest

from harness_pipelines.errors import HarnessError
from harness_pipelines.spec.table import Layout, TableSpec
from harness_pipelines.spec.wording import SpecError

GOOD: dict[str, Any] = {
    "table": "shop.orders",
    "columns": {"id": {"type": "long", "required": True}, "name": {"type": "string", "aliases": ["title"]}},
    "key": ["id"],
    "start": {"timestamp": "2026-01-01T00:00:00Z"},
    "delete": {"field": "op", "values": ["d"]},
    "tier": {"max_rows": 1000},
    "contract": {"columns": {"id": {"ge": 0}}},
}


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class NoText(str):
    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__


class NoNumber(int):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class NoEqual:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not compared")


class NoClass:
    @property  # type: ignore[misc]  # that of each object can be set
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class NoItems(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


class NoEntries(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no names")

    def __len__(self) -> int:
        return 1


def inside_itself() -> list[Any]:
    made: list[Any] = []
    made += [made, made]
    return made


def deep(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


def doubled(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made, made]
    return made


ODD: dict[str, Any] = {
    "an object": NoRepr(), "text": NoText("long"), "a number": NoNumber(3), "not compared": NoEqual(),
    "no class": NoClass(), "a dict": NoItems(a=1), "a mapping": NoEntries(), "inside itself": inside_itself(),
    "deep": deep(100_000), "doubled": doubled(40), "huge": 10**5_000, "huge below 0": -(10**5_000),
    "half a pair": "a\ud800b", "in a list": ["\udfff", 1], "in a dict": {"a": NoRepr()}, "huge name": {10**5_000: 1},
    "odd name": {"\ud800": 1}, "name without words": {NoRepr(): 1}, "huge in a list": [1, 10**5_000],
}  # fmt: skip
PLACES = [
    ("table",), ("topic",), ("format",), ("columns",), ("columns", "id"), ("columns", "id", "type"), ("start",),
    ("columns", "id", "required"), ("columns", "name", "aliases"), ("columns", "name", "default"), ("key",), ("key", 0),
    ("start", "timestamp"), ("delete",), ("delete", "values"), ("delete", "values", 0), ("tier", "max_rows"), ("mode",),
    ("contract", "columns", "id", "ge"), ("unknown",),
]  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_cannot_be_shown_is_refused_by_name(name):
    for place in PLACES[:: len(PLACES) if name == "doubled" else 1]:  # it takes a look at 200,000 values
        words = copy.copy(GOOD)
        around: Any = words
        for step in place[:-1]:
            around[step] = copy.copy(around[step])
            around = around[step]
        around[place[-1]] = ODD[name]
        for make in (lambda words=words: TableSpec(**words), lambda words=words: TableSpec.model_validate(words)):
            with pytest.raises(SpecError) as caught:
                make()
            said = str(caught.value)
            assert str(place[0]) in said
            assert len(said.encode()) < 1_000


@pytest.mark.parametrize("name", ODD)
def test_a_whole_spec_that_cannot_be_shown_is_refused(name):
    with pytest.raises(SpecError):
        TableSpec.model_validate(ODD[name])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"topic": "a\ud800"}, "TableSpec: topic: the text has half of a surrogate pair (U+D800) at character 2"),
        ({"tier": {"max_rows": 10**5_000}}, "tier.max_rows: a number has at most 400 digits"),
        ({"key": inside_itself()}, "key.0: it contains itself"),
        ({"key": deep(100)}, "nested more than 50 deep"),
        (
            {"format": NoRepr()},
            "format: a value of the class 'NoRepr' cannot be shown or compared; write text, a number",
        ),
        ({"format": NoRepr()}, "(it raised 'RuntimeError')"),
    ],
)
def test_the_message_names_the_setting_and_what_is_wrong(words, message):
    with pytest.raises(SpecError) as caught:
        TableSpec(**{**GOOD, **words})
    assert message in str(caught.value)


def test_a_part_that_is_built_alone_is_looked_at_too():
    with pytest.raises(HarnessError, match="Layout: columns"):
        Layout(columns=[NoRepr()])


def test_values_of_other_classes_that_mean_text_or_numbers_are_taken():
    class Word(StrEnum):
        ID = "id"

    words = {**GOOD, "key": (Word.ID,), "columns": {Word.ID: {"type": "long", "required": True}, "name": "string"}}
    assert TableSpec(**words).key == ("id",)
