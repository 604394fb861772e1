"""The spec of one table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from harness_pipelines.spec.columns import NAME_BYTES_MAX, Column, Columns, detail, names
from harness_pipelines.spec.part import SpecPart, TableEngine
from harness_pipelines.spec.quantities import Bytes, Count, Seconds
from harness_pipelines.spec.sections.about import Description, Owners, Tags
from harness_pipelines.spec.sections.catalogs import CatalogSpec, catalogs_trouble
from harness_pipelines.spec.sections.contract import Contract, StopAbove, contract_troubles, stop_above_trouble
from harness_pipelines.spec.sections.formats import KEY_FORMATS, Evolution, Format, KeyFormat, Schema, format_trouble
from harness_pipelines.spec.sections.keys import KEY_COLUMNS_MAX, Delete, key_trouble
from harness_pipelines.spec.sections.transform import Transform, transform_troubles
from harness_pipelines.spec.sources import UNAVAILABLE_VALUE, UnavailableValue
from harness_pipelines.spec.types import DecimalType
from harness_pipelines.spec.wording import odd_letter, quote, unknown_name

STREAM_SUFFIX = "__stream"  # of the stream view
QUARANTINE_SUFFIX = "__quarantine"  # of the Iceberg table with the bytes of records that were quarantined
PART_MAX = NAME_BYTES_MAX - len(STREAM_SUFFIX)
TOPICS_MAX = 32  # each has its own consumer
LEASE_S_MAX = 24 * 3600.0
HISTORY_S_MIN = 86400.0
BUFFER_BYTES_MIN = 64 * 2**20  # a segment gets its successor at half of it
LAYOUT_COLUMNS_MAX = 8
LAYOUT_COLUMNS_DEFAULT = 3
LAYOUT_TYPES = ("boolean", "int", "long", "float", "double", "decimal", "date", "timestamp", "timestamptz", "time",
                "string", "uuid")  # fmt: skip
LATER_VALUES: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "format": (("csv",), "it is not decoded yet", "json"),
}
_TABLE = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
_NUMBER = re.compile(r"[-+]?[\d._]+(e[-+]?\d+)?", re.IGNORECASE)


def _lease(seconds: float) -> float:
    if seconds > LEASE_S_MAX:
        raise ValueError(f"a lease lasts at most {LEASE_S_MAX // 3600:g}h, not {seconds / 3600:g}h")
    return seconds


def _history(seconds: float) -> float:
    if seconds < HISTORY_S_MIN:
        raise ValueError(f"history is kept for at least {HISTORY_S_MIN // 86400:g}d, not {seconds / 3600:g}h")
    return seconds


class TierRules(SpecPart):
    """When buffered rows move to the lake: whichever comes first."""

    max_rows: Annotated[Count, Field(description="Move when this number of rows is buffered.")] = 500_000
    max_bytes: Annotated[
        Bytes, Field(description="Move when the buffered rows have this number of bytes (KB = 1024 bytes).")
    ] = 256 * 2**20
    max_age: Annotated[
        Seconds, Field(description="Move buffered rows at the latest this long after tier's last move.")
    ] = 60.0


class BufferRules(SpecPart):
    """The buffer in Postgres, with a limit."""

    max_bytes: Annotated[
        Bytes, Field(description="Ingest pauses while the table's segments take this number of bytes in Postgres.")
    ]

    @field_validator("max_bytes", mode="after")
    @classmethod
    def _two_segments(cls, value: int) -> int:
        if value >= BUFFER_BYTES_MIN:
            return value
        raise ValueError(f"{value:,} bytes are less than two segments; write at least {BUFFER_BYTES_MIN // 2**20}MB")


def _buffer(value: Any) -> Any:
    if isinstance(value, dict | BufferRules) or value in ("postgres", "none"):
        return value if isinstance(value, str) else BufferRules.inside(value)
    raise ValueError(f"{quote(value)} is not allowed; allowed: postgres, none, {{max_bytes: 20GB}}")


class RecallRules(SpecPart):
    """The limit of rows recalled to Postgres."""

    max_rows: Annotated[
        Count, Field(description="At most this number of rows is recalled at a time; merges hold them in memory.")
    ] = 1_000_000


class ServeRules(SpecPart):
    """Limits of the cuts that `harness serve` makes of a keyed table."""

    hot_rows: Annotated[
        Count,
        Field(
            description="Up to this number of keys with a version above the batch view, `harness serve` shows the "
            "newest version of each; a server holds some 100 bytes for each in memory."
        ),
    ] = 1_000_000
    over: Annotated[
        Literal["lake", "refuse"],
        Field(
            description="Above it: lake: the state of the last merge is shown, or the last cut until the merge has "
            "passed that; refuse: loads are refused."
        ),
    ] = "lake"


class Layout(SpecPart):
    """Clustering of the batch view."""

    columns: Annotated[
        tuple[str, ...],
        Field(max_length=LAYOUT_COLUMNS_MAX),
        names(LAYOUT_COLUMNS_MAX),
        Field(
            description="The columns to cluster by, the most filtered first; default: times and whole numbers "
            f"of the table, at most {LAYOUT_COLUMNS_DEFAULT}.",
        ),
    ] = ()
    target_file_mb: Annotated[Count, Field(description="Target size of a region's file in megabytes.")] = 128
    regions: Annotated[Count | None, Field(description="Target number of regions, regardless of their file sizes.")] = (
        None
    )
    queries: Annotated[
        tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...],
        Field(
            description="Sets of `columns` that readers filter by together, equally often (repeat a set to weight it); "
            "default: all columns together, and each alone.",
        ),
    ] = ()
    sample: Annotated[
        float,
        Field(
            ge=0,
            le=0.5,
            description="Share of rows kept in separate files, which samples read; 0: none.",
        ),
    ] = 0.01
    staged_ratio: Annotated[
        float, Field(gt=0, le=10, description="Rewrite a region when the added bytes exceed this share of its size.")
    ] = 0.5


class Retention(SpecPart):
    """How long old versions and files are kept."""

    versions: Annotated[Seconds, Field(description="How long old versions of the table can be read.")] = 24 * 3600.0
    snapshots: Annotated[Count, Field(description="Snapshots kept in the current Iceberg metadata.")] = 50
    lease: Annotated[
        Seconds, AfterValidator(_lease), Field(description="Lease of a reader without a renewal; at most 24h.")
    ] = 15 * 60.0
    grace: Annotated[Seconds, Field(description="Delay between unreachable and deleted.")] = 10 * 60.0
    history: Annotated[
        Seconds,
        AfterValidator(_history),
        Field(
            description="Age from which moves, versions and events that nothing needs are folded into checkpoints, "
            "which keep their ranges, counts and digests; at least 1d."
        ),
    ] = 30 * 86400.0


class Freshness(SpecPart):
    """Objectives for alerts."""

    visible: Annotated[Seconds, Field(description="Time from the log until a record is readable.")] = 5.0
    lake: Annotated[Seconds, Field(description="Time from the log until a record is in the lake.")] = 15 * 60.0


def _moment(value: Any) -> Any:
    """A bare number would be taken for seconds, or for milliseconds, of 1970: 2026 and 20260101 as well."""
    is_number = isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value.strip()))
    if is_number:
        raise ValueError(f"{quote(value)} is not a time; write one such as 2026-01-01T00:00:00Z")
    return value


class StartAt(SpecPart):
    """Start at the first record that is not older."""

    timestamp: Annotated[
        AwareDatetime, BeforeValidator(_moment), Field(description="With its offset, such as 2026-01-01T00:00:00Z.")
    ]

    @field_validator("timestamp", mode="after")
    @classmethod
    def _in_utc(cls, value: datetime) -> datetime:
        return value.astimezone(UTC)


def _start(value: Any) -> Any:
    if isinstance(value, dict | StartAt):
        return StartAt.inside(value)
    if value in ("earliest", "latest"):
        return value
    raise ValueError(f"{quote(value)} is not a start; allowed: earliest, latest, {{timestamp: 2026-01-01T00:00:00Z}}")


Start = Annotated[Literal["earliest", "latest"] | StartAt, BeforeValidator(_start)]


def reserved_words(words: Mapping[str, Any]) -> dict[str, str]:
    """Settings that are reserved but not implemented yet, each with a remedy."""
    found: dict[str, str] = {}
    for word, (later, why, now) in LATER_VALUES.items():
        if isinstance(value := words.get(word), str) and value in later:
            found[word] = f"`{word}: {value}` is reserved: {why}; write `{word}: {now}` or remove it"
    shards = words.get("shards")
    if isinstance(shards, int) and shards > 1:
        found["shards"] = f"`shards: {shards}` is reserved: tables have one shard; write `shards: 1` or remove it"
    return found


Mode = Literal["runs", "external_worker", "manual"]


class TableSpec(SpecPart):
    """One logical table over a Kafka topic.

    ``TableSpec(table="shop.orders", columns={"id": {"type": "long", "required": True}, "amount": "decimal(12,2)"})``;
    from a file: `harness_pipelines.spec.load.load_spec`. Durations are seconds or text (``60s``), sizes bytes or text.

    Raises: SpecError, with one sentence for each problem.
    """

    model_config = ConfigDict(title="Table of the data harness")

    table: Annotated[
        str,
        Field(
            description="`namespace.name`, each a-z, 0-9 and _, beginning with a letter.",
            json_schema_extra={"pattern": f"^{_TABLE.pattern}$"},
        ),
    ]
    description: Description = None
    owners: Owners = ()
    tags: Tags = ()
    topic: Annotated[str, Field(description="Kafka topic; default: the table's name.")] = ""
    topics: Annotated[
        tuple[str, ...],
        Field(max_length=TOPICS_MAX),
        names(TOPICS_MAX),
        Field(
            description="Instead of `topic`: several topics, for append tables; their order cannot change. Partition "
            "p of the "
            "first is partition p of the table, partition p of the second is 65,536 + p, and so on.",
        ),
    ] = ()
    start: Annotated[
        Start,
        Field(description="Start of a new table: earliest, latest or {timestamp: 2026-01-01T00:00:00Z}."),
    ] = "earliest"
    format: Annotated[
        Format,
        Field(
            description="Format of the record values. json: an object with the columns; avro, protobuf, json-schema: "
            "with "
            "the schema registry or `schema`; raw: any bytes, one column; debezium: change events in JSON, with or "
            "without their schema block; debezium-avro: in Avro."
        ),
    ] = "json"
    value_schema: Annotated[Schema, Field(alias="schema")] = None
    columns: Annotated[
        Columns, Field(description="Names to types; the long form is {type: ..., required: true, from: iso8601}.")
    ]
    key: Annotated[
        tuple[str, ...],
        Field(max_length=KEY_COLUMNS_MAX),
        names(KEY_COLUMNS_MAX),
        Field(
            description="Key columns: of all records with the same key, the one with the highest offset wins. "
            "Without a key every record is a row.",
        ),
    ] = ()
    key_format: Annotated[
        KeyFormat,
        Field(
            description="Format of the record keys, which identify tombstones; default: the format of the values. "
            "json: an "
            "object with the key's columns, or the value of the only one; text, raw: the value of the only one "
            "without quotes, or its bytes.",
        ),
    ] = "json"
    key_schema: Schema = None
    delete: Annotated[
        Delete,
        Field(
            description="With `key`: which records delete, besides those without a value (tombstones): "
            "{field: op, values: "
            "[d]}."
        ),
    ] = "tombstone"
    unavailable_value: UnavailableValue = UNAVAILABLE_VALUE
    views: Annotated[
        Literal["stream", "batch", "both"],
        Field(description="Iceberg tables to keep: in offset order, in value order, or both."),
    ] = "both"
    layout: Annotated[Layout, Field(description="Clustering of the batch view.")] = Layout()
    buffer: Annotated[
        Literal["postgres", "none"] | BufferRules,
        BeforeValidator(_buffer),
        Field(description="postgres: readable at once; {max_bytes: 20GB}: with a limit; none: from Kafka to the lake."),
    ] = "postgres"
    engine: TableEngine = None
    shards: Annotated[Literal[1], Field(description="Number of sets of partitions with separate workers.")] = 1
    tier: Annotated[TierRules, Field(description="When buffered rows move to the lake.")] = TierRules()
    recall: Annotated[RecallRules, Field(description="Limit of `harness recall`.")] = RecallRules()
    serve: Annotated[ServeRules, Field(description="Limits of `harness serve`.")] = ServeRules()
    on_error: Annotated[
        Literal["quarantine", "stop"],
        Field(description="Action for a record that does not fit: quarantine it, or stop the table."),
    ] = "quarantine"
    unknown_fields: Annotated[
        Literal["ignore", "quarantine"],
        Field(description="Action for a field without a column: ignore it, or refuse the record."),
    ] = "ignore"
    evolution: Evolution = "manual"
    stop_above: Annotated[
        StopAbove | None,
        Field(description="Stop the table if too many records are refused: {refused: 5%, of_last: 10000}."),
    ] = None
    quarantine_mb: Annotated[
        Count,
        Field(
            description="Megabytes of quarantined bytes that stay in Postgres; above it, "
            "expire moves the oldest to an Iceberg table."
        ),
    ] = 64
    transform: Annotated[
        Transform | None, Field(description="Derive columns from a record's fields, and filter records.")
    ] = None
    contract: Annotated[Contract | None, Field(description="Constrain values with a contract.")] = None
    retention: Annotated[Retention, Field(description="How long old versions and files are kept.")] = Retention()
    freshness: Annotated[
        Freshness, Field(description="Objectives of checks; `lake` also sets how often otree merges.")
    ] = Freshness()
    catalogs: Annotated[
        tuple[CatalogSpec, ...],
        Field(description="Foreign catalogs that follow the published versions, so that other engines find the views."),
    ] = ()
    mode: Annotated[
        Mode,
        Field(description="Who runs the stages: Dagster runs, an external worker (`harness run`), or manual commands."),
    ] = "runs"

    @classmethod
    def called(cls, words: Any) -> str:
        name = words.get("table") if isinstance(words, Mapping) else None
        return name if isinstance(name, str) and _TABLE.fullmatch(name) else super().called(words)

    @model_validator(mode="before")
    @classmethod
    def _present_words(cls, value: Any) -> Any:
        """Treat a setting without a value as absent; the default topic is the table's name."""
        if not isinstance(value, dict):
            return value
        given = {word: v for word, v in value.items() if v is not None}
        for why in reserved_words(given).values():
            raise ValueError(why)
        table, several = given.get("table"), given.get("topics")
        defaults: dict[str, Any] = {"topic": table} if isinstance(table, str) and _TABLE.fullmatch(table) else {}
        if several and isinstance(several, list | tuple | str):
            defaults["topic"] = several if isinstance(several, str) else ",".join(map(str, several))
        if given.get("key") and isinstance(format_ := given.get("format"), str) and format_ in KEY_FORMATS:
            defaults["key_format"] = KEY_FORMATS[format_]
        return defaults | given

    @field_validator("table", mode="before")
    @classmethod
    def _table_name(cls, value: Any) -> Any:
        if not isinstance(value, str) or not _TABLE.fullmatch(value):
            raise ValueError(
                f"{quote(value)} is not a table name; write namespace.name, each of a-z, 0-9 and _, "
                f"beginning with a letter{odd_letter(value) if isinstance(value, str) else ''}"
            )
        if (longest := max(map(len, value.split(".")))) > PART_MAX:
            raise ValueError(f"{quote(value)} is too long; each part has at most {PART_MAX} characters, not {longest}")
        if value.endswith(STREAM_SUFFIX):
            raise ValueError(
                f"{value!r} ends with __stream, which names the stream view of another table; name it otherwise"
            )
        if value.endswith(QUARANTINE_SUFFIX):
            raise ValueError(
                f"{value!r} ends with __quarantine, which names the quarantine of another table; name it otherwise"
            )
        return value

    @model_validator(mode="after")
    def _keys(self) -> TableSpec:
        troubles = (format_trouble(self), ("topics" if self.topics else "topic", self._topics_trouble()),
                    self._default_trouble(),
                    ("key", key_trouble(self.key, {c.name: c.type for c in self.columns})),
                    ("key_format", self._key_format_trouble()), ("delete", self._delete_trouble()),
                    ("views", self._views_trouble()), ("stop_above", stop_above_trouble(self)),
                    ("catalogs", catalogs_trouble(self.catalogs, self.views)))  # fmt: skip
        for word, why in filter(None, troubles):
            if why:
                found = getattr(self, "value_schema" if word == "schema" else word.partition(".")[0])
                raise ValidationError.from_exception_data("table", [detail(tuple(word.split(".", 2)), why, found)])
        return self

    def _topics_trouble(self) -> str | None:
        """Of several topics; `topic` then has them all, as no topic is called."""
        found = self.topic.split(",")
        if tuple(found) != self.topics and (self.topics or len(found) > 1):
            listed = ", ".join(",".join(self.topics or found).split(","))
            return f"write either `topic: {found[0]}` or `topics: [{listed}]`, and names without commas"
        if len(self.topics) == 1:
            return f"one topic is written `topic: {self.topic}`"
        if len(set(found)) != len(found):
            return f"{max(found, key=found.count)!r} is named twice; remove one"
        if self.topics and self.key:
            return "a keyed table has one topic: all records of a key must be in one partition"
        return None

    def _default_trouble(self) -> tuple[str, str] | None:
        named = [c.name for c in self.columns if c.default is not None and c.name in self.key]
        if not named:
            return None
        return (
            f"columns.{named[0]}",
            f"key column {named[0]!r} has a `default`; each record must have its key: remove it",
        )

    def _key_format_trouble(self) -> str | None:
        if self.key_format == "text" and len(self.key) > 1:
            return f"text holds one value, and the key has {len(self.key)} columns; write the keys as json"
        return None

    def _views_trouble(self) -> str | None:
        if self.key and self.views == "batch":
            return (
                "a keyed table needs the stream view, its changelog, from which the batch view is made; write `views: "
                "both` or `views: stream`"
            )
        return None

    def _delete_trouble(self) -> str | None:
        if not self.key and self.delete != "tombstone":
            return "records can delete only in a table with a `key`; add one, or remove `delete`"
        return None

    @model_validator(mode="after")
    def _transform(self) -> TableSpec:
        if wrong := [detail(("transform", *t.place), t.why, t.found) for t in transform_troubles(self)]:
            raise ValidationError.from_exception_data("transform", wrong)
        return self

    @model_validator(mode="after")
    def _contract(self) -> TableSpec:
        if wrong := [detail(("contract", *t.place), t.why, t.found) for t in contract_troubles(self)]:
            raise ValidationError.from_exception_data("contract", wrong)
        return self

    @model_validator(mode="after")
    def _layout_columns(self) -> TableSpec:
        for word, why in (("columns", self._layout_trouble()), ("queries", self._queries_trouble())):
            if why:
                wrong = detail(("layout", word), why, [*getattr(self.layout, word)])
                raise ValidationError.from_exception_data("layout", [wrong])
        return self

    def _layout_trouble(self) -> str | None:
        types = {c.name: c.type for c in self.columns}
        wanted = self.layout.columns
        for name in wanted:
            if name not in types:
                return unknown_name(name, list(types))
            if not isinstance(types[name], DecimalType) and str(types[name]) not in LAYOUT_TYPES:
                ordered = ", ".join(LAYOUT_TYPES)
                return f"column {name!r} of type {types[name]} has no order to cluster by; types that have: {ordered}"
        return (
            f"{max(wanted, key=wanted.count)!r} is named twice; remove one" if len(set(wanted)) != len(wanted) else None
        )

    def _queries_trouble(self) -> str | None:
        for together in self.layout.queries:
            for name in together:
                if name not in self.indexed:
                    return f"the view is not clustered by {name!r}, but by {', '.join(self.indexed)}"
            if len(set(together)) != len(together):
                return f"{max(together, key=together.count)!r} is named twice in [{', '.join(together)}]; remove one"
        return None

    @field_validator("topic", mode="before")
    @classmethod
    def _one_topic(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            raise ValueError(f"one topic is text; several are written `topics: {quote(value)}`")
        return value

    @field_validator("topic")
    @classmethod
    def _topic_name(cls, value: str) -> str:
        for name in value.split(","):
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) or name in {".", ".."}:
                raise ValueError(
                    f"{quote(name)} is not a topic name; use 1 to 249 of A-Z, a-z, 0-9, `.`, `_` and `-`"
                    f"{odd_letter(name)}"
                )
        return value

    @property
    def indexed(self) -> tuple[str, ...]:
        """The columns that the batch view is clustered by; the time of the record when no column suggests itself."""
        if self.layout.columns:
            return self.layout.columns
        preferred = ("timestamp", "timestamptz", "date", "long", "int")
        found = sorted(
            (c for c in self.columns if str(c.type) in preferred), key=lambda c: preferred.index(str(c.type))
        )
        return tuple(c.name for c in found[:LAYOUT_COLUMNS_DEFAULT]) or ("_kafka_timestamp",)

    @property
    def buffer_kind(self) -> Literal["postgres", "none"]:
        """Where records wait for the lake."""
        return "postgres" if isinstance(self.buffer, BufferRules) else self.buffer

    @property
    def buffer_bytes_max(self) -> int | None:
        """Bytes of the buffer at which ingest pauses; None: only the limit of the server holds."""
        return self.buffer.max_bytes if isinstance(self.buffer, BufferRules) else None

    @property
    def stored(self) -> tuple[Column, ...]:
        """The columns as tiers hold them: in a delete all but those of the key are NULL."""
        if not self.key:
            return self.columns
        return tuple(c if c.name in self.key else replace(c, required=False) for c in self.columns)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the key, in its order."""
        named = {c.name: c for c in self.columns}
        return tuple(named[name] for name in self.key)

    @property
    def namespace(self) -> str:
        return self.table.partition(".")[0]

    @property
    def name(self) -> str:
        return self.table.partition(".")[2]
