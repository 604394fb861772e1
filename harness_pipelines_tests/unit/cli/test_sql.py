"""Names of tables in a query become names of views, and nothing else changes."""

from __future__ import annotations

import pytest

from harness_pipelines.cli.sql import views_of, with_views
from harness_pipelines.stores.spark_query import short_reason

KNOWN = {"shop.orders", "shop.people", "old.orders"}


def rewritten(query: str) -> str:
    return with_views(query, views_of(query, KNOWN))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM shop.orders", "SELECT * FROM `orders`"),
        ("SELECT shop.orders.id, orders.n FROM Shop.Orders", "SELECT `orders`.id, orders.n FROM `orders`"),
        ("SELECT o.id FROM `shop`.`orders` o", "SELECT o.id FROM `orders` o"),
        ("SELECT * FROM shop.orders, old.orders", "SELECT * FROM `shop__orders`, `old__orders`"),
        ("SELECT a.b, 'shop.orders' FROM shop.people", "SELECT a.b, 'shop.orders' FROM `people`"),
        ("-- shop.orders\nSELECT 1 /* old.orders */ FROM shop.people", None),
    ],
)
def test_only_names_of_tables_are_replaced(query, expected):
    assert rewritten(query) == (expected or query.replace("shop.people", "`people`"))


def test_a_table_in_text_or_comment_is_not_read():
    assert views_of("SELECT 'shop.orders' -- old.orders\n FROM shop.people", KNOWN) == {"shop.people": "people"}


def test_a_spark_error_is_told_without_its_plan_and_stack():
    said = "[UNRESOLVED_COLUMN] no `x`. SQLSTATE: 42703; line 1 pos 7"
    long = f"{said};\n'Project ['x]\n+- View\n\nJVM stacktrace:\norg.a\n\tat b"

    assert short_reason(long) == said
