"""The messages of Flight SQL, described here: no package of Python has them.

Source: the protocol's description, FlightSql.proto of Apache Arrow. A message travels in `google.protobuf.Any`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from harness_pipelines.errors import UsageError
from harness_pipelines.serve.answers import shown

PACKAGE = "arrow.flight.protocol.sql"
_PREFIX = f"type.googleapis.com/{PACKAGE}."
_F = descriptor_pb2.FieldDescriptorProto
_TYPES = {"string": _F.TYPE_STRING, "bytes": _F.TYPE_BYTES, "bool": _F.TYPE_BOOL, "int32": _F.TYPE_INT32}
_TYPES |= {"uint32": _F.TYPE_UINT32}
#: Fields in the order of their numbers. With `?` it is known whether a field is there, `*` is a list.
_MESSAGES: Mapping[str, str] = {
    "CommandGetSqlInfo": "uint32* info",
    "CommandGetXdbcTypeInfo": "int32? data_type",
    "CommandGetCatalogs": "",
    "CommandGetDbSchemas": "string? catalog, string? db_schema_filter_pattern",
    "CommandGetTables": "string? catalog, string? db_schema_filter_pattern, string? table_name_filter_pattern, "
    "string* table_types, bool include_schema",
    "CommandGetTableTypes": "",
    "CommandGetPrimaryKeys": "string? catalog, string? db_schema, string table",
    "CommandGetExportedKeys": "string? catalog, string? db_schema, string table",
    "CommandGetImportedKeys": "string? catalog, string? db_schema, string table",
    "CommandGetCrossReference": "string? pk_catalog, string? pk_db_schema, string pk_table, "
    "string? fk_catalog, string? fk_db_schema, string fk_table",
    "CommandStatementQuery": "string query, bytes? transaction_id",
    "CommandPreparedStatementQuery": "bytes prepared_statement_handle",
    "TicketStatementQuery": "bytes statement_handle",
    "ActionCreatePreparedStatementRequest": "string query, bytes? transaction_id",
    "ActionCreatePreparedStatementResult": "bytes prepared_statement_handle, bytes dataset_schema, "
    "bytes parameter_schema",
    "ActionClosePreparedStatementRequest": "bytes prepared_statement_handle",
    "ActionCancelQueryRequest": "bytes info",
    "ActionCancelQueryResult": "int32 result",
}


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="harness/flight_sql.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field in enumerate(filter(None, fields.split(", ")), 1):
            kind, word = field.split()
            made = message.field.add(name=word, number=number, type=_TYPES[kind.rstrip("?*")])
            made.label = _F.LABEL_REPEATED if kind.endswith("*") else _F.LABEL_OPTIONAL
            if kind.endswith("?"):
                made.proto3_optional, made.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{word}")
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_described())
_CLASSES: Mapping[str, Any] = {
    name: message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
}


class NotFlightSql(ValueError):
    """The bytes are no message of Flight SQL that is known here."""


class CallNotServed(UsageError):
    """A client asked by Flight for more than queries: for transactions, updates, loads of rows, or lists."""

    way_on = "ask by a query, and without a transaction: a table is written by its topic"


def packed(name: str, **fields: Any) -> bytes:
    """A message as it travels."""
    made = any_pb2.Any(type_url=_PREFIX + name, value=_CLASSES[name](**fields).SerializeToString())
    return bytes(made.SerializeToString())


def unpacked(data: bytes) -> tuple[str, Any]:
    """The name of a message and the message. Raises: NotFlightSql; CallNotServed for others of Flight SQL."""
    try:
        outer = any_pb2.Any.FromString(data)
        name = outer.type_url.removeprefix(_PREFIX)
        if name not in _CLASSES:
            if outer.type_url.startswith(_PREFIX):
                raise CallNotServed(f"{shown(name)} is not served: this server only reads, by queries")
            raise NotFlightSql(
                f"{shown(outer.type_url) or 'a message without a type'} is not of Flight SQL as it is served here"
            )
        return name, _CLASSES[name].FromString(outer.value)
    except DecodeError as error:
        raise NotFlightSql(f"it is no message of Flight SQL: {error}") from error


def expected(name: str, data: bytes) -> Any:
    """The message *name*, and no other one. Raises: NotFlightSql."""
    found, message = unpacked(data)
    if found != name:
        raise NotFlightSql(f"{found} came where {name} is expected")
    return message


def cancel_request(data: bytes) -> bytes:
    """The info of a query in the body of ``CancelFlightInfo``, which has no envelope. Raises: NotFlightSql."""
    try:
        return bytes(_CLASSES["ActionCancelQueryRequest"].FromString(data).info)
    except DecodeError as error:
        raise NotFlightSql(f"it is no request to cancel a query: {error}") from error


def cancel_result(status: int) -> bytes:
    """The answer to it: 1 is cancelled, 3 cannot be."""
    return bytes(_CLASSES["ActionCancelQueryResult"](result=status).SerializeToString())
