"""Times are longs in the lake, which Spark can write, and times again for whoever reads the table."""

from __future__ import annotations

from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import iceberg_fields, lake_fields, parse_type, user_fields

KIND = "struct<a: time, l: list<time>, m: map<time, struct<b: time, n: int>>>"


def fields(kind: str, first_id: int = 1):
    return iceberg_fields(
        [Column(name="at", type=parse_type("time"), required=True), Column(name="s", type=parse_type(kind))], first_id
    )


def test_no_time_reaches_the_lake_at_any_depth():
    assert lake_fields(fields(KIND)) == [
        {**fields(KIND)[0], "type": "long"},
        fields(KIND.replace("time", "long"))[1],
    ]


def test_the_users_types_come_back_with_the_ids_that_the_lake_gave():
    given = lake_fields(fields(KIND, first_id=100))

    assert user_fields(given, fields(KIND)) == fields(KIND, first_id=100)


def test_a_long_of_the_users_stays_a_long():
    wanted = fields("map<long, list<long>>")

    assert user_fields(lake_fields(wanted), wanted) == wanted
