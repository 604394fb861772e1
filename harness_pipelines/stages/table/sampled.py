"""Check a spec against its topic: decode a few records as the table would, and write nothing.

A spec that is wrong for every record still makes a table; only the person who applies it can notice.
An error that would stop every worker, such as a refused login, is raised before anything is created.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from harness_pipelines.formats.base import Codec
from harness_pipelines.formats.choose import key_codec
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ports.access import HasLake, HasLedger, HasLog, HasOwnership, HasSchemas, HasSegments
from harness_pipelines.ports.source import PartitionBatch, described
from harness_pipelines.spec.sections.transform import input_columns
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.table.apply import asks_registry, check_schemas_known
from harness_pipelines.stages.table.ends import WAIT_S, both_ends, marks_of

if TYPE_CHECKING:
    from harness_pipelines.formats.schema.registry import Schemas

RECORDS_OF_EACH_END = 20
NO_SCHEMA = 2**31 - 1  #: an id that no registry has given
_FIELD = re.compile(r"`([^`]+)`: (.*)", re.DOTALL)


class Ports(HasLake, HasLedger, HasLog, HasOwnership, HasSchemas, HasSegments, Protocol):
    """The ports that it uses."""


@dataclass(slots=True)
class Misfit:
    """Sampled records that are refused alike, and the first of them."""

    reason: str
    field: str | None  #: that does not fit; None: it is not one field
    detail: str
    partition: int
    offset: int
    records: int = 1

    def __str__(self) -> str:
        place = f" in {self.field}" if self.field else ""
        first = f"partition {self.partition}, offset {self.offset}"
        return f"{self.records:,} {self.reason}{place}: {self.detail} ({first})"


@dataclass(slots=True)
class Sampled:
    """What became of some records of a topic."""

    records: int = 0
    fit: int = 0
    filtered: int = 0  #: they fit, and the transform's filter leaves them out
    misfits: dict[tuple[str, str | None], Misfit] = field(default_factory=dict)
    key_misfit: str | None = None  #: why the key of a record that is a row could not delete it

    def add(self, codec: RecordCodec, batch: PartitionBatch, keys: Codec | None = None) -> None:
        """*keys*: of record keys that name rows, where tombstones delete."""
        decoded = codec.decode(batch.values, batch.keys, batch.headers)
        if keys is not None and self.key_misfit is None:
            self.key_misfit = _key_misfit(keys, batch, decoded.accepted.tolist())
        self.records += len(batch)
        self.fit += decoded.rows.num_rows
        self.filtered += decoded.filtered
        for one in decoded.refused:
            named = _FIELD.fullmatch(one.detail)
            where, detail = (named[1], named[2]) if named else (None, one.detail)
            found = self.misfits.get((one.reason, where))
            if found is not None:
                found.records += 1
                continue
            offset = int(batch.offsets[one.index])
            self.misfits[one.reason, where] = Misfit(one.reason, where, detail, batch.partition, offset)

    def summary(self) -> str:
        """One line for people."""
        if not self.records:
            return "the topic has no records yet, so nothing says whether the spec fits them"
        parts = [f"{self.fit:,} of {self.records:,} fit"]
        if self.filtered:
            parts.append(f"{self.filtered:,} are left out by the filter")
        parts += [str(one) for one in sorted(self.misfits.values(), key=lambda one: -one.records)]
        if self.key_misfit is not None:
            parts.append(f"a tombstone would be refused, for the record's key does not name a row: {self.key_misfit}")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        names = ("reason", "field", "detail", "partition", "offset", "records")
        refused = [{name: getattr(one, name) for name in names} for one in self.misfits.values()]
        seen = {"records": self.records, "fit": self.fit, "filtered": self.filtered, "refused": refused}
        return seen | {"key_misfit": self.key_misfit}


def sample(stores: Ports, spec: TableSpec, *, wait_s: float = WAIT_S) -> Sampled:
    """Decode the oldest and newest records of each partition, of the first 64 that have any.

    Records that do not arrive in time are left out. Raises: what the log, the codec and the registry do.
    """
    check_schemas_known(stores, spec)
    found = Sampled()
    codec, keys = RecordCodec(spec, stores.schemas), keys_of(spec, stores.schemas)
    identity = described(stores.log, spec.topic)
    if asks_registry(spec):
        stores.schemas.by_id(NO_SCHEMA)  # a login that is wrong is wrong before there are records
    marks = marks_of(stores.log, identity)
    for batch in both_ends(stores.log, identity, marks, each=RECORDS_OF_EACH_END, wait_s=wait_s):
        found.add(codec, batch, keys)
    return found


def keys_of(spec: TableSpec, schemas: Schemas) -> Codec | None:
    """The codec of record keys, where a tombstone deletes what its key names; change events name it themselves."""
    if not spec.key or spec.format.startswith("debezium"):
        return None
    return key_codec(spec.model_copy(update={"columns": input_columns(spec), "transform": None}), schemas)


def _key_misfit(keys: Codec, batch: PartitionBatch, rows: Sequence[int]) -> str | None:
    """Why the first record key among *rows* that names no row does not; those without a key come to no tombstone."""
    asked = [i for i in rows if batch.keys[i] is not None]
    refused = keys.decode([batch.keys[i] for i in asked]).refused if asked else []
    if not refused:
        return None
    offset = int(batch.offsets[asked[refused[0].index]])
    return f"{refused[0].detail} (partition {batch.partition}, offset {offset})"
