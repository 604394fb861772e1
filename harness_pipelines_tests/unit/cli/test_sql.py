"""Names of tables in a query become names of views, and nothing else changes."""

from __future__ import annotations

import pytest

from harness_pipelines.cli.reads.sql_tables import SqlError, parse_query
from harness_pipelines.engines.spark.query import short_reason

KNOWN = ("shop.orders", "shop.people", "old.orders")


def rewritten(query: str) -> str:
    """*query* with the view `v_<name>` for each table."""
    parsed = parse_query(query, KNOWN)
    return parsed.with_views({name: "v_" + name.replace(".", "_") for name in parsed.tables})


@pytest.mark.parametrize("when", ["VERSION AS OF 3", "TIMESTAMP AS OF '2026-01-01'"])
def test_an_older_version_is_not_asked_of_spark_which_would_read_a_view(when: str):
    with pytest.raises(SqlError, match=r"`harness read shop.orders --at VERSION`"):
        rewritten(f"SELECT * FROM shop.orders {when}")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM shop.orders", "SELECT * FROM `v_shop_orders` AS `orders`"),
        (
            "SELECT shop.orders.id, orders.n, shop.orders.* FROM Shop.Orders",
            "SELECT `orders`.id, orders.n, `orders`.* FROM `v_shop_orders` AS `orders`",
        ),
        ("SELECT o.id FROM `shop`.`orders` o", "SELECT o.id FROM `v_shop_orders` o"),
        (
            "SELECT old.orders.id FROM shop.orders, old.orders",
            "SELECT `old__orders`.id FROM `v_shop_orders` AS `shop__orders`, `v_old_orders` AS `old__orders`",
        ),
        ("SELECT a.b, 'shop.orders' FROM shop.people p", "SELECT a.b, 'shop.orders' FROM `v_shop_people` p"),
        ("SELECT shop.orders.n FROM shop.people shop", "SELECT shop.orders.n FROM `v_shop_people` shop"),
        (
            "-- shop.orders\nSELECT 1 /* old.orders */ FROM shop.people p",
            "-- shop.orders\nSELECT 1 /* old.orders */ FROM `v_shop_people` p",
        ),
        (
            "WITH orders AS (SELECT 1 AS x) SELECT count(*) FROM shop.orders",
            "WITH orders AS (SELECT 1 AS x) SELECT count(*) FROM `v_shop_orders` AS `orders`",
        ),
        (
            "WITH orders AS (SELECT * FROM shop.orders) SELECT * FROM orders",
            "WITH orders AS (SELECT * FROM `v_shop_orders` AS `orders`) SELECT * FROM orders",
        ),
        (
            "SELECT * FROM (SELECT id FROM shop.orders UNION ALL SELECT id FROM old.orders) u",
            "SELECT * FROM (SELECT id FROM `v_shop_orders` AS `shop__orders` "
            "UNION ALL SELECT id FROM `v_old_orders` AS `old__orders`) u",
        ),
        (
            "SELECT * FROM shop.people p WHERE EXISTS (SELECT 1 FROM shop.orders WHERE shop.orders.who = p.id)",
            "SELECT * FROM `v_shop_people` p WHERE EXISTS "
            "(SELECT 1 FROM `v_shop_orders` AS `orders` WHERE `orders`.who = p.id)",
        ),
        (
            "SELECT * FROM shop.orders TABLESAMPLE (10 PERCENT)",
            "SELECT * FROM `v_shop_orders` TABLESAMPLE (10 PERCENT)",
        ),
        (
            "EXPLAIN FORMATTED SELECT n FROM shop.orders o LATERAL VIEW explode(o.tags) t AS tag",
            "EXPLAIN FORMATTED SELECT n FROM `v_shop_orders` o LATERAL VIEW explode(o.tags) t AS tag",
        ),
        (
            "SELECT * FROM shop.orders o JOIN parquet.`/x/shop.orders` f ON o.id = f.id JOIN range(3) r",
            "SELECT * FROM `v_shop_orders` o JOIN parquet.`/x/shop.orders` f ON o.id = f.id JOIN range(3) r",
        ),
        (
            "SELECT * FROM shop.orders o, harness.shop.orders__stream s",
            "SELECT * FROM `v_shop_orders` o, harness.shop.orders__stream s",
        ),
    ],
)
def test_only_names_of_tables_are_replaced(query, expected):
    assert rewritten(query) == expected


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM orders", "names 'orders', which is neither a table .* did you mean old.orders or shop.orders"),
        ("SELECT * FROM shop.ordesr", "names 'shop.ordesr', .* did you mean .*shop.orders"),
        ("SELECT * FROM shop.orders JOIN other.x", "names 'other.x'"),
        ("SELECT * FROM `shop.orders`", "one pair of quotes, which is one name; write shop.orders or `shop`.`orders`"),
        ("SELECT 'shop.orders' -- old.orders", "reads no table of the harness; tables: old.orders, shop.orders"),
        ("SELECT * FORM shop.orders", "cannot be parsed"),
        ("", "this text has 0"),
        ("SELECT 1 FROM shop.orders; SELECT 2 FROM shop.orders", "write one query at a time: this text has 2"),
        ("DROP TABLE shop.orders", "runs queries .* not DROP; nothing was done"),
        ("INSERT INTO shop.orders SELECT * FROM shop.people", "not INSERT"),
        ("(" * 3000 + "SELECT 1", "cannot be parsed"),
    ],
)
def test_what_is_no_query_of_known_tables_is_refused_by_name(query, message):
    with pytest.raises(SqlError, match=message):
        parse_query(query, KNOWN)


def test_a_spark_error_is_told_without_its_plan_and_stack():
    said = "[UNRESOLVED_COLUMN] no `x`. SQLSTATE: 42703; line 1 pos 7"
    long = f"{said};\n'Project ['x]\n+- View\n\nJVM stacktrace:\norg.a\n\tat b"

    assert short_reason(long) == said
