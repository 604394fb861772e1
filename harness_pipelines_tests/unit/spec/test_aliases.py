"""Other names of a column's field: what they may be, and where a mistake is."""

from __future__ import annotations

from typing import Any

import pytest

from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.load import dump_spec, load_spec_text
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import Primitive
from harness_pipelines.spec.wording import SpecError

HEAD = "table: a.b\ncolumns:\n  id: long\n"


def told(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_spec_text(text, source="t.yaml")
    return str(caught.value).splitlines()


def test_a_column_has_aliases_in_its_long_form():
    orders = load_spec_text(HEAD + "  total: {type: int, aliases: [amount, sum total]}\n")
    assert [c.names for c in orders.columns] == [("id",), ("total", "amount", "sum total")]
    assert TableSpec.model_validate(dump_spec(orders)) == orders
    columns = (Column(name="id", type=Primitive("long"), aliases=("nr",)),)
    assert TableSpec(table="a.b", columns=columns).columns == columns


def test_a_record_has_a_column_by_the_first_of_its_names():
    column = Column(name="a", type=Primitive("int"), aliases=("b", "c"))
    assert [column.name_in(fields) for fields in ({"c", "a"}, {"c", "b"}, {"c"}, {"x"})] == ["a", "b", "c", "a"]


def test_a_name_that_differs_from_the_columns_own_in_case_alone_is_another_field():
    columns: Any = {"orderid": {"type": "int", "aliases": ["orderId", "OrderID"]}}
    assert TableSpec(table="a.b", columns=columns).columns[0].aliases == ("orderId", "OrderID")


@pytest.mark.parametrize(
    ("alias", "why"),
    [
        ("total", "the alias 'total' is the column's own name; remove it"),
        ("ID", "'ID' is a name of column 'id' (names ignore case); a field belongs to one column"),
        ("Later", "'Later' is a name of column 'later' (names ignore case); a field belongs to one column"),
        ("was_later", "'was_later' is a name of column 'later' (names ignore case); a field belongs to one column"),
        ("first", "the alias 'first' occurs twice"),
        ("''", "an alias has 1 to 63 bytes, not 0"),
        ("_op", "the alias '_op' is reserved, as are _kafka_*"),
        ("_kafka_x", "the alias '_kafka_x' is reserved, as are _kafka_*"),
        ("a\\b", "the alias 'a\\\\b' holds \" or \\, which JSON escapes"),
    ],
)
def test_an_alias_is_a_name_that_no_other_column_has_and_is_told_at_its_place(alias: str, why: str):
    text = f"{HEAD}  total:\n    type: int\n    aliases:\n      - first\n      - {alias}\n"
    found = told(text + "  later: {type: int, aliases: [WAS_LATER]}\n")
    if alias == "was_later":  # each of the two is told
        assert found.pop().startswith("t.yaml:9: columns.later.aliases.0: 'WAS_LATER' is a name of column 'total'")
    [line] = found
    assert line.startswith(f"t.yaml:8: columns.total.aliases.1: {why}")


@pytest.mark.parametrize("written", ["1", "{a: b}", "[1]", "[[a]]"])
def test_aliases_are_a_list_of_names(written: str):
    [line] = told(f"{HEAD}  x: {{type: int, aliases: {written}}}\n")
    assert line.startswith("t.yaml:4: columns.x.aliases: write a name or a list of names, such as [a, b], not ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "  k: {type: binary, from: raw_key, aliases: [x]}\n",
         "t.yaml:4: columns.k.aliases: `from: raw_key` reads no field of the record; remove its aliases"),
        ("table: a.b\nformat: raw\ncolumns:\n  v: {type: binary, aliases: [x]}\n",
         "t.yaml:3: columns: a value of `format: raw` has no fields, so its column has no other names; remove "
         "`aliases`"),
        (HEAD + "  t: {type: int, aliases: [x]}\ntransform: {derive: {t: id}}\n",
         "t.yaml:5: transform.derive.t: 't' has `aliases: [x]`, and a derived column is not read from the record; "
         "remove one"),
        (HEAD + "  t: {type: int, aliases: [old]}\ntransform:\n  fields: {Old: int}\n  filter: id > 0\n",
         "t.yaml:6: transform.fields.Old: column 't' has this alias already (names ignore case); `fields` are fields "
         "without a column"),
        (HEAD + "transform:\n  fields:\n    n:\n      type: int\n      aliases: [Id]\n  filter: id > 0\n",
         "t.yaml:8: transform.fields.n.aliases.0: 'Id' is a name of column 'id' (names ignore case); a field belongs "
         "to one column"),
        (HEAD + "transform:\n  fields: {n: {type: int, aliases: [m]}, M: int}\n  filter: id > 0\n",
         "t.yaml:5: transform.fields.n.aliases.0: 'm' is a name of column 'M' (names ignore case); a field belongs "
         "to one column"),
    ],
)  # fmt: skip
def test_only_fields_of_records_have_aliases_and_each_field_is_one_columns(text: str, message: str):
    assert told(text) == [message]


def test_a_column_in_python_is_judged_like_one_in_yaml():
    with pytest.raises(SpecError, match="the alias 'a' is the column's own name"):
        TableSpec(table="a.b", columns=(Column(name="a", type=Primitive("int"), aliases=("a",)),))
