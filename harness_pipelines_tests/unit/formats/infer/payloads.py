"""Payloads in the shapes that well-known producers write, each with the columns that a person would choose.

The shapes are those of public documentation; all values are made up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: name -> two or more payloads, and by column its type, with how it is written behind a space
PAYLOADS: Mapping[str, tuple[list[dict[str, Any]], dict[str, str]]] = {
    "an order": (
        [
            {"order_id": 1, "customer": "ada", "amount": 12.5, "ordered_at": "2026-03-01T12:00:00Z"},
            {"order_id": 2, "customer": "bob", "amount": 3.25, "ordered_at": "2026-03-01T12:00:01.5+02:00"},
        ],
        {"order_id": "long", "customer": "string", "amount": "decimal(18, 2)", "ordered_at": "timestamptz"},
    ),
    "a charge in minor units": (
        [
            {"id": "ch_1", "amount": 2000, "currency": "eur", "created": 1_767_225_600, "paid": True},
            {"id": "ch_2", "amount": 150, "currency": "usd", "created": 1_767_225_777, "paid": False},
        ],
        {"id": "string", "amount": "long", "currency": "string", "created": "timestamptz epoch_s", "paid": "boolean"},
    ),
    "a shop's order with text amounts": (
        [
            {"id": 450789469, "total_price": "409.94", "created_at": "2026-01-10T11:00:00-05:00", "note": None},
            {"id": 450789470, "total_price": "10.00", "created_at": "2026-01-10T11:00:01-05:00", "note": "ring twice"},
        ],
        {"id": "long", "total_price": "decimal(18, 2)", "created_at": "timestamptz", "note": "string"},
    ),
    "an analytics event": (
        [
            {
                "messageId": "123e4567-e89b-12d3-a456-426614174000",
                "event": "Clicked",
                "sentAt": "2026-01-01T00:00:00.000Z",
                "properties": {"plan": "pro", "value": 12.5},
            },
            {
                "messageId": "123e4567-e89b-12d3-a456-426614174001",
                "event": "Viewed",
                "sentAt": "2026-01-01T00:00:01.000Z",
                "properties": {"plan": "free", "value": 0.25},
            },
        ],
        {
            "messageId": "uuid",
            "event": "string",
            "sentAt": "timestamptz",
            "properties": "struct<plan: string, value: double>",
        },
    ),
    "a cloud event": (
        [
            {"specversion": "1.0", "id": "a-1", "source": "/orders", "type": "placed", "time": "2026-01-01T00:00:00Z"},
            {"specversion": "1.0", "id": "a-2", "source": "/orders", "type": "paid", "time": "2026-01-01T00:00:05Z"},
        ],
        {"specversion": "string", "id": "string", "source": "string", "type": "string", "time": "timestamptz"},
    ),
    "a sensor": (
        [
            {"device": "a1", "ts": 1_767_225_600_123, "temperature": 21.5, "humidity": 40, "ok": True},
            {"device": "a2", "ts": 1_767_225_601_123, "temperature": 22, "humidity": 41, "ok": True},
        ],
        {
            "device": "string",
            "ts": "timestamptz epoch_ms",
            "temperature": "double",
            "humidity": "long",
            "ok": "boolean",
        },
    ),
    "a trace span": (
        [
            {"traceId": "5b8aa5a2d2c872e8321cf37308d69df2", "startTimeUnixNano": 1_767_225_600_000_000_001, "kind": 2},
            {"traceId": "5b8aa5a2d2c872e8321cf37308d69df3", "startTimeUnixNano": 1_767_225_600_000_000_999, "kind": 3},
        ],
        {"traceId": "string", "startTimeUnixNano": "timestamptz epoch_ns", "kind": "long"},
    ),
    "a page view of web analytics": (
        [
            {"event_date": "20260101", "event_timestamp": 1_767_225_600_000_000, "event_name": "page_view"},
            {"event_date": "20260102", "event_timestamp": 1_767_312_000_000_001, "event_name": "scroll"},
        ],
        {"event_date": "string", "event_timestamp": "timestamptz epoch_us", "event_name": "string"},
    ),
    "a web server's line": (
        [
            {
                "remote_addr": "192.0.2.1",
                "time_local": "01/Jan/2026:00:00:00 +0000",
                "status": 200,
                "request_time": 0.012,
            },
            {
                "remote_addr": "192.0.2.2",
                "time_local": "01/Jan/2026:00:00:01 +0000",
                "status": 404,
                "request_time": 0.1,
            },
        ],
        {"remote_addr": "string", "time_local": "string", "status": "long", "request_time": "double"},
    ),
    "a push to a repository": (
        [
            {
                "ref": "refs/heads/main",
                "size": 2,
                "commits": [{"sha": "a1", "author": {"name": "Ada"}, "distinct": True}],
            },
            {"ref": "refs/heads/dev", "size": 0, "commits": []},
        ],
        {
            "ref": "string",
            "size": "long",
            "commits": "list<struct<sha: string, author: struct<name: string>, distinct: boolean>>",
        },
    ),
    "a trade": (
        [
            {
                "symbol": "EURUSD",
                "price": "1.08450000",
                "qty": "1000",
                "trade_time": 1_767_225_600_123,
                "is_maker": False,
            },
            {
                "symbol": "EURUSD",
                "price": "1.08460000",
                "qty": "2500",
                "trade_time": 1_767_225_600_456,
                "is_maker": True,
            },
        ],
        {
            "symbol": "string",
            "price": "decimal(18, 8)",
            "qty": "string",
            "trade_time": "timestamptz epoch_ms",
            "is_maker": "boolean",
        },
    ),
    "a quote": (
        [{"symbol": "ACME", "price": 101.25, "volume": 1200}, {"symbol": "ACME", "price": 101.5, "volume": 300}],
        {"symbol": "string", "price": "decimal(18, 2)", "volume": "long"},
    ),
    "a position on the map": (
        [
            {
                "vehicle": 7,
                "location": {"lat": 52.520008, "lon": 13.404954},
                "speed_kmh": 30.5,
                "at": "2026-01-01T08:00:00Z",
            },
            {
                "vehicle": 8,
                "location": {"lat": 48.137154, "lon": 11.576124},
                "speed_kmh": 0.0,
                "at": "2026-01-01T08:00:01Z",
            },
        ],
        {"vehicle": "long", "location": "struct<lat: double, lon: double>", "speed_kmh": "double", "at": "timestamptz"},
    ),
    "a shape on the map": (
        [
            {"type": "Point", "coordinates": [13.4, 52.5], "name": "Berlin"},
            {"type": "Point", "coordinates": [11.5, 48.1], "name": "Munich"},
        ],
        {"type": "string", "coordinates": "list<double>", "name": "string"},
    ),
    "counts by name": (
        [
            {"host": "a", "counts": {"2026-01-01": 1, "2026-01-02": 5}},
            {"host": "b", "counts": {"2026-01-03": 2}},
        ],
        {"host": "string", "counts": "map<string, long>"},
    ),
    "an invoice": (
        [
            {"invoice_no": "R-1", "issued_on": "2026-01-31", "due_date": "2026-02-14", "net": 100.0, "vat": 19.0},
            {"invoice_no": "R-2", "issued_on": "2026-01-31", "due_date": "2026-02-14", "net": 50.5, "vat": 9.6},
        ],
        {
            "invoice_no": "string",
            "issued_on": "date",
            "due_date": "date",
            "net": "decimal(18, 2)",
            "vat": "decimal(18, 2)",
        },
    ),
    "a meter's reading with kept digits": (
        [{"meter": "m1", "reading": "1234.500", "unit": "kWh"}, {"meter": "m2", "reading": "9.125", "unit": "kWh"}],
        {"meter": "string", "reading": "string", "unit": "string"},
    ),
    "a quantity with kept digits": (
        [{"meter": "m1", "value": "1234.500"}, {"meter": "m2", "value": "9.125"}],
        {"meter": "string", "value": "decimal(18, 3)"},
    ),
    "a release": (
        [{"package": "a", "version": "1.10", "downloads": 5}, {"package": "b", "version": "1.11", "downloads": 6}],
        {"package": "string", "version": "string", "downloads": "long"},
    ),
    "a user's profile": (
        [
            {"userId": 1, "email": "ada@example.org", "birthDate": "1990-12-10", "tags": ["a", "b"], "address": None},
            {
                "userId": 2,
                "email": "bob@example.org",
                "birthDate": "1985-01-02",
                "tags": [],
                "address": {"zip": "10115"},
            },
        ],
        {
            "userId": "long",
            "email": "string",
            "birthDate": "date",
            "tags": "list<string>",
            "address": "struct<zip: string>",
        },
    ),
    "a booking with local times": (
        [
            {"booking": 1, "starts": "2026-07-01T09:00:00", "opens": "09:00:00", "seats": 2},
            {"booking": 2, "starts": "2026-07-02T10:30:00", "opens": "10:30:00", "seats": 4},
        ],
        {"booking": "long", "starts": "timestamp", "opens": "time", "seats": "long"},
    ),
    "a row without its envelope": (
        [
            {"id": 1, "order_date": 20_454, "quantity": 2, "updated_at": 1_767_225_600_000_000},
            {"id": 2, "order_date": 20_455, "quantity": 1, "updated_at": 1_767_225_601_000_000},
        ],
        {"id": "long", "order_date": "date epoch_days", "quantity": "long", "updated_at": "timestamptz epoch_us"},
    ),
    "a large number": (
        [{"account": 2**63, "hash": 2**64 - 1}, {"account": 1, "hash": 0}],
        {"account": "decimal(38, 0)", "hash": "decimal(38, 0)"},
    ),
    "a snowflake id": (
        [{"id": 1_767_225_600_000_000_001, "text": "hi"}, {"id": 1_767_225_600_000_000_002, "text": "ho"}],
        {"id": "long", "text": "string"},
    ),
    "a message of a phone": (
        [
            {"sid": "SM1", "to": "+491701234567", "num_segments": "1", "price": "-0.00750", "date_sent": None},
            {"sid": "SM2", "to": "+491701234568", "num_segments": "2", "price": "-0.01500", "date_sent": None},
        ],
        {"sid": "string", "to": "string", "num_segments": "string", "price": "decimal(18, 5)", "date_sent": "string"},
    ),
    "a nested event of a cloud's storage": (
        [
            {
                "eventTime": "2026-01-01T00:00:00.000Z",
                "s3": {"bucket": {"name": "b"}, "object": {"key": "k", "size": 10}},
            },
            {
                "eventTime": "2026-01-01T00:00:01.000Z",
                "s3": {"bucket": {"name": "b"}, "object": {"key": "l", "size": 11}},
            },
        ],
        {
            "eventTime": "timestamptz",
            "s3": "struct<bucket: struct<name: string>, object: struct<key: string, size: long>>",
        },
    ),
    "a list of moments": (
        [{"id": 1, "visited_at": [1_767_225_600_000, 1_767_225_601_000]}, {"id": 2, "visited_at": [1_767_225_602_000]}],
        {"id": "long", "visited_at": "list<timestamptz> epoch_ms"},
    ),
    "moments below a column": (
        [{"id": 1, "visit": {"created_at": 1_767_225_600_000}}, {"id": 2, "visit": {"created_at": 1_767_225_600_001}}],
        {"id": "long", "visit": "struct<created_at: long>"},
    ),
    "amounts whose digits are kept": (
        [{"sku": "a", "list": 5}, {"sku": "b", "list": 7}],
        {"sku": "string", "list": "long"},
    ),
    "lists of lists": (
        [{"id": 1, "matrix": [[1, 2], [3, 4]]}, {"id": 2, "matrix": [[5, 6.5]]}],
        {"id": "long", "matrix": "list<list<double>>"},
    ),
    "a field that is anything": (
        [{"id": 1, "value": 1}, {"id": 2, "value": "x"}],
        {"id": "long"},
    ),
}
