"""What Flight SQL reports of the server and its tables, in the schemas of the protocol. There are no catalogs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.types import PRIMITIVES, Primitive

TABLE = "TABLE"


def _schema(**fields: pa.DataType) -> pa.Schema:
    """Fields of a name and a type; one whose name ends with `_` may be NULL."""
    return pa.schema([pa.field(name.rstrip("_"), kind, name.endswith("_")) for name, kind in fields.items()])


_TEXT, _INT = pa.string(), pa.int32()
CATALOGS = _schema(catalog_name=_TEXT)
SCHEMAS = _schema(catalog_name_=_TEXT, db_schema_name=_TEXT)
TABLES = _schema(catalog_name_=_TEXT, db_schema_name_=_TEXT, table_name=_TEXT, table_type=_TEXT)
TABLE_TYPES = _schema(table_type=_TEXT)
PRIMARY_KEYS = _schema(
    catalog_name_=_TEXT, db_schema_name_=_TEXT, table_name=_TEXT, column_name=_TEXT, key_name_=_TEXT, key_sequence=_INT
)
FOREIGN_KEYS = _schema(
    pk_catalog_name_=_TEXT, pk_db_schema_name_=_TEXT, pk_table_name=_TEXT, pk_column_name=_TEXT,
    fk_catalog_name_=_TEXT, fk_db_schema_name_=_TEXT, fk_table_name=_TEXT, fk_column_name=_TEXT,
    key_sequence=_INT, fk_key_name_=_TEXT, pk_key_name_=_TEXT, update_rule=pa.uint8(), delete_rule=pa.uint8(),
)  # fmt: skip
TYPES = _schema(
    type_name=_TEXT, data_type=_INT, column_size_=_INT, literal_prefix_=_TEXT, literal_suffix_=_TEXT,
    create_params_=pa.list_(pa.field("item", _TEXT, False)), nullable=_INT, case_sensitive=pa.bool_(), searchable=_INT,
    unsigned_attribute_=pa.bool_(), fixed_prec_scale=pa.bool_(), auto_increment_=pa.bool_(), local_type_name_=_TEXT,
    minimum_scale_=_INT, maximum_scale_=_INT, sql_data_type=_INT, datetime_subcode_=_INT, num_prec_radix_=_INT,
    interval_precision_=_INT,
)  # fmt: skip
_VALUE = pa.dense_union(
    [
        pa.field("string_value", _TEXT),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", _INT),
        pa.field("string_list", pa.list_(_TEXT)),
        pa.field("int32_to_int32_list_map", pa.map_(_INT, pa.list_(_INT))),
    ]
)
SQL_INFO = pa.schema([pa.field("info_name", pa.uint32(), False), pa.field("value", _VALUE, False)])
#: XDBC's numbers of types: name of DuckDB, number, digits or characters, what quotes a literal.
_XDBC: Mapping[str, tuple[str, int, int | None, str | None]] = {
    "boolean": ("BOOLEAN", -7, 1, None),
    "int": ("INTEGER", 4, 10, None),
    "long": ("BIGINT", -5, 19, None),
    "float": ("FLOAT", 7, 7, None),
    "double": ("DOUBLE", 8, 15, None),
    "date": ("DATE", 91, 10, "'"),
    "time": ("TIME", 92, 15, "'"),
    "timestamp": ("TIMESTAMP", 93, 26, "'"),
    "timestamptz": ("TIMESTAMP WITH TIME ZONE", 2014, 32, "'"),
    "string": ("VARCHAR", 12, None, "'"),
    "binary": ("BLOB", -3, None, "'"),
    "uuid": ("UUID", 1, 36, "'"),
}


def sql_info(wanted: Sequence[int], *, timeout_s: float | None) -> pa.Table:
    """What the server can; all of it if *wanted* is empty."""
    known: dict[int, str | bool | int] = {
        0: "Harness Pipelines",
        1: version("harness-pipelines"),
        2: pa.__version__,
        3: True,  # read-only
        4: True,  # SQL
        5: False,  # no Substrait
        8: 0,  # no transactions
        9: True,  # queries can be cancelled
        100: round((timeout_s or 0) * 1000),
        500: False,  # DDL of catalogs
        501: False,
        502: False,
        504: '"',
    }
    chosen = {number: value for number, value in known.items() if not wanted or number in wanted}
    kinds = pa.array([_kind(value) for value in chosen.values()], pa.int8())
    groups: list[list[Any]] = [[] for _ in range(_VALUE.num_fields)]
    places = []
    for value in chosen.values():
        group = groups[_kind(value)]
        places.append(len(group))
        group.append(value)
    children = [pa.array(group, _VALUE.field(at).type) for at, group in enumerate(groups)]
    names = [_VALUE.field(at).name for at in range(_VALUE.num_fields)]
    union = pa.UnionArray.from_dense(kinds, pa.array(places, pa.int32()), children, names)
    return pa.Table.from_arrays([pa.array(chosen, pa.uint32()), union], schema=SQL_INFO)


def _kind(value: str | bool | int) -> int:
    return 0 if isinstance(value, str) else 1 if isinstance(value, bool) else 2


def schemas(tables: Iterable[TableRow], pattern: str | None) -> pa.Table:
    names = sorted({table.spec.namespace for table in tables})
    rows = [{"db_schema_name": name} for name in names if like(name, pattern)]
    return pa.Table.from_pylist(rows, schema=SCHEMAS)


def tables(found: Iterable[TableRow], wanted: Any) -> pa.Table:
    """The tables that *wanted*, a ``CommandGetTables``, names by its patterns."""
    schema = TABLES.append(pa.field("table_schema", pa.binary(), False)) if wanted.include_schema else TABLES
    schema_like = wanted.db_schema_filter_pattern if wanted.HasField("db_schema_filter_pattern") else None
    table_like = wanted.table_name_filter_pattern if wanted.HasField("table_name_filter_pattern") else None
    rows = []
    for table in found if not wanted.table_types or TABLE in wanted.table_types else ():
        short = table.name.partition(".")[2]
        if like(table.spec.namespace, schema_like) and like(short, table_like):
            row = {"db_schema_name": table.spec.namespace, "table_name": short, "table_type": TABLE}
            rows.append(
                {**row, "table_schema": _columns(table).serialize().to_pybytes()} if wanted.include_schema else row
            )
    return pa.Table.from_pylist(rows, schema=schema)


def _columns(table: TableRow) -> pa.Schema:
    fields = [pa.field(c.name, arrow_type(c.type), not c.required) for c in table.spec.columns]
    return pa.schema(fields)


def primary_keys(found: Iterable[TableRow], wanted: Any) -> pa.Table:
    """The key of a table."""
    rows = [
        {
            "db_schema_name": table.spec.namespace,
            "table_name": wanted.table,
            "column_name": name,
            "key_sequence": number,
        }
        for table in found
        if table.name.partition(".")[2] == wanted.table
        and (not wanted.HasField("db_schema") or table.spec.namespace == wanted.db_schema)
        for number, name in enumerate(table.spec.key, 1)
    ]
    return pa.Table.from_pylist(rows, schema=PRIMARY_KEYS)


def types(number: int | None) -> pa.Table:
    """The types that columns have; with *number* only those of it."""
    rows = []
    for name in PRIMITIVES:
        said, xdbc, digits, quote = _XDBC[name]
        if number is None or number == xdbc:
            rows.append(
                {
                    "type_name": said, "data_type": xdbc, "column_size": digits, "literal_prefix": quote,
                    "literal_suffix": quote, "nullable": 1, "case_sensitive": name == "string", "searchable": 3,
                    "unsigned_attribute": False, "fixed_prec_scale": False, "auto_increment": False,
                    "local_type_name": str(Primitive(name)), "sql_data_type": xdbc,
                }
            )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=TYPES)


def like(name: str, pattern: str | None) -> bool:
    """SQL's LIKE with backslash as quote; without a pattern every name.

    A `%` that has matched once takes what is left of a pattern that fails later: the time is the product of both
    lengths at most, whatever a client writes. An expression of Python would try every division of the name.
    """
    if pattern is None:
        return True
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    at = part = 0
    any_part, any_at = -1, 0  # the last `%`, and up to where it reaches
    while at < len(name):
        if part < len(parts) and parts[part] == "%":
            any_part, any_at, part = part, at, part + 1
        elif part < len(parts) and (parts[part] == "_" or parts[part][-1] == name[at]):
            at, part = at + 1, part + 1
        elif any_part >= 0:
            any_at += 1
            at, part = any_at, any_part + 1
        else:
            return False
    return all(left == "%" for left in parts[part:])
