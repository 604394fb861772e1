"""The encoding settings of a spec: ``format``, ``key_format``, ``schema`` and ``key_schema``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from harness_pipelines.spec.part import SpecPart
from harness_pipelines.spec.sources import UNAVAILABLE_VALUE, WHOLE, decimal_trouble

if TYPE_CHECKING:
    from harness_pipelines.spec.table import TableSpec

Format = Literal["json", "avro", "protobuf", "json-schema", "raw", "debezium", "debezium-avro"]
KeyFormat = Literal["json", "text", "avro", "protobuf", "json-schema", "raw"]
KEY_FORMATS: Mapping[str, KeyFormat] = {
    "json": "json", "avro": "avro", "protobuf": "protobuf", "json-schema": "json-schema", "raw": "raw",
    "debezium": "json", "debezium-avro": "avro",
}  # fmt: skip  #: by format: how keys are written where the spec does not say
WITH_SCHEMA = frozenset({"avro", "protobuf", "json-schema", "debezium-avro"})
SAYS_COLUMNS = frozenset({"avro", "protobuf", "debezium-avro"})  #: their schemas say what columns there are
Evolution = Annotated[
    Literal["manual", "compatible", "strict"],
    Field(
        description="Effect of a new schema in the registry. manual: none, columns change only by `harness "
        "evolve`; compatible: compatible schemas change the columns; strict: records are refused until the columns "
        "match the schema."
    ),
]
SCHEMA_CHARS_MAX = 2**20


class GivenSchema(SpecPart):
    """A schema that the spec itself has; records are then written without the id of one."""

    text: Annotated[
        str,
        Field(
            min_length=1,
            max_length=SCHEMA_CHARS_MAX,
            description="The schema: Avro's or JSON Schema's JSON, or a .proto file. In a file, `file: PATH` beside "
            "the spec stands for it; the ledger keeps the text.",
        ),
    ]
    message: Annotated[str | None, Field(description="Protobuf: the full name of the message, such as shop.Order.")] = (
        None
    )

    @model_validator(mode="before")
    @classmethod
    def _no_file(cls, value: Any) -> Any:
        if isinstance(value, dict) and "file" in value:
            raise ValueError("`file` is read where the spec is a file; in Python: {'text': Path(...).read_text()}")
        return value


Schema = Annotated[
    GivenSchema | None,
    Field(
        description="avro, protobuf, json-schema: the schema of all records, {file: PATH} or {text: ...}, for Protobuf "
        "with {message: NAME}. Without it records start with the id of a schema in the registry "
        "(HARNESS_REGISTRY)."
    ),
]


def names_schema(spec: TableSpec) -> bool:
    """The values begin with the id of their schema in a registry."""
    return spec.format in WITH_SCHEMA and spec.value_schema is None


def format_trouble(spec: TableSpec) -> tuple[str, str] | None:
    """The word of *spec* that does not go with its format, and why."""
    return _debezium_trouble(spec) or _schema_trouble(spec) or _raw_trouble(spec) or _evolution_trouble(spec)


def _evolution_trouble(spec: TableSpec) -> tuple[str, str] | None:
    if spec.evolution == "manual":
        return None
    why = None
    if spec.format not in SAYS_COLUMNS:
        which = ", ".join(sorted(SAYS_COLUMNS))
        why = f"records of `format: {spec.format}` name no schema that says what columns there are; those of {which} do"
    elif spec.value_schema is not None:
        why = "with a `schema` in the spec, records name no schema that could change the columns"
    elif spec.transform is not None:
        why = "with `transform` the columns are not the fields of the records"
    elif spec.evolution == "compatible" and spec.buffer_kind == "none":
        why = "ingest changes the columns when it reads a new schema, and with `buffer: none` there is no ingest"
    return None if why is None else ("evolution", f"{why}; write `evolution: manual`, or remove it")


def _debezium_trouble(spec: TableSpec) -> tuple[str, str] | None:
    if not spec.format.startswith("debezium"):
        if spec.unavailable_value != UNAVAILABLE_VALUE:
            return "unavailable_value", "only events of `format: debezium` have it; remove it"
        return None
    if not spec.key:
        return (
            "key",
            f"`format: {spec.format}` needs it: without a key each update of a row would count as one more row; name "
            "the columns of the source's primary key, such as `key: [id]`",
        )
    if spec.delete != "tombstone":
        return "delete", f"the events of `format: {spec.format}` state themselves which row they delete; remove it"
    if spec.format == "debezium-avro":
        if spec.key_format not in {"avro", "json"}:
            return "key_format", "the record keys of `format: debezium-avro` are avro or json"
        return None
    if spec.key_format != "json":
        return "key_format", "the record keys of `format: debezium` are json; remove it"
    for column in spec.columns:
        if column.source not in WHOLE and (why := decimal_trouble(column.type, column.source)):
            return f"columns.{column.name}", f"column {column.name!r} of type {column.type}: {why}"
    return None


def _schema_trouble(spec: TableSpec) -> tuple[str, str] | None:
    for word, schema, format_ in (
        ("schema", spec.value_schema, spec.format),
        ("key_schema", spec.key_schema, spec.key_format),
    ):
        if schema is None:
            continue
        if format_ not in WITH_SCHEMA:
            which = "key_format" if word == "key_schema" else "format"
            return word, f"`{which}: {format_}` has no schema; remove it, or write `{which}: avro`"
        if schema.message is not None and format_ != "protobuf":
            return word, "`message` is only for Protobuf; remove it"
    if spec.key_schema is not None and not spec.key:
        return "key_schema", "record keys are read only if the table has a `key`; remove it"
    return None


def _raw_trouble(spec: TableSpec) -> tuple[str, str] | None:
    fields = [c for c in spec.columns if c.source not in WHOLE]
    if spec.format == "raw":
        wrong = [c for c in fields if c.source is not None or str(c.type) not in WHOLE["raw_value"]]
        if wrong or len(fields) > 1:
            return "columns", (
                "`format: raw` gives one column, of type binary or string, which has the value as it is; the others "
                f"say `from: {'`, `from: '.join(WHOLE)}`"
            )
        if any(c.aliases for c in fields):
            return (
                "columns",
                "a value of `format: raw` has no fields, so its column has no other names; remove `aliases`",
            )
        if any(c.default is not None for c in fields):
            return "columns", "a value of `format: raw` has no fields that could be missing; remove `default`"
        if spec.delete != "tombstone":
            return "delete", "a value of `format: raw` has no fields; only tombstones delete"
    elif not fields:
        return (
            "columns",
            f"no column is a field; name one, or write `format: raw` in place of {spec.format}",
        )
    return _raw_key_trouble(spec)


def _raw_key_trouble(spec: TableSpec) -> tuple[str, str] | None:
    named = [c for c in spec.columns if c.name in spec.key]
    for column in named:
        if column.source in {"headers", "raw_value"} or (spec.format == "raw" and column.source is None):
            return (
                "key",
                f"column {column.name!r} comes from the value, which tombstones lack; use a column with "
                f"`from: raw_key`",
            )
        if column.source == "raw_key" and spec.key_format != "raw":
            return (
                "key_format",
                f"column {column.name!r} has the bytes of the record's key: write `key_format: raw`",
            )
    if spec.key and spec.key_format == "raw" and (len(named) != 1 or str(named[0].type) not in WHOLE["raw_key"]):
        return "key_format", "raw keys are one column of type binary or string"
    return None
