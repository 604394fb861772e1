"""Avro: the writer's schema, and records decoded with it. fastavro reads the bytes.

Logical types are left out of the schema that fastavro reads by: numbers and bytes become columns as a whole, which is
several times quicker than a date or a decimal for each cell.
"""

from __future__ import annotations

import io
import json
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import isfinite
from operator import itemgetter
from typing import Any

from harness_pipelines.extras import needs
from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.schema.avro_blocks import Blocks
from harness_pipelines.formats.schema.avro_numbers import SUSPECT, Numbers, may_be_suspect
from harness_pipelines.formats.schema.registry import WrittenSchema
from harness_pipelines.formats.schema.writer_schema import Kind, NoFit, Unit, WriterType, WrittenField, malformed
from harness_pipelines.spec.sections.about import DESCRIPTION_CHARS_MAX, described

with needs("formats", "A format with a schema"):
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

NESTING_MAX = 64
WEIGHTLESS_MAX = 1_000  #: values of a record that take no bytes; records within records multiply them
WEIGHTLESS_ELEMENT_MAX = 16  #: the same of an element, of which a few bytes can stand for many
_INT_BITS = 32
ANY_NAME = "*"  #: of the only field of what is no record
_MEANT = "harness.logicalType"
_END, _VALUE, _ALL = "harness__end", "harness__value", "harness__all"
_FRAME, _BATCH, _BOOLEAN = "harness__frame", "harness__batch", "harness boolean"
_PRIMITIVES: Mapping[str, Kind] = {
    "boolean": "boolean", "int": "int", "long": "int", "float": "float", "double": "float", "bytes": "bytes",
    "string": "string",
}  # fmt: skip
_LOGICAL: Mapping[tuple[str, str], tuple[Kind, Unit]] = {
    ("int", "date"): ("date", "d"),
    ("int", "time-millis"): ("time", "ms"),
    ("long", "time-micros"): ("time", "us"),
    ("long", "timestamp-millis"): ("instant", "ms"),
    ("long", "timestamp-micros"): ("instant", "us"),
    ("long", "timestamp-nanos"): ("instant", "ns"),
    ("long", "local-timestamp-millis"): ("local", "ms"),
    ("long", "local-timestamp-micros"): ("local", "us"),
    ("long", "local-timestamp-nanos"): ("local", "ns"),
}
_CONNECT_NAME, _CONNECT_TIMESTAMP = "connect.name", "org.apache.kafka.connect.data.Timestamp"
_CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_CONNECT: Mapping[str, tuple[Kind, Unit]] = {
    "org.apache.kafka.connect.data.Date": ("date", "d"),
    "org.apache.kafka.connect.data.Time": ("time", "ms"),
    "org.apache.kafka.connect.data.Timestamp": ("instant", "ms"),
    "io.debezium.time.Date": ("date", "d"),
    "io.debezium.time.Time": ("time", "ms"),
    "io.debezium.time.MicroTime": ("time", "us"),
    "io.debezium.time.NanoTime": ("time", "ns"),
    "io.debezium.time.Timestamp": ("instant", "ms"),
    "io.debezium.time.MicroTimestamp": ("instant", "us"),
    "io.debezium.time.NanoTimestamp": ("instant", "ns"),
}  #: Kafka Connect's semantic types, which its Avro converter writes as `connect.name`
#: The types of columns that are made for Debezium's semantic types, where the kind of value does not tell.
COLUMNS: Mapping[str, str] = {
    "io.debezium.time.Timestamp": "timestamp",
    "io.debezium.time.MicroTimestamp": "timestamp",
    "io.debezium.time.NanoTimestamp": "timestamp",
    "io.debezium.time.ZonedTimestamp": "timestamptz",
    "io.debezium.time.IsoDate": "date",
    "io.debezium.time.IsoTime": "time",
    "io.debezium.time.IsoTimestamp": "timestamp",
    "io.debezium.data.Uuid": "uuid",
}
_NULLS = ("null", {"type": "null"})
_SCALED = "io.debezium.data.VariableScaleDecimal"
_UNREADABLE = (EOFError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError, MemoryError, struct.error)
_MARKS_MAX = 4_096
#: By chance, so that no record can contain it; numbers, as fastavro reads them quicker than bytes.
_MARKS = [mark for mark in struct.unpack(f"<{2 * _MARKS_MAX}d", os.urandom(16 * _MARKS_MAX)) if mark and isfinite(mark)]
_MARKS_BYTES = [struct.pack("<d", mark) for mark in _MARKS]


class AvroReader:
    """`Reader` of one schema.

    Records are read many at a time, as an array of which each element ends with its own mark. Where a mark is not
    as it should be, or the bytes end, each record is read alone.
    """

    def __init__(self, schema: WrittenSchema, *, is_debezium: bool = False) -> None:
        """*is_debezium*: its records are Debezium's change events. Raises: NoFit (unusable_schema)."""
        self._name, self.written, plain = _parsed(schema, is_debezium=is_debezium)
        if self.written.kind == "none":
            raise NoFit(self.written.trouble, reason=Reason.UNUSABLE_SCHEMA)
        self._is_union = isinstance(plain, list)
        self._is_record = self.written.kind == "struct" and not self._is_union
        fields = plain["fields"] if self._is_record else [{"name": _VALUE, "type": plain}]
        record = {**plain, "fields": [*fields, _MARK]} if self._is_record else _frame([*fields, _MARK])
        one = plain if self._is_record else _frame(fields)
        self._numbers = Numbers(one)
        self._blocks = Blocks(self._numbers) if self._numbers.has_blocks else None
        try:
            self._written = fastavro.parse_schema(one)
            self._one = _with_branches(fastavro.parse_schema(one))
            self._many = _with_branches(fastavro.parse_schema(_batch(record)))
        except (SchemaParseException, UnknownType, *_UNREADABLE) as error:
            raise _unusable(_words(error)) from error
        if self.written.kind != "struct":
            only = WrittenField(name=ANY_NAME, written=self.written, get=itemgetter(_VALUE))
            self.written = WriterType(kind="struct", name=self.written.name, fields=(only,))

    def read(self, payloads: Sequence[bytes]) -> tuple[list[Any], dict[int, Unfit]]:
        records, wrong = self._read(payloads)
        if not self._is_union or self.written.fields[0].name == ANY_NAME:
            return records, wrong
        found = [record[_VALUE] for record in records]
        if None in found:
            read = [i for i in range(len(payloads)) if i not in wrong]
            wrong |= {i: _NULL for i, record in zip(read, found, strict=True) if record is None}
            found = [record for record in found if record is not None]
        return found, wrong

    def _read(self, payloads: Sequence[bytes]) -> tuple[list[Any], dict[int, Unfit]]:
        records: list[Any] = []
        wrong: dict[int, Unfit] = {}
        for low in range(0, len(payloads), _MARKS_MAX):
            part = payloads[low : low + _MARKS_MAX]
            found = self._together(part)
            if found is not None and self._fit(found, part) and (self._blocks is None or self._blocks.fit(part)):
                records += found
                continue
            for i, payload in enumerate(part):
                one = self._alone(payload)
                if isinstance(one, Unfit):
                    wrong[low + i] = one
                else:
                    records.append(one)
        return records, wrong

    def _together(self, payloads: Sequence[bytes]) -> list[Any] | None:
        marked = chain.from_iterable(zip(payloads, _MARKS_BYTES, strict=False))
        parts = [_zigzag(len(payloads)), *marked, b"\x00"]
        try:
            read: Any = fastavro.schemaless_reader(io.BytesIO(b"".join(parts)), self._many, None)
        except _UNREADABLE:
            return None
        found: list[Any] = read[_ALL]
        return found if list(map(itemgetter(_END), found)) == _MARKS[: len(payloads)] else None

    def _fit(self, records: Sequence[Any], payloads: Sequence[bytes]) -> bool:
        """Whether all numbers fit into 64 bits. Most records have no suspect bytes; else the decoded value decides."""
        if not may_be_suspect(b"\0".join(payloads)):
            return True
        return all(
            not SUSPECT.search(payload) or self._is_as_written(record, payload) or not self._numbers.trouble(payload)
            for record, payload in zip(records, payloads, strict=True)
        )

    def _is_as_written(self, record: Any, payload: bytes) -> bool:
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, self._written, record)
        except _UNREADABLE:
            return False
        return stream.getvalue() == payload

    def _alone(self, payload: bytes) -> Any:
        is_suspect = self._blocks is not None or SUSPECT.search(payload)
        if is_suspect and (trouble := self._numbers.trouble(payload)):
            return malformed(f"Avro of {self._name}", trouble)
        stream = io.BytesIO(payload)
        try:
            found = fastavro.schemaless_reader(stream, self._one, None)
        except (LookupError, EOFError, struct.error):
            return malformed(f"Avro of {self._name}", "the bytes end too early, or an index is wrong")
        except UnicodeDecodeError:
            return malformed(f"Avro of {self._name}", "a text is not UTF-8")
        except (ArithmeticError, MemoryError):
            return malformed(f"Avro of {self._name}", "a length is of more bytes than there are")
        except _UNREADABLE as error:
            return malformed(f"Avro of {self._name}", error)
        if left := len(payload) - stream.tell():
            return malformed(f"Avro of {self._name}", f"{left:,} bytes are left after the record")
        return found


_MARK = {"name": _END, "type": "double"}
_NULL = Unfit(Reason.NULL_VALUE, "the value is null")


def _frame(fields: list[Any]) -> dict[str, Any]:
    return {"type": "record", "name": _FRAME, "fields": fields}


def _with_branches(schema: Any) -> Any:
    """Change the unions of *schema*, which fastavro has parsed, so that each has no branch but its own."""
    if type(schema) is list:
        return _union_of([_with_branches(one) for one in schema])
    if isinstance(schema, dict):
        for word in {"type", "items", "values"} & schema.keys():
            schema[word] = _with_branches(schema[word])
        for field in schema.get("fields", ()):
            field["type"] = _with_branches(field["type"])
        for named in schema.get("__named_schemas", {}).values():  # what fastavro finds by name are copies
            _with_branches(named)
    return schema


def _union_of(branches: list[Any]) -> Any:
    """A list without an item -1: fastavro would take the last branch for that index, which is wrong.

    It adds the length to an index below 0. Items are found by a method of C: one of Python's costs three times as much.
    """
    found = dict(enumerate(branches))
    return type("Union", (list,), {"__getitem__": found.__getitem__, "__len__": lambda _: sys.maxsize})(branches)


def _batch(record: dict[str, Any]) -> dict[str, Any]:
    """An array of *record*, as the only field of one: what has no name fastavro would parse again for each batch."""
    return {"type": "record", "name": _BATCH, "fields": [{"name": _ALL, "type": {"type": "array", "items": record}}]}


def _zigzag(count: int) -> bytes:
    left, made = count << 1, bytearray()
    while left > 0x7F:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    made.append(left)
    return bytes(made)


def _unusable(why: str) -> NoFit:
    return NoFit(f"it is not a readable Avro schema: {why}", reason=Reason.UNUSABLE_SCHEMA)


def _parsed(schema: WrittenSchema, *, is_debezium: bool) -> tuple[str, WriterType, Any]:
    """The name of the schema, what it says of values, and the schema that bytes are read by. Raises: NoFit."""
    names: dict[str, Any] = {}
    try:
        for text in schema.references.values():
            _parse(text, names)
        whole = _parse(schema.text, names)
        if isinstance(whole, str) and whole in names:
            whole = names[whole]
        written = _Walk(names, is_debezium=is_debezium).written(whole, ())
        name = str(whole["name"]) if isinstance(whole, dict) and "name" in whole else written.name
        return name, written, _Plain(names).of(whole)
    except (SchemaParseException, UnknownType, RecursionError, *_UNREADABLE) as error:
        raise _unusable(_words(error)) from error


def _words(error: Exception) -> str:
    if isinstance(error, UnknownType):
        return f"it has no type {error}"
    if isinstance(error, TypeError | AttributeError | KeyError):
        return f"something in it is not where Avro has it ({type(error).__name__}: {error})"
    return " ".join(str(error).split()) or type(error).__name__


def _parse(text: str, names: dict[str, Any]) -> Any:
    # Defaults that do not fit their type stand in many schemas that Java wrote; they are not read here.
    return fastavro.parse_schema(
        _unjudged(json.loads(text)), names, _write_hint=False, _force=True, _ignore_default_error=True
    )


def _unjudged(schema: Any) -> Any:
    """*schema* whose logical types fastavro does not look at: it refuses what Avro says is to be ignored."""
    if isinstance(schema, list):
        return [_unjudged(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {(_MEANT if word == "logicalType" else word): value for word, value in schema.items()}
    for word in ("type", "items", "values"):
        if word in made:
            made[word] = _unjudged(made[word])
    if isinstance(made.get("fields"), list):
        made["fields"] = [_unjudged(one) for one in made["fields"]]
    return made


class _Plain:
    """The schema without logical types, defaults and other words that reading does not need.

    Each named type gets a new name: one without a namespace would be looked up in that of the record around it.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._called: dict[str, str] = {}  #: by the name in the schema

    def of(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self.of(one) for one in schema]
        if isinstance(schema, str):
            if schema == "boolean":  # fastavro would not say which byte it was, and takes all but 0 for true
                return self._fixed(_BOOLEAN, 1)
            if schema not in self._names:
                return schema
            return self._called.get(schema) or self.of(self._names[schema])
        match schema["type"]:
            case "record" | "error":
                if (known := self._called.get(schema["name"])) is not None:
                    return known
                called = self._call(schema["name"])
                fields = [{"name": f["name"], "type": self.of(f["type"])} for f in schema["fields"]]
                return {"type": "record", "name": called, "fields": fields}
            case "array":
                return {"type": "array", "items": self.of(schema["items"])}
            case "map":
                return {"type": "map", "values": self.of(schema["values"])}
            case "enum":
                return "int"  # of its symbols fastavro takes the last for -1
            case "fixed":
                return self._fixed(schema["name"], schema["size"])
        return self.of(schema["type"])

    def _fixed(self, name: str, size: int) -> Any:
        known = self._called.get(name)
        return known or {"type": "fixed", "name": self._call(name), "size": size}

    def _call(self, name: str) -> str:
        return self._called.setdefault(name, f"harness.type{len(self._called)}")


class _Walk:
    """What a parsed schema says of values."""

    def __init__(self, names: Mapping[str, Any], *, is_debezium: bool) -> None:
        self._names, self._is_debezium = names, is_debezium
        self._known: dict[str, WriterType] = {}  # or a few names that stand for each other twice would never end
        self._weightless_of: dict[str, int] = {}  # by record

    def written(self, schema: Any, inside: tuple[str, ...]) -> WriterType:
        """*inside*: the records around it. Raises: NoFit for a schema by which a few bytes can do harm."""
        if len(inside) > NESTING_MAX:
            raise _unusable(f"nested more than {NESTING_MAX} deep")
        if isinstance(schema, list):
            return self._union(schema, inside)
        if isinstance(schema, str):
            if schema not in self._names:
                return _primitive(schema)
            if schema in inside:
                raise NoFit(f"{schema} is within itself; recursive types are not read", reason=Reason.UNUSABLE_SCHEMA)
            schema = self._names[schema]
        kind = schema["type"]
        match kind:
            case "record" | "error":
                return self._record(schema, inside)
            case "array":
                element = self.written(schema["items"], (*inside, ""))
                if self._is_empty(schema["items"]):
                    raise _unusable("the elements of an array take no bytes, so a few could stand for any number")
                self._check_weight(schema["items"], "an element of an array", at_most=WEIGHTLESS_ELEMENT_MAX)
                return WriterType(kind="list", name="array", element=element)
            case "map":
                values = self.written(schema["values"], (*inside, ""))
                self._check_weight(schema["values"], "a value of a map", at_most=WEIGHTLESS_ELEMENT_MAX)
                key = WriterType(kind="string", name="string")
                return WriterType(kind="map", name="map", key=key, element=values)
            case "enum":
                names = dict(enumerate(schema["symbols"]))
                return WriterType(kind="enum", name=f"enum {schema['name']}", names=names, has_numbers=False)
            case "fixed" if type(schema["size"]) is not int or schema["size"] < 0:
                raise _unusable(f"{schema['size']!r} is no size of {schema['name']}")
            case str() if kind in _PRIMITIVES or kind == "fixed":
                return _meant(kind, schema, is_debezium=self._is_debezium)
        return self.written(kind, inside)

    def _union(self, schema: list[Any], inside: tuple[str, ...]) -> WriterType:
        found = [self.written(one, inside) for one in schema if one not in _NULLS]
        if len(found) == 1:
            return found[0]
        names = ", ".join(one.name for one in found) or "null"
        return WriterType(kind="none", name="union", trouble=f"a union of {names} is no column; one type or null is")

    def _record(self, schema: Any, inside: tuple[str, ...]) -> WriterType:
        if schema["name"] in inside:
            raise NoFit(
                f"{schema['name']} is within itself; recursive types are not read", reason=Reason.UNUSABLE_SCHEMA
            )
        if schema.get(_CONNECT_NAME) == _SCALED and _is_scaled(schema):
            return WriterType(kind="decimal", name=_SCALED)
        if (known := self._known.get(schema["name"])) is not None:
            return known
        names = [field["name"] for field in schema["fields"]]
        if len(set(names)) != len(names):  # one of the two values would be lost, and which one is undefined
            raise _unusable(f"{schema['name']} has two fields of the same name")
        deeper = (*inside, schema["name"])
        fields = tuple(self._field(one, deeper) for one in schema["fields"])
        self._check_weight(schema, schema["name"], at_most=WEIGHTLESS_MAX)
        made = WriterType(kind="struct", name=f"record {schema['name']}", fields=fields)
        self._known[schema["name"]] = made
        return made

    def _field(self, field: Any, inside: tuple[str, ...]) -> WrittenField:
        written = self.written(field["type"], inside)
        return WrittenField(
            name=field["name"],
            written=written,
            get=itemgetter(field["name"]),
            aliases=_aliases(field.get("aliases")),
            default=field.get("default"),
            description=_documented(field.get("doc")),
            nullable=isinstance(field["type"], list) and any(one in _NULLS for one in field["type"]),
        )

    def _check_weight(self, schema: Any, what: str, *, at_most: int) -> None:
        """Raises: NoFit where a few bytes stand for more values than can be read."""
        if self._weightless(schema) > at_most:
            raise _unusable(
                f"more than {at_most:,} values of {what} take no bytes, so a few could stand for any number"
            )

    def _weightless(self, schema: Any) -> int:
        """How many values are made of one of *schema* without a byte of it being read; of a union at most."""
        if isinstance(schema, str):
            return 1 if schema == "null" else self._weightless(self._names[schema]) if schema in self._names else 0
        if isinstance(schema, list):  # the number of the branch is a byte, which pays for null
            return max((self._weightless(one) for one in schema if one not in _NULLS), default=0)
        kind = schema["type"]
        if kind in {"record", "error"}:
            name = schema["name"]
            if name not in self._weightless_of:
                fields = schema["fields"]
                self._weightless_of[name] = sum(self._weightless(f["type"]) for f in fields) if fields else 1
            return self._weightless_of[name]
        if kind in {"array", "map", "enum", "fixed"}:
            return int(kind == "fixed" and schema["size"] == 0)
        return self._weightless(kind)

    def _is_empty(self, schema: Any) -> bool:
        """Return whether a value may take no bytes."""
        if isinstance(schema, str):
            return schema == "null" or (schema in self._names and self._is_empty(self._names[schema]))
        if isinstance(schema, list):
            return False  # the branch takes one
        if schema["type"] in {"record", "error"}:
            return all(self._is_empty(field["type"]) for field in schema["fields"])
        return bool(schema["type"] == "null" or (schema["type"] == "fixed" and schema["size"] == 0))


def _is_scaled(schema: Any) -> bool:
    found = {field["name"]: field["type"] for field in schema["fields"]}
    return found.get("scale") == "int" and found.get("value") == "bytes"


def _aliases(told: Any) -> tuple[str, ...]:
    return tuple(name for name in told if isinstance(name, str)) if isinstance(told, list) else ()


def _documented(told: Any) -> str | None:
    """The text of *told* that a column can have."""
    try:
        return described(told[:DESCRIPTION_CHARS_MAX] if isinstance(told, str) else None)
    except ValueError:
        return None


def _meant(kind: str, schema: Mapping[str, Any], *, is_debezium: bool) -> WriterType:
    """A primitive or fixed type with its logical type; one that is unknown or does not go with it does not count."""
    logical, connect = (told if isinstance(told := schema.get(word), str) else None for word in (_MEANT, _CONNECT_NAME))
    name = f"{kind} ({logical or connect})" if logical or connect else kind
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        digits: Any = schema.get("precision")
        scale: Any = schema.get("scale", 0)
        # True is an int of Python's, and no number of JSON's. Kafka Connect's decimals have scales that Avro has not.
        is_told = type(digits) is type(scale) is int
        if is_told and digits > 0 and (0 <= scale <= digits or connect == _CONNECT_DECIMAL):
            return WriterType(kind="decimal", name=f"decimal({digits}, {scale})", scale=scale, digits=digits)
    column = COLUMNS.get(connect or "")
    if connect == _CONNECT_TIMESTAMP and is_debezium:
        column = "timestamp"  # what has a zone is text in its events
    told = _LOGICAL.get((kind, logical or "")) or (_CONNECT.get(connect or "") if kind in {"int", "long"} else None)
    if told is not None:
        return WriterType(kind=told[0], name=name, unit=told[1], column=column)
    if kind == "fixed":
        size = schema.get("size")
        return WriterType(kind="uuid" if logical == "uuid" and size == 16 else "bytes", name=name)
    if kind == "string":
        return WriterType(kind="string", name=name, column=column)
    return replace(_primitive(kind), name=name)


def _primitive(kind: str) -> WriterType:
    trouble = "" if kind in _PRIMITIVES else f"{kind} is no column"
    bits = _INT_BITS if kind == "int" else None
    return WriterType(kind=_PRIMITIVES.get(kind, "none"), name=kind, bits=bits, trouble=trouble)
