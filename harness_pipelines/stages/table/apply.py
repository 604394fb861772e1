"""Create a table from its spec, change its settings, drop it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import NoSchemas, SchemaUnusable
from harness_pipelines.ports.access import HasLake, HasLedger, HasLog, HasOwnership, HasSchemas, HasSegments
from harness_pipelines.ports.errors import TopicCompacted
from harness_pipelines.ports.ledger import TableExists, TableRow, TableUnknown
from harness_pipelines.ports.source import TopicIdentity, described, settled
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.schema.schemas import SpecMoved
from harness_pipelines.protocol.topics import topics_of
from harness_pipelines.spec.load import check_rules, load_spec, located, written_spec
from harness_pipelines.spec.sections.formats import WITH_SCHEMA, GivenSchema
from harness_pipelines.spec.table import StartAt, TableSpec
from harness_pipelines.spec.types import iceberg_fields

Changes = Mapping[str, tuple[Any, Any]]  #: by setting, as a person writes it: what it was, and what it is
_FIXED = ("topic", "columns", "key", "buffer", "start", "views")
_OF_DECODING = ("key_format", "key_schema", "format", "schema", "delete", "transform")  #: fixed by the first row


class Ports(HasLake, HasLedger, HasLog, HasOwnership, HasSchemas, HasSegments, Protocol):
    """The ports that it uses."""


def apply_spec(stores: Ports, spec: str | Path | TableSpec) -> TableRow:
    """Create the table, or take over the settings of one that exists; a second call changes nothing.

    Raises: SpecError, ContractUnusable, SchemaUnusable, TopicMissing, TopicCompacted, KafkaUnreachable, TableExists (a
    word differs that cannot change), TopicRecreated; SpecMoved, if the spec was changed meanwhile.
    """
    if not isinstance(spec, TableSpec):
        with located(spec):
            return apply_spec(stores, load_spec(spec))
    wanted, found = spec, _checked(stores, spec)
    if (known := found.known) is None:
        return _create(stores, wanted, found.identity)
    if known.spec == wanted:
        return known
    try:
        return stores.ledger.update_spec(known, wanted, decoding=found.decoding)
    except SpecMoved:
        now = stores.ledger.table(wanted.table)
        _check_fits(now, wanted)  # after a change of columns it may no longer fit, and that message says more
        if now.spec == wanted:  # another caller applied the same
            return now
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPlan:
    """What applying a spec would do."""

    result: Literal["create", "change", "nothing"]
    partitions: tuple[int, ...]  #: of the topic
    changes: Changes


def plan_apply(stores: Ports, spec: TableSpec) -> ApplyPlan:
    """All that `apply_spec` checks; nothing is changed. Raises: as it."""
    found = _checked(stores, spec)
    if found.known is None:
        return ApplyPlan(result="create", partitions=found.identity.partitions, changes={})
    changes = settings_changed(found.known.spec, spec)
    return ApplyPlan(result="change" if changes else "nothing", partitions=found.identity.partitions, changes=changes)


def settings_changed(old: TableSpec, new: TableSpec) -> Changes:
    """The settings in which two specs differ."""
    was, now = (dict(_settings(written_spec(spec))) for spec in (old, new))
    return {word: (was.get(word), now.get(word)) for word in {**was, **now} if was.get(word) != now.get(word)}


def _settings(words: Mapping[str, Any], *, inside: str = "") -> Iterator[tuple[str, Any]]:
    for word, value in words.items():
        if isinstance(value, Mapping):
            yield from _settings(value, inside=f"{inside}{word}.")
        else:
            yield f"{inside}{word}", value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """A spec that can be applied."""

    known: TableRow | None  #: the table; None: there is none yet
    decoding: bool  #: it only decodes otherwise, and there is no row yet
    identity: TopicIdentity


def _checked(stores: Ports, wanted: TableSpec) -> _Checked:
    check_rules(wanted, source=wanted.table)
    RecordCodec(wanted, stores.schemas)  # a contract or schema of the spec that cannot be used makes no table
    identity = described(stores.log, wanted.topic)
    try:
        known = stores.ledger.table(wanted.table)
    except TableUnknown:
        check_schemas_known(stores, wanted)
        _check_keeps_records(stores, wanted)
        return _Checked(known=None, decoding=False, identity=identity)
    decoding = _decodes_otherwise(known.spec, wanted)
    if decoding:
        check_schemas_known(stores, wanted)
        decoding = known.schema_version == 1 and not stores.segments.beginning(known, limit=1).taken
    _check_fits(known, wanted, decoding=decoding)
    identity = settled(known.identity, lambda: stores.log.describe(wanted.topic))
    return _Checked(known=known, decoding=decoding, identity=identity)


def _check_keeps_records(stores: Ports, spec: TableSpec) -> None:
    """Raises: TopicCompacted."""
    for topic in topics_of(spec.topic):
        if not spec.key and "compact" in (policy := stores.log.cleanup_policy(topic) or ""):
            raise TopicCompacted(topic, table=spec.table, policy=policy)


def _create(stores: Ports, spec: TableSpec, identity: TopicIdentity) -> TableRow:
    from harness_pipelines.protocol.lake.properties import STARTS, TOPIC, vector_text

    start = spec.start.timestamp if isinstance(spec.start, StartAt) else spec.start
    starts: Vector = stores.log.start_offsets(spec.topic, identity.partitions, start)
    stores.ownership.check()
    origin = {
        TOPIC: f"{identity.cluster_id}/{identity.topic_id}",
        STARTS: vector_text(starts),
    }
    views, fields = stores.lake.make_views(spec, iceberg_fields(spec.stored), origin=origin)
    return stores.ledger.create_table(spec, identity, starts=starts, fields=fields, views=views)


def check_schemas_known(stores: Ports, spec: TableSpec) -> None:
    """Raises: SchemaUnusable, where records name their schemas and nothing knows one."""
    if not isinstance(stores.schemas, NoSchemas):
        return
    for word, format_, of_spec in _unschemed(spec):
        raise SchemaUnusable(
            f"table {spec.table}: `{word}: {format_}` needs a schema, and there is none: no registry is known, and "
            f"the spec has no `{of_spec}`; nothing was changed. Set HARNESS_REGISTRY, or write `{of_spec}: {{file: "
            "PATH}` where records begin with no schema id"
        ).blaming(word)


def asks_registry(spec: TableSpec) -> bool:
    """Return whether records of *spec* name schemas that a registry has."""
    return any(True for _ in _unschemed(spec))


def _unschemed(spec: TableSpec) -> Iterator[tuple[str, str, str]]:
    """The words for the format of values and of keys that need a schema and are given none: the format's word, it
    itself, and the word for its schema."""
    words: list[tuple[str, str, str, GivenSchema | None]] = [("format", spec.format, "schema", spec.value_schema)]
    if spec.key:
        words.append(("key_format", spec.key_format, "key_schema", spec.key_schema))
    for word, format_, of_spec, schema in words:
        if format_ in WITH_SCHEMA and schema is None:
            yield word, format_, of_spec


def _decodes_otherwise(known: TableSpec, wanted: TableSpec) -> bool:
    """Return whether only the decoding differs: the stored columns are the same."""
    if any(_word(known, word) != _word(wanted, word) for word in _FIXED if word != "columns"):
        return False
    if iceberg_fields(known.stored) != iceberg_fields(wanted.stored):
        return False
    return any(_word(known, word) != _word(wanted, word) for word in ("columns", *_OF_DECODING))


def _word(spec: TableSpec, word: str) -> Any:
    if word == "buffer":
        return spec.buffer_kind  # its limit may change
    return getattr(spec, "value_schema" if word == "schema" else word)


def _check_fits(known: TableRow, wanted: TableSpec, *, decoding: bool = False) -> None:
    """Settings may change; what rows already depend on may not.

    *decoding*: only words of decoding differ, and there is no row yet.
    """
    if known.view_set.clustered and known.spec.indexed != wanted.indexed:
        raise TableExists(
            f"table {wanted.table} is clustered by {', '.join(known.spec.indexed)}, and its regions are cut in these "
            "columns; nothing was changed. Leave `layout.columns` as it is, or apply the spec under another name"
        )
    if known.view_set.clustered and known.spec.layout.sample != wanted.layout.sample:
        raise TableExists(
            f"table {wanted.table} keeps a sample of {known.spec.layout.sample:g} of its rows in separate files; "
            "nothing was changed. Leave `layout.sample` as it is, or apply the spec under another name"
        )
    if decoding:
        return
    for word in (*_FIXED, *_OF_DECODING):
        if _word(known.spec, word) != _word(wanted, word):
            raise TableExists(
                f"table {wanted.table} exists with another `{word}`; nothing was changed. {_way_on(word, wanted)}"
            )


def _way_on(word: str, wanted: TableSpec) -> str:
    if word == "columns":
        return (
            f"Columns change in all tiers at once: `harness evolve {wanted.table} --to FILE --dry-run` shows what this "
            f"spec would change; where the table is ahead of the file, `harness table show {wanted.table}` prints its "
            "spec"
        )
    way_on = "Drop the table (`harness table drop`) or apply the spec under another name"
    if word in _OF_DECODING:
        return f"It says how records are decoded, which may change only while no record is a row. {way_on}"
    return way_on
