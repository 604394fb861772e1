"""`evolution` of a spec during decoding: check a schema before its first record becomes a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness_pipelines.formats.base import Due, Reason
from harness_pipelines.formats.contract.checks import judge_of
from harness_pipelines.formats.contract.pandera import ContractUnusable
from harness_pipelines.formats.schema.wire import NamedSchema
from harness_pipelines.formats.schema.writer_schema import NoFit, WriterType, WrittenField, convert_of
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.protocol.schema.policy import Offered, Refusal, tried, verdict
from harness_pipelines.protocol.schema.schemas import SchemaMoved
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import DecimalType, FieldType, ListType, MapType, Primitive, StructType, Type

_TYPES = {
    "boolean": "boolean", "string": "string", "bytes": "binary", "enum": "string", "date": "date", "time": "time",
    "instant": "timestamptz", "local": "timestamp", "uuid": "uuid",
}  # fmt: skip
_INTS = frozenset({"int", "int32", "sint32", "sfixed32", "google.protobuf.Int32Value"})  #: others take a long
_FLOATS = frozenset({"float", "google.protobuf.FloatValue"})
DECIMAL_DIGITS_MAX = 38
WAY_ON = "The next such record that is ingested changes them; or `harness evolve` does"


class SchemaDue(SchemaMoved):
    """A record's schema has what the table lacks and, by its policy, takes: the columns change before it is a row."""

    def __init__(self, table: str, *, named: NamedSchema, changes: ColumnChanges, told: Sequence[str]) -> None:
        self.named, self.changes = named, changes
        super().__init__(
            f"{table}: records of schema {named.schema_id} need other columns ({', '.join(told)}); nothing of them was "
            f"written. {WAY_ON}, then ask again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policy of one table."""

    spec: TableSpec
    due: Due

    @classmethod
    def of(cls, spec: TableSpec, *, due: Due) -> Policy | None:
        return None if spec.evolution == "manual" else cls(spec=spec, due=due)

    def check(self, named: NamedSchema, written: WriterType) -> None:
        """Raises: NoFit (schema_not_taken), SchemaDue."""
        fields = {field.name: field for field in written.fields}

        def gives(field: Offered, column: Column) -> str | None:
            try:
                convert_of(fields[field.name].written, column.type, column.source)
            except NoFit as why:
                return str(why).removeprefix(": ")
            return None

        found = verdict(self.spec, [offered(field) for field in written.fields], gives)
        if isinstance(found, Refusal):
            raise NoFit(found.why, reason=Reason.SCHEMA_NOT_TAKEN)
        if not found:
            return
        after = tried(self.spec, found)
        try:
            judge_of(after.spec)
        except ContractUnusable as why_not:
            raise NoFit(str(why_not), reason=Reason.SCHEMA_NOT_TAKEN) from why_not
        if self.due == "raise":
            raise SchemaDue(self.spec.table, named=named, changes=found, told=after.told)
        if self.due == "refuse":
            why = f"it needs other columns ({', '.join(after.told)}). {WAY_ON}"
            raise NoFit(why, reason=Reason.SCHEMA_NOT_TAKEN)


def offered(field: WrittenField) -> Offered:
    """What *field* offers to a table."""
    type_, trouble = None, ""
    try:
        type_ = type_of(field.written)
    except NoFit as why:
        trouble = str(why).removeprefix(": ")
    return Offered(
        name=field.name,
        type=type_,
        nullable=field.nullable,
        aliases=field.aliases,
        description=field.description,
        always=field.has is None,
        why=trouble,
    )


def type_of(written: WriterType) -> Type:
    """The type of a column that is made for what is *written*. Raises: NoFit."""
    word = written.name.partition(" ")[0]
    if written.column is not None:
        return Primitive(written.column)
    match written.kind:
        case "none":
            raise NoFit(written.trouble, reason=Reason.UNUSABLE_SCHEMA)
        case "int":
            return Primitive("int" if word in _INTS else "long")
        case "float":
            return Primitive("float" if word in _FLOATS else "double")
        case "decimal" if written.digits is None:
            raise NoFit(f"{written.name} does not tell how many digits it has")
        case "decimal":
            assert written.digits is not None
            digits = max(written.digits + max(-written.scale, 0), written.scale)
            if digits > DECIMAL_DIGITS_MAX:
                raise NoFit(f"{written.name} has more digits than {DECIMAL_DIGITS_MAX}, which a column has at most")
            return DecimalType(digits, max(written.scale, 0))
        case "list":
            assert written.element is not None
            return ListType(type_of(written.element))
        case "map":
            assert written.key is not None and written.element is not None
            return MapType(type_of(written.key), type_of(written.element))
        case "struct":
            return StructType(tuple(FieldType(f.name, type_of(f.written)) for f in written.fields))
    return Primitive(_TYPES[written.kind])
