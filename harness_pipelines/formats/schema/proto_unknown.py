"""What parsers of Protobuf pass over without a word: fields that are written as another type than the schema's.

A parser takes such a field for one that the schema does not have, so the record would have 0 or NULL in its place. The
numbers of closed enums (proto2) that have no name are passed over in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from harness_pipelines.extras import needs
from harness_pipelines.formats.schema.writer_schema import Unnamed

with needs("formats", "A format with a schema"):
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import EncodeError, Message
    from google.protobuf.unknown_fields import UnknownFieldSet

_VARINT = 0


def may_have_unknown(messages: Message) -> bool:
    """Whether a field of *messages*, or of a part of them, may be unknown. They have none of them afterwards."""
    try:
        size = messages.ByteSize()
        messages.DiscardUnknownFields()
        return bool(messages.ByteSize() != size)
    except EncodeError:  # a required field (proto2) is missing
        return True


def misread(message: Any, kind: Descriptor) -> str | None:
    """What is wrong where *message*, of *kind*, has a field of the schema as another type.

    A closed enum may be of no column: its numbers without a name are `with_unnamed`.
    """
    known = {field.number: field for field in kind.fields}
    for one in UnknownFieldSet(message):
        field = known.get(one.field_number)
        if field is not None and _closed_values(field):
            return f"`{field.name}`: an entry has a number that its enum has no name for"
        if field is not None and not _closed(field):
            return f"`{field.name}`: it is written as another type than the schema's"
    for field in kind.fields:
        for part in _parts(message, field) if field.message_type is not None else ():
            if (why := misread(part, type(part).DESCRIPTOR)) is not None:
                return f"`{field.name}.{why.removeprefix('`')}"
    return None


def _parts(message: Any, field: FieldDescriptor) -> Iterator[Any]:
    """Yield the messages in *field*; the methods are the class's, as a field may be called like one."""
    if field.is_repeated:
        found = getattr(message, field.name)
        if not field.message_type.GetOptions().map_entry:
            yield from found
        elif field.message_type.fields_by_name["value"].message_type is not None:
            yield from found.values()
    elif type(message).HasField(message, field.name):
        yield getattr(message, field.name)


def _closed(field: FieldDescriptor) -> bool:
    return field.enum_type is not None and field.enum_type.is_closed


def _closed_values(field: FieldDescriptor) -> bool:
    message = field.message_type
    return message is not None and message.GetOptions().map_entry and _closed(message.fields_by_name["value"])


def with_unnamed(field: FieldDescriptor, get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """*get* of a closed enum, or of a list of one, that gives the numbers without a name too."""
    if not _closed(field):
        return get

    def found(message: Any) -> Any:
        value = get(message)
        if value is not None and not field.is_repeated:
            return value
        unnamed = [
            one.data
            for one in UnknownFieldSet(message)
            if one.field_number == field.number and one.wire_type == _VARINT
        ]
        if field.is_repeated:
            return [*value, *map(Unnamed, unnamed)]
        return unnamed[-1] if unnamed else None

    return found
