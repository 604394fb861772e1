"""Propose the spec of a table from the records of its topic."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from harness_pipelines.formats.infer.proposal import DELETED, Proposal, propose
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ports.access import HasLog, HasSchemas
from harness_pipelines.ports.source import PartitionBatch, described
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.load import check_rules, read_back
from harness_pipelines.spec.sections.keys import key_trouble
from harness_pipelines.spec.table import PART_MAX, TableSpec
from harness_pipelines.stages.table.ends import both_ends, marks_of
from harness_pipelines.stages.table.sampled import Sampled, keys_of

RECORDS = 500  #: that are read at most
NAMESPACE = "topics"  #: of a topic whose name has no dot
_ODD = re.compile(r"[^a-z0-9_]+")


class Ports(HasLog, HasSchemas, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedSpec:
    """A spec, what it was made from, and what it would make of that."""

    spec: TableSpec
    words: Mapping[str, Any]  #: the spec as it is written in a file, without defaults
    proposal: Proposal
    partitions: int  #: of the topic
    sampled: Sampled
    notes: tuple[str, ...]  #: for people


def propose_spec(
    stores: Ports, topic: str, *, table: str | None = None, key: Sequence[str] = (), records: int = RECORDS
) -> ProposedSpec:
    """Propose a spec from the oldest and newest records of *topic*, about *records* in all.

    *table* and *key* are the caller's words on it. Raises: TopicMissing; UsageError where no record tells anything;
    SpecError for a *table* or *key* that cannot be; what the log and the registry raise.
    """
    identity = described(stores.log, topic)
    marks = marks_of(stores.log, identity)
    each = max(1, records // (2 * max(1, len(marks))))
    batches = list(both_ends(stores.log, identity, marks, each=each))
    values, keys = _in_order(batches)
    found = propose(values, keys, stores.schemas)
    found, notes = _keyed(found, key, is_compacted="compact" in (stores.log.cleanup_policy(topic) or ""))
    words = _words(found, table or table_of(topic), topic)
    spec = read_back(words, source=(source := f"the spec proposed for topic {topic}"))
    check_rules(spec, source=source)
    sampled, codec, keys_codec = Sampled(), RecordCodec(spec, stores.schemas), keys_of(spec, stores.schemas)
    for batch in batches:
        sampled.add(codec, batch, keys_codec)
    return ProposedSpec(
        spec=spec,
        words=words,
        proposal=found,
        partitions=len(identity.partitions),
        sampled=sampled,
        notes=(*found.notes, *notes),
    )


def table_of(topic: str) -> str:
    """The name of a table for *topic*: its last two parts between dots, in letters that a name may have."""
    parts = [_ODD.sub("_", part.lower()).strip("_") for part in topic.split(".")]
    named = [part if part[0].isalpha() else f"t_{part}" for part in parts if part] or ["topic"]
    namespace, name = named[-2:] if len(named) > 1 else (NAMESPACE, named[0])
    return f"{namespace[:PART_MAX]}.{name[:PART_MAX]}"


def _in_order(batches: Sequence[PartitionBatch]) -> tuple[list[bytes | None], list[bytes | None]]:
    """Values and keys by the time of their records."""
    found = [
        (time_ms, batch.partition, offset, value, key)
        for batch in batches
        for time_ms, offset, value, key in zip(
            batch.timestamps_ms.tolist(), batch.offsets.tolist(), batch.values, batch.keys, strict=True
        )
    ]
    found.sort(key=lambda one: one[:3])
    return [one[3] for one in found], [one[4] for one in found]


def _keyed(found: Proposal, key: Sequence[str], *, is_compacted: bool) -> tuple[Proposal, list[str]]:
    """*found* with the caller's *key*; a topic that is compacted has tables with a key alone."""
    if key:
        same = tuple(key) == found.key
        key_format = found.key_format if same else None
        return replace(found, key=tuple(key), key_format=key_format, is_keyed=True), []
    types = {one.column.name: one.column.type for one in found.fields.columns}
    notes = []
    if found.key and (why := key_trouble(found.key, types)):
        notes.append(f"the record keys are no key of a table: {why}")
        found = replace(found, key=(), key_format=None)
    if is_compacted and not found.key:
        notes.append("the topic is compacted, so its table needs a key, and the records do not tell one: give --key")
    return replace(found, is_keyed=found.is_keyed or (is_compacted and bool(found.key))), notes


def _words(found: Proposal, table: str, topic: str) -> dict[str, Any]:
    words: dict[str, Any] = {"table": table}
    if topic != table:
        words["topic"] = topic
    if found.format != "json":
        words["format"] = found.format
    if found.is_keyed:
        words["key"] = list(found.key)
        if found.key_format is not None:
            words["key_format"] = found.key_format
        if found.deleted is not None:
            words["delete"] = {"field": DELETED, "values": [found.deleted]}
    return words | {"columns": {one.column.name: _column(one.column) for one in found.fields.columns}}


def _column(column: Column) -> str | dict[str, Any]:
    more = {"from": column.source, "description": column.description}
    words = {"type": str(column.type)} | {word: value for word, value in more.items() if value is not None}
    return words if len(words) > 1 else words["type"]
