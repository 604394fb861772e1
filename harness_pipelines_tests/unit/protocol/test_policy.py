"""What a table makes of a new schema, by `evolution` of its spec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.schema.evolution import ColumnChanges, EvolutionRefused, evolved
from harness_pipelines.protocol.schema.policy import Offered, Refusal, tried, verdict
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import iceberg_fields, parse_type

COLUMNS = {
    "id": {"type": "long", "required": True}, "n": "int", "f": "float", "d": "decimal(6,2)",
    "s": {"type": "string", "required": True}, "day": {"type": "date", "from": "epoch_days"},
}  # fmt: skip


def spec(**words: Any) -> TableSpec:
    plain = {"table": "shop.orders", "format": "avro", "columns": COLUMNS, "layout": {"columns": ["id"]}}
    return TableSpec.model_validate({**plain, "evolution": "compatible", **words})


def field(name: str, type_: str | None, **more: Any) -> Offered:
    return Offered(name=name, type=None if type_ is None else parse_type(type_), **more)


#: Just what the columns are.
SAME = {
    "id": field("id", "long"), "n": field("n", "int"), "f": field("f", "float"), "d": field("d", "decimal(6,2)"),
    "s": field("s", "string"), "day": field("day", "int"),
}  # fmt: skip


def fits(offered: Offered, column: Column) -> str | None:
    """Numbers become numbers of any width, a count of days is a date; nothing else becomes anything else."""
    if offered.type == column.type or (column.source and str(offered.type) == "int"):
        return None
    numbers = ("int", "long", "float", "double", "decimal")
    if all(str(one).startswith(numbers) for one in (offered.type, column.type)):
        return None
    return f"{offered.type} gives no {column.type}"


def judged(*fields: Offered, table: TableSpec | None = None, without: tuple[str, ...] = ()) -> ColumnChanges | Refusal:
    offered = {**SAME, **{one.aliases[0] if one.aliases else one.name: one for one in fields}}
    return verdict(table or spec(), [f for name, f in offered.items() if name not in without], fits)


def why(found: ColumnChanges | Refusal) -> str:
    assert isinstance(found, Refusal)
    return found.why


def test_a_schema_of_the_tables_columns_asks_for_nothing():
    assert not judged()
    assert not judged(table=spec(evolution="strict"))
    assert not judged(field("x", "string"), table=spec(evolution="manual"))


@pytest.mark.parametrize(
    ("offered", "changes"),
    [
        (field("more", "string"), ColumnChanges(add=(Column(name="more", type=parse_type("string")),))),
        (field("n", "long"), ColumnChanges(widen=(("n", parse_type("long")),))),
        (field("f", "double"), ColumnChanges(widen=(("f", parse_type("double")),))),
        (field("d", "decimal(12,2)"), ColumnChanges(widen=(("d", parse_type("decimal(12,2)")),))),
        (field("d", "decimal(6,1)"), ColumnChanges(widen=(("d", parse_type("decimal(7,2)")),))),
        (field("s", "string", nullable=True), ColumnChanges(optional=("s",))),
        (field("count", "int", aliases=("n",)), ColumnChanges(rename=(("n", "count"),))),
        (
            field("count", "long", aliases=("n",)),
            ColumnChanges(rename=(("n", "count"),), widen=(("count", parse_type("long")),)),
        ),
    ],
)
def test_what_can_be_taken_is_asked_for(offered: Offered, changes: ColumnChanges):
    assert judged(offered) == changes


def test_what_is_narrower_or_was_left_out_changes_nothing():
    assert not judged(field("d", "decimal(4,2)"), without=("n", "f", "day"))
    assert not judged(field("id", "int"))
    wide = spec(columns={**COLUMNS, "n": "long", "f": "double"})
    assert not judged(table=wide)


def test_a_key_stays_required_and_its_nulls_are_refused_one_by_one():
    assert not judged(field("id", "long", nullable=True), table=spec(key=["id"]))
    assert not judged(field("id", "long", nullable=True))  # clustered by it


@pytest.mark.parametrize(
    ("offered", "told"),
    [
        (field("n", "string"), "column 'n' is int and cannot become string: .* it can become long"),
        (field("d", "decimal(6,3)"), r"it can become decimal\(p,2\) with more digits than 6"),
        (field("d", "decimal(38,0)"), "with these columns the spec would not hold"),
        (field("day", "string"), "column 'day' is date and cannot become string"),
        (field("u", None, why="a union of int, string is no column"), "'u' is new, .* a union of int, string"),
        (field("_op", "int"), "reserved"),
        (field("ID", "int"), "there is a column 'id' already"),
        (field("key", "long", aliases=("id",)), "the batch view is clustered by column 'id'"),
    ],
)
def test_what_cannot_be_taken_refuses_the_schema_and_says_what_could(offered: Offered, told: str):
    with pytest.raises(EvolutionRefused, match=told):
        raise EvolutionRefused(why(judged(offered, field("more", "string"))))


def test_columns_that_rows_are_found_by_refuse_a_wider_schema():
    narrow = spec(columns={**COLUMNS, "id": {"type": "int", "required": True}})
    assert "is clustered by column 'id'" in why(judged(table=narrow))
    keyed = spec(columns={**COLUMNS, "id": {"type": "int", "required": True}}, key=["id"])
    assert "'id' is part of the key" in why(judged(table=keyed))


def test_a_required_column_that_is_left_out_refuses_the_schema_and_says_the_way_on():
    assert "`harness evolve shop.orders --optional s`" in why(judged(without=("s",)))


def test_two_schemas_that_rename_to_and_fro_do_not_change_a_table_back_and_forth():
    there = judged(field("count", "int", aliases=("n",)))
    assert isinstance(there, ColumnChanges)
    after = tried(spec(), there).spec
    assert not judged(field("n", "int", aliases=("count",)), table=after, without=())
    assert not judged(table=after)  # old records, by the old name


def test_two_fields_that_say_they_were_the_same_refuse_the_schema():
    twins = [field("a", "int", aliases=("n",)), field("b", "int", aliases=("n",))]
    offered = [*(f for name, f in SAME.items() if name != "n"), *twins]
    assert "`a` and `b` both have the alias `n`" in why(verdict(spec(), offered, fits))


def test_a_column_is_not_dropped_by_hand_where_its_field_would_bring_it_back():
    with pytest.raises(EvolutionRefused, match="would come back .* apply `evolution: manual` before"):
        evolved(spec(), iceberg_fields(spec().stored), ColumnChanges(drop=("n",)), next_id=100)


@pytest.mark.parametrize(
    ("offered", "without", "told"),
    [
        ((field("more", "string"),), (), "field 'more' has no column"),
        ((), ("n",), "column 'n' has no field"),
        ((field("n", "long"),), (), "field 'n' is long, the column is int"),
        ((field("n", "string"),), (), "field 'n' does not give column 'n'"),
    ],
)
def test_strict_takes_what_the_columns_are_and_nothing_else(
    offered: tuple[Offered, ...], without: tuple[str, ...], told: str
):
    assert told in why(judged(*offered, table=spec(evolution="strict"), without=without))


def test_strict_takes_a_field_by_an_alias_of_its_column():
    renamed = {**COLUMNS, "count": {"type": "int", "aliases": ["n"]}}
    del renamed["n"]
    assert not judged(table=spec(evolution="strict", columns=renamed))


def test_a_field_that_has_a_column_is_not_taken_for_the_one_that_it_is_said_to_have_been():
    both = spec(columns={**COLUMNS, "old": "float"})
    assert not judged(Offered(name="d", type=parse_type("decimal(6,2)"), aliases=("old",)), table=both, without=("d",))


NAMES = st.sampled_from(["n", "f", "d", "s", "a", "b"])
FIELDS = st.builds(
    field,
    NAMES,
    st.sampled_from(["int", "long", "float", "double", "decimal(6,2)", "decimal(9,2)", "string", "date"]),
    nullable=st.booleans(),
    aliases=st.lists(NAMES, max_size=1).map(tuple),
)


@given(st.lists(st.lists(FIELDS, unique_by=lambda f: f.name, max_size=5), max_size=6))
def test_what_was_taken_once_asks_for_nothing_more_however_schemas_alternate(schemas: list[list[Offered]]):
    table, base = spec(), [SAME["id"], SAME["s"]]
    met = [[*(f for f in base if f.name not in {one.name for one in more}), *more] for more in schemas]
    took: list[list[Offered]] = []
    for fields in met:
        found = verdict(table, fields, fits)
        if isinstance(found, Refusal):
            continue
        table = tried(table, found).spec if found else table
        took.append(fields)
        assert not verdict(table, fields, fits)
        assert not any(isinstance(now := verdict(table, old, fits), ColumnChanges) and now for old in took)
