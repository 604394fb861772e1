"""Protobuf: the message descriptor, and records decoded with it.

Many records are parsed at once, as the elements of one message; only where that fails is each parsed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from operator import attrgetter
from typing import Any

from harness_pipelines.extras import needs
from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.columns.encodings import Scaled
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.schema.proto_text import MAIN, compiled
from harness_pipelines.formats.schema.proto_unknown import may_have_unknown, misread, with_unnamed
from harness_pipelines.formats.schema.registry import WrittenSchema
from harness_pipelines.formats.schema.writer_schema import (
    Kind,
    NoFit,
    Odd,
    Truncated,
    Unit,
    WriterType,
    WrittenField,
    malformed,
)

with needs("formats", "A format with a schema"):
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
    from google.protobuf.message import DecodeError

_TOGETHER = "harness_together.proto"
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_NANOS = range(1_000_000_000)
_MINUTE = range(60)
_KINDS: Mapping[int, Kind] = {
    FieldDescriptor.CPPTYPE_INT32: "int", FieldDescriptor.CPPTYPE_INT64: "int", FieldDescriptor.CPPTYPE_UINT32: "int",
    FieldDescriptor.CPPTYPE_UINT64: "int", FieldDescriptor.CPPTYPE_DOUBLE: "float",
    FieldDescriptor.CPPTYPE_FLOAT: "float", FieldDescriptor.CPPTYPE_BOOL: "boolean",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Meaning:
    """A message that stands for a single value."""

    kind: Kind
    value: Callable[[Any], Any]  #: of the message
    fields: Mapping[str, int]  #: that it has, with their types: a schema may give its own message this name
    unit: Unit = "us"

    def is_meant(self, message: Descriptor) -> bool:
        known = {field.name: field.type for field in message.fields if not field.is_repeated}
        return all(known.get(name) == type_ for name, type_ in self.fields.items())


def _instant(message: Any) -> int:
    if message.nanos not in _NANOS:
        return Odd(f"{message.nanos:,} nanos are no part of a second")
    microseconds, rest = divmod(message.nanos, 1000)
    return _cut(message.seconds * 1_000_000 + microseconds, rest)


def _cut(microseconds: int, rest: int) -> int:
    return Truncated(microseconds) if rest else microseconds


def _day(message: Any) -> int:
    try:
        return date(message.year, message.month, message.day).toordinal() - _EPOCH_DAY
    except (ValueError, OverflowError):
        return Odd(f"year {message.year}, month {message.month}, day {message.day} is no date")


def _time(message: Any) -> int:
    if message.minutes not in _MINUTE or message.seconds not in _MINUTE or message.nanos not in _NANOS:
        said = f"{message.hours} hours, {message.minutes} minutes, {message.seconds} seconds, {message.nanos:,} nanos"
        return Odd(f"{said} are no time of a day")
    whole = (message.hours * 60 + message.minutes) * 60 + message.seconds
    microseconds, rest = divmod(message.nanos, 1000)
    return _cut(whole * 1_000_000 + microseconds, rest)


def _decimal(message: Any) -> Scaled:
    return Scaled(scale=message.scale, value=message.value or b"\x00")


_VALUE = attrgetter("value")
_F = FieldDescriptor
_DATE = {"year": _F.TYPE_INT32, "month": _F.TYPE_INT32, "day": _F.TYPE_INT32}
_OF_DAY = dict.fromkeys(("hours", "minutes", "seconds", "nanos"), _F.TYPE_INT32)
_MEANINGS: Mapping[str, _Meaning] = {
    "google.protobuf.Timestamp": _Meaning("instant", _instant, {"seconds": _F.TYPE_INT64, "nanos": _F.TYPE_INT32}),
    "google.type.Date": _Meaning("date", _day, _DATE, "d"),
    "google.type.TimeOfDay": _Meaning("time", _time, _OF_DAY),
    "google.type.Decimal": _Meaning("string", _VALUE, {"value": _F.TYPE_STRING}),
    "confluent.type.Decimal": _Meaning("decimal", _decimal, {"value": _F.TYPE_BYTES, "scale": _F.TYPE_INT32}),
    "google.protobuf.BoolValue": _Meaning("boolean", _VALUE, {"value": _F.TYPE_BOOL}),
    "google.protobuf.Int32Value": _Meaning("int", _VALUE, {"value": _F.TYPE_INT32}),
    "google.protobuf.Int64Value": _Meaning("int", _VALUE, {"value": _F.TYPE_INT64}),
    "google.protobuf.UInt32Value": _Meaning("int", _VALUE, {"value": _F.TYPE_UINT32}),
    "google.protobuf.UInt64Value": _Meaning("int", _VALUE, {"value": _F.TYPE_UINT64}),
    "google.protobuf.FloatValue": _Meaning("float", _VALUE, {"value": _F.TYPE_FLOAT}),
    "google.protobuf.DoubleValue": _Meaning("float", _VALUE, {"value": _F.TYPE_DOUBLE}),
    "google.protobuf.StringValue": _Meaning("string", _VALUE, {"value": _F.TYPE_STRING}),
    "google.protobuf.BytesValue": _Meaning("bytes", _VALUE, {"value": _F.TYPE_BYTES}),
}


class ProtobufFile:
    """The messages of one schema."""

    def __init__(self, schema: WrittenSchema) -> None:
        """Raises: NoFit (unusable_schema)."""
        self._pool = descriptor_pool.DescriptorPool()
        try:
            found = descriptor_pb2.FileDescriptorSet.FromString(compiled(schema.text, schema.references))
            for file in found.file:
                self._pool.AddSerializedFile(file.SerializeToString())
            self._main: FileDescriptor = self._pool.FindFileByName(MAIN)
        except (TypeError, ValueError, KeyError, DecodeError) as error:
            raise NoFit(f"it is not a readable Protobuf schema: {error}", reason=Reason.UNUSABLE_SCHEMA) from error
        self._proto = next(file for file in found.file if file.name == MAIN)

    def at(self, indexes: Sequence[int]) -> ProtobufReader:
        """The reader of the message at *indexes*, the outermost first. Raises: NoFit."""
        messages, name = self._proto.message_type, self._proto.package
        for index in indexes:
            if not 0 <= index < len(messages):
                where = ", ".join(map(str, indexes))
                raise NoFit(f"the schema has no message at the indexes {where}", reason=Reason.MALFORMED)
            name = f"{name}.{messages[index].name}" if name else messages[index].name
            messages = messages[index].nested_type
        return ProtobufReader(self._pool, self._pool.FindMessageTypeByName(name))

    def named(self, name: str | None) -> ProtobufReader:
        """The reader of the message called *name*; without a name that of the only message. Raises: NoFit."""
        known = [message.full_name for message in self._main.message_types_by_name.values()]
        if name is None and len(known) != 1:
            raise NoFit(f"the schema has {len(known)} messages ({', '.join(known)}): say which by `message`")
        try:
            return ProtobufReader(self._pool, self._pool.FindMessageTypeByName(name or known[0]))
        except KeyError:
            raise NoFit(f"the schema has no message {name}; it has {', '.join(known)}") from None


class ProtobufReader:
    """`Reader` of one message."""

    def __init__(self, pool: descriptor_pool.DescriptorPool, message: Descriptor) -> None:
        self.written = _Walk().message(message)
        self._name, self._kind = message.full_name, message
        self._parse = message_factory.GetMessageClass(message).FromString
        file = descriptor_pb2.FileDescriptorProto(
            name=f"{message.full_name}/{_TOGETHER}", package="harness.together", dependency=[message.file.name]
        )
        # In hexadecimal digits: with another letter for the dots two messages could get one name.
        together = file.message_type.add(name=f"m{message.full_name.encode().hex()}")
        field = together.field.add(name="records", number=1, type_name=f".{message.full_name}")
        field.label, field.type = field.LABEL_REPEATED, field.TYPE_MESSAGE
        pool.AddSerializedFile(file.SerializeToString())
        added = pool.FindMessageTypeByName(f"harness.together.{together.name}")
        self._parse_many = message_factory.GetMessageClass(added).FromString

    def read(self, payloads: Sequence[bytes]) -> tuple[list[Any], dict[int, Unfit]]:
        parts: list[bytes] = []
        for payload in payloads:
            parts += (_length(len(payload)), payload)
        try:
            together = self._parse_many(b"".join(parts))
            records = list(together.records)
            if not may_have_unknown(together):
                return records, {}
        except DecodeError:
            pass  # which one it is, the loop finds
        return self._one_by_one(payloads)

    def _one_by_one(self, payloads: Sequence[bytes]) -> tuple[list[Any], dict[int, Unfit]]:
        records: list[Any] = []
        wrong: dict[int, Unfit] = {}
        for i, payload in enumerate(payloads):
            try:
                record = self._parse(payload)
            except DecodeError:
                wrong[i] = malformed(f"Protobuf of {self._name}", "the bytes are no such message")
                continue
            if (why := misread(record, self._kind)) is not None:
                wrong[i] = malformed(f"Protobuf of {self._name}", why)
            else:
                records.append(record)
        return records, wrong


_LENGTHS: dict[int, bytes] = {}


def _length(count: int) -> bytes:
    """The tag of an element and its length."""
    made = _LENGTHS.get(count)
    if made is None:
        parts, left = bytearray(b"\x0a"), count
        while left > 0x7F:
            parts.append(left & 0x7F | 0x80)
            left >>= 7
        parts.append(left)
        made = bytes(parts)
        if count < 4_096:
            _LENGTHS[count] = made
    return made


class _Walk:
    """What descriptors say of values."""

    def __init__(self) -> None:
        self._known: dict[str, WriterType] = {}
        self._reached: dict[str, frozenset[str]] = {}
        self._checked: dict[str, bool] = {}  # by file

    def message(self, message: Descriptor) -> WriterType:
        """Of a whole record: of its fields those that are recursive are no column."""
        name = message.full_name
        if name not in self._known:  # or a few messages that have each other twice would never end
            fields = tuple(self._field(field) for field in message.fields)
            self._known[name] = WriterType(kind="struct", name=f"message {name}", fields=fields)
        return self._known[name]

    def _part(self, message: Descriptor) -> WriterType:
        name = message.full_name
        if name in self._within(message):
            return WriterType(kind="none", name=name, trouble=f"{name} is within itself; recursive types are no column")
        return self.message(message)

    def _within(self, message: Descriptor) -> frozenset[str]:
        """The messages that are in *message*, at any depth."""
        name = message.full_name
        if name not in self._reached:
            found, ahead = set[str](), [message]
            while ahead:
                for field in ahead.pop().fields:
                    part = field.message_type
                    if part is not None and part.full_name not in found:
                        found.add(part.full_name)
                        ahead.append(part)
            self._reached[name] = frozenset(found)
        return self._reached[name]

    def _field(self, field: FieldDescriptor) -> WrittenField:
        name = field.name
        if field.is_repeated:
            return self._repeated(field)
        written, value = self._one(field)
        get: Callable[[Any], Any] = attrgetter(name)
        if field.has_presence:
            get = with_unnamed(field, _present(field)) if value is None else _present_value(field, value)
            # A message that is left out is not said to be optional, unless by the word.
            nullable = field.message_type is None or field.containing_oneof is not None
            has = _has(field)
            return WrittenField(name=name, written=written, get=get, has=has, nullable=nullable)
        return WrittenField(name=name, written=written, get=get, has=_is_written(name))

    def _is_checked(self, file: FileDescriptor) -> bool:
        """Return whether text that is not UTF-8 is refused where a message is parsed, as it is in proto3 alone."""
        if file.name not in self._checked:
            parsed = descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)
            self._checked[file.name] = parsed.syntax == "proto3"
        return self._checked[file.name]

    def _repeated(self, field: FieldDescriptor) -> WrittenField:
        name, message = field.name, field.message_type
        if message is not None and message.GetOptions().map_entry:
            key, _ = self._one(message.fields_by_name["key"])
            element, value = self._one(message.fields_by_name["value"])
            written = WriterType(kind="map", name="map", key=key, element=element)
            return WrittenField(name=name, written=written, get=_map_of(name, value), has=_is_written(name))
        element, value = self._one(field)
        written = WriterType(kind="list", name=f"repeated {element.name}", element=element)
        get = with_unnamed(field, _list_of(name, value))
        return WrittenField(name=name, written=written, get=get, has=_is_written(name))

    def _one(self, field: FieldDescriptor) -> tuple[WriterType, Callable[[Any], Any] | None]:
        """A value of *field*, and what makes it of a message that stands for it."""
        message: Descriptor | None = field.message_type
        if message is not None:
            meaning = _MEANINGS.get(message.full_name)
            if meaning is None or not meaning.is_meant(message):
                return self._part(message), None
            return WriterType(kind=meaning.kind, name=message.full_name, unit=meaning.unit), meaning.value
        if field.enum_type is not None:
            names = _names(field.enum_type)
            return WriterType(kind="enum", name=f"enum {field.enum_type.full_name}", names=names), None
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return WriterType(kind="bytes", name="bytes"), None
            return WriterType(kind="string", name="string", is_checked=self._is_checked(field.file)), None
        return WriterType(kind=_KINDS[field.cpp_type], name=_TYPE_NAMES[field.type]), None


_TYPE_NAMES: Mapping[int, str] = {
    number: name.removeprefix("TYPE_").lower() for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}


def _names(enum: EnumDescriptor) -> dict[int, str]:
    """Of names for the same number the first."""
    found: dict[int, str] = {}
    for value in enum.values:
        found.setdefault(value.number, value.name)
    return found


def _is_written(name: str) -> Callable[[Any], bool]:
    """Whether the bytes of a message had the field, which has no presence: they leave out 0 and what is empty."""
    return lambda message: bool(getattr(message, name))


def _has(field: FieldDescriptor) -> Callable[[Any], bool]:
    """Return whether a message has *field*. Asked of the class: a field of the message may be called HasField."""
    of, name = message_factory.GetMessageClass(field.containing_type).HasField, field.name
    return lambda message: of(message, name)


def _present(field: FieldDescriptor) -> Callable[[Any], Any]:
    has, found = _has(field), attrgetter(field.name)
    if field.message_type is not None or field.default_value:
        return lambda message: found(message) if has(message) else None
    return lambda message: found(message) or (found(message) if has(message) else None)


def _present_value(field: FieldDescriptor, value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    has, found = _has(field), attrgetter(field.name)
    return lambda message: value(found(message)) if has(message) else None


def _list_of(name: str, value: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    if value is None:
        return lambda message: list(getattr(message, name))
    return lambda message: list(map(value, getattr(message, name)))


def _map_of(name: str, value: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def get(message: Any) -> dict[Any, Any]:
        found = getattr(message, name)
        try:
            return dict(found) if value is None else {key: value(one) for key, one in found.items()}
        except UnicodeDecodeError:  # of a key; as bytes, which they come as then, it is no text
            return dict.fromkeys(found)

    return get
