"""Specs that are wrong as people get them wrong, by what is wrong."""

from __future__ import annotations

_HEAD = "table: shop.orders\n"
_COLUMNS = "columns: {id: long, name: string}\n"


def _with(words: str, columns: str = _COLUMNS) -> str:
    return f"{_HEAD}{columns}{words}\n"


SPECS = {
    "no YAML": "table: [shop",
    "a list": "- table: shop.orders",
    "nothing": "",
    "no columns": _HEAD,
    "no table": _COLUMNS,
    "a table without a namespace": "table: orders\n" + _COLUMNS,
    "a table in capitals": "table: Shop.Orders\n" + _COLUMNS,
    "a word that is none": _with("colums: {}"),
    "a word of another place": _with("max_rows: 10"),
    "a topic with a space": _with("topic: my orders"),
    "topics and topic": _with("topic: a\ntopics: [b, c]"),
    "an unknown format": _with("format: xml"),
    "a format of later": _with("format: csv"),
    "an unknown type": _with("", "columns: {id: number}\n"),
    "a type of another database": _with("", "columns: {id: serial}\n"),
    "a decimal without digits": _with("", "columns: {id: decimal}\n"),
    "a decimal that is too large": _with("", "columns: {id: 'decimal(60,2)'}\n"),
    "no columns in columns": _with("", "columns: {}\n"),
    "a column of ours": _with("", "columns: {_kafka_offset: long}\n"),
    "two columns that differ in case": _with("", "columns: {id: long, ID: string}\n"),
    "an unknown setting of a column": _with("", "columns: {id: {type: long, nullable: false}}\n"),
    "a column without a type": _with("", "columns: {id: {required: true}}\n"),
    "a from that is none": _with("", "columns: {at: {type: timestamp, from: unix}}\n"),
    "a from of another type": _with("", "columns: {id: {type: long, from: iso8601}}\n"),
    "a default of another type": _with("", "columns: {id: {type: long, default: x}}\n"),
    "a key that is no column": _with("key: [order_id]"),
    "a key of a double": _with("key: [id]", "columns: {id: double}\n"),
    "a delete without a key": _with("delete: {field: op, values: [d]}"),
    "a delete without values": _with("key: [id]\ndelete: {field: op}"),
    "change events without a key": _with("format: debezium"),
    "a schema of JSON": _with("schema: {text: '{}'}"),
    "views that are none": _with("views: all"),
    "a clustering by no column": _with("layout: {columns: [city]}"),
    "a duration without a unit that is known": _with("retention: {versions: 3 weeks}"),
    "a size without a number": _with("tier: {max_bytes: big}"),
    "a negative count": _with("tier: {max_rows: -1}"),
    "a start that is none": _with("start: newest"),
    "a time without a zone": _with("start: {timestamp: '2026-01-01 00:00'}"),
    "a share above all": _with("stop_above: {refused: 120%}"),
    "two ways to stop": _with("on_error: stop\nstop_above: {refused: 5%}"),
    "a check of no column": _with("contract: {columns: {amount: {ge: 0}}}"),
    "a check that is none": _with("contract: {columns: {id: {min: 0}}}"),
    "a transform without anything": _with("transform: {}"),
    "a derived column that is none": _with("transform: {derive: {total: id + 1}}"),
    "a mode that is none": _with("mode: auto"),
}
