"""No table has two names that one of its engines, or a reader, takes for one."""

from __future__ import annotations

import re
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness_pipelines.protocol.schema.evolution import ColumnChanges, EvolutionRefused, evolved
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import Primitive, iceberg_fields
from harness_pipelines.spec.wording import SpecError, folded

CHARACTERS = [c for c in map(chr, range(sys.maxunicode + 1)) if c != unicodedata.normalize("NFKD", c).casefold()]
#: What looks or compares like another, often; the rest of Unicode comes beside.
LETTERS = st.one_of(
    st.sampled_from("aAkKiIs\u017f\u212a\u0130\u0131\u0307\u0301\u0345éÉßẞς\u03c3Σﬁfi\uff41\uff21㎏Ωω²2"),
    st.sampled_from(" \u200b\u202e\ufe0f\u3164\u034f"),
    st.characters(codec="utf-8"),
)
NAMES = st.text(LETTERS, min_size=1, max_size=4)


def java_equal(one: str, other: str) -> bool:
    """String.equalsIgnoreCase, by which Spark resolves names."""
    return len(one) == len(other) and all(
        a == b or _upper(a) == _upper(b) or _lower(_upper(a)) == _lower(_upper(b))
        for a, b in zip(one, other, strict=True)
    )


def _upper(letter: str) -> str:
    """Character.toUpperCase: a letter whose capital would be two letters has none."""
    return letter.upper() if len(letter.upper()) == 1 else letter


def _lower(letter: str) -> str:
    return "i" if letter == "\u0130" else letter.lower() if len(letter.lower()) == 1 else letter


#: What the engines, their folders and readers compare names by.
SAME = {
    "Postgres, Iceberg": lambda name: name,
    "Spark, lower case": lambda name: name.lower(),
    "DuckDB": lambda name: "".join(c.lower() if c.isascii() else c for c in name),
    "NFC": lambda name: unicodedata.normalize("NFC", name),
    "NFD, a folder of macOS": lambda name: unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold()),
    "NFKC, Python's attributes": lambda name: unicodedata.normalize("NFKC", name),
    "the eye": lambda name: "".join(c for c in name if unicodedata.category(c) != "Cf").strip(),
}


def accepted(*names: str) -> bool:
    try:
        TableSpec(table="a.b", columns=tuple(Column(name=name, type=Primitive("int")) for name in names))
    except SpecError:
        return False
    return True


def test_every_letter_folds_like_those_that_java_takes_for_it():
    wrong = [
        c
        for c in (*CHARACTERS, *map(str.lower, CHARACTERS))
        if not folded(c) == folded(_upper(c)) == folded(_lower(_upper(c)))
    ]
    assert wrong == []


def test_a_name_folds_to_what_folds_to_itself():
    assert [c for c in CHARACTERS if folded(folded(c)) != folded(c)] == []


@given(NAMES, NAMES)
@example("\u212a", "k")
@example("é", "e\u0301")
@example("ﬁ", "fi")
@example("\u0130", "\u0131")
@example("a ", "a")
@example("\uff41", "a")
@example("a\u200b", "a")
@example("a\ufe0f", "a")
def test_no_two_accepted_names_are_one_to_an_engine(one: str, other: str):
    for variant in (other, unicodedata.normalize("NFD", one), unicodedata.normalize("NFKC", one), one.swapcase()):
        if accepted(one, variant):
            assert not java_equal(one, variant)
            assert [rule for rule, plain in SAME.items() if plain(one) == plain(variant)] == []


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("k", "\u212a", "character 1 is U+212A KELVIN SIGN"),
        ("é", "e\u0301", "character 2 is U+0301 COMBINING ACUTE ACCENT"),
        ("a", "a ", "blanks around them"),
        ("fi", "ﬁ", "character 1 is U+FB01 LATIN SMALL LIGATURE FI"),
        ("a", "a\ufe0f", "character 2 is U+FE0F VARIATION SELECTOR-16"),
    ],
)
def test_the_second_of_two_such_names_is_refused_by_its_odd_letter_by_apply_and_evolve(one: str, other: str, why: str):
    with pytest.raises(SpecError, match=re.escape(why)) as refused:
        TableSpec.model_validate({"table": "a.b", "columns": {one: "int", other: "int"}})
    assert f"also as {one!r}" in str(refused.value) and "; keep one, or give one of the fields" in str(refused.value)
    with pytest.raises(SpecError, match=re.escape(why)):
        TableSpec.model_validate({"table": "a.b", "columns": {"s": f"struct<`{one}`: int, `{other}`: int>"}})

    spec = TableSpec.model_validate({"table": "a.b", "columns": {one: "int", "n": "int"}, "views": "stream"})
    fields = tuple(iceberg_fields(spec.columns))
    for changes in (
        ColumnChanges(add=(Column(name=other, type=Primitive("int")),)),
        ColumnChanges(rename=(("n", other),)),
    ):
        with pytest.raises(EvolutionRefused, match=re.escape(f"{one!r}") + ".*" + re.escape(why)):
            evolved(spec, fields, changes, next_id=3)


def test_the_other_spelling_of_a_columns_own_field_is_its_alias():
    [column] = TableSpec.model_validate(
        {"table": "a.b", "columns": {"é": {"type": "int", "aliases": ["e\u0301", "É", " é"]}}}
    ).columns
    assert column.name_in({"e\u0301"}) == "e\u0301"


def test_a_reserved_name_is_reserved_in_every_spelling():
    assert not any(map(accepted, ("_\u212aafka_x", "\uff3fop", "_op ", "_POS\ufe0f")))
