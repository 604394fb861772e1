"""The rule of fsck for the columns of the views."""

from __future__ import annotations

from harness_pipelines.audit.fsck.columns import columns_of_views
from harness_pipelines_tests.unit.audit.books import books, details, file, surveyed

ID = {"id": 1, "name": "id", "required": False, "type": "long"}
AT = {"id": 2, "name": "at", "required": False, "type": {"type": "struct", "fields": [{**ID, "id": 3, "name": "x"}]}}


def test_a_field_of_another_id_another_type_and_one_that_is_missing_are_named():
    sound = books(fields=[ID, AT])

    assert details(columns_of_views, sound, survey=surveyed([file()], fields=[AT, ID])) == []
    [found] = details(columns_of_views, sound, survey=surveyed([file()], fields=[{**ID, "id": 7}, AT]))
    assert "column id of shop.orders__stream is field 7 of type long, in schema 1 of the ledger it is field 1" in found
    [found] = details(columns_of_views, sound, survey=surveyed([file()], fields=[{**ID, "type": "int"}, AT]))
    assert "is field 1 of type int" in found
    gone = details(columns_of_views, sound, survey=surveyed([file()], fields=[ID]))
    assert [one.partition(", in")[0].partition(" is ")[2] for one in gone] == ["not there", "not there"]


def test_a_head_of_another_schema_is_left_to_the_rule_that_says_so():
    assert details(columns_of_views, books(fields=[ID], schemas=[1, 2]), survey=surveyed([file()])) == []
