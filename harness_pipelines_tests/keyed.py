"""A producer of keyed records that keeps its own log, and the state that this folds to: what keyed tables must show."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.ports.requests import RecallRequest
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.overlays import OverlayRequest
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines_tests.engines import static
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import OTREE, TableRig

Key = tuple[Any, ...]
COLUMNS: Mapping[str, Any] = {"id": "long", "region": "string", "n": "int", "s": "string"}
DELETE = {"field": "op", "values": ["d"]}
KEYS = 40  #: that `KeyedRig.produce` speaks of
EVERYTHING = dict.fromkeys(range(2), 10**9)  #: bounds above all records of a rig
BY_VALUE = {"columns": ["n", "id"], "regions": 4}


class KeyedRig(TableRig):
    """A keyed table over a topic of its own. A record is a put of ``{column: value}``, or a delete of a key.

    All records of a key go to one partition, which its hash chooses.
    """

    def __init__(self, harness: hp.Harness, kafka: KafkaRig, *, partitions: int = 2, **spec: Any) -> None:
        words = {"columns": COLUMNS, "key": ["id", "region"], "delete": DELETE, "views": "both", "layout": BY_VALUE}
        super().__init__(harness, kafka, partitions=partitions, **{**words, **spec})
        self.partitions = partitions
        self.key = self.table.spec.key
        self.records: list[tuple[int, int, Key, Mapping[str, Any] | None]] = []  #: partition, offset, key, put

    @property
    def head(self) -> Version:
        return self.stores.ledger.head(self.table.row)

    # -- the producer's side --------------------------------------------------------------------------------

    def home_of(self, key: Key) -> int:
        return zlib.crc32(repr(key).encode()) % self.partitions

    def produce(self, count: int) -> None:
        """Some *count* records per partition, of few keys: most of them replace another one, some delete."""
        first, self._next = self._next, self._next + count * self.partitions
        changes: list[tuple[Key, Mapping[str, Any] | None]] = []
        for i in range(first, self._next):
            row = {"id": i * 7 % KEYS, "region": "a", "n": i, "s": f"record {i}"}
            changes.append(((row["id"], row["region"]), None if i % 9 == 8 else row))
        self.send(changes)

    def put(self, *rows: Mapping[str, Any]) -> None:
        self.send([(tuple(row[c] for c in self.key), row) for row in rows])

    def delete(self, *keys: Key) -> None:
        self.send([(key, None) for key in keys])

    def send(self, changes: Sequence[tuple[Key, Mapping[str, Any] | None]], *, partition: int | None = None) -> None:
        """Produce puts and deletes (no row) by the delete rule, in order; *partition*: not where they belong."""
        homes = [self.home_of(key) if partition is None else partition for key, _ in changes]
        for home in sorted(set(homes)):
            mine = [change for change, at in zip(changes, homes, strict=True) if at == home]
            offsets = self.kafka.produce(self.topic, home, [self._value(*change) for change in mine])
            self.records += [(home, offset, key, row) for offset, (key, row) in zip(offsets, mine, strict=True)]

    def tombstone(self, key: Key) -> None:
        """Delete by a record without a value."""
        home = self.home_of(key)
        named = orjson.dumps(dict(zip(self.key, key, strict=True)))
        [offset] = self.kafka.produce(self.topic, home, [None], key=named)
        self.records.append((home, offset, key, None))

    def _value(self, key: Key, row: Mapping[str, Any] | None) -> bytes:
        return orjson.dumps({**dict(zip(self.key, key, strict=True)), "op": "d"} if row is None else dict(row))

    def state(self, below: Mapping[int, int]) -> dict[Key, tuple[Any, ...]]:
        """What the records below these offsets leave: columns and coordinate of the newest put, per live key."""
        names = [c.name for c in self.table.spec.columns]
        found: dict[Key, tuple[Any, ...]] = {}
        for partition, offset, key, row in sorted(self.records, key=lambda r: r[:2]):
            if offset >= below.get(partition, 0):
                continue
            found.pop(key, None)
            if row is not None:
                found[key] = (*(row.get(name) for name in names), partition, offset)
        return found

    # -- the harness's side ---------------------------------------------------------------------------------

    def to_stream(self) -> None:
        """All records come to the stream view."""
        self.ingest()
        self.tier()

    def merge(self) -> Version | None:
        """One move of otree."""
        claim = self.claim(Stage.OTREE)
        try:
            return otree_once(self.stores, self.table.row, claim, trigger="test")
        finally:
            self.stores.ledger.release(claim)

    def recall(self, where: str) -> RecallRequest:
        """Rows of the lake go to Postgres, after what a merge or a relayout has to finish first."""
        return self.table.recall(where)

    def merge_all(self) -> None:
        """Everything comes to the batch view, relayouts that are due too."""
        self.to_stream()
        self.worker(OTREE, until_idle=True).run()

    # -- the judge ------------------------------------------------------------------------------------------

    def assert_exact(self) -> None:
        """A read gives what the producer's records fold to; misfits are in quarantine."""
        names = [*(c.name for c in self.table.spec.columns), "_kafka_partition", "_kafka_offset"]
        rows = self.table.read(columns=names)
        found = sorted(map(repr, zip(*(rows.column(name).to_pylist() for name in names), strict=True)))
        ends = {p: max(records, default=-1) + 1 for p, records in self.kafka.acked(self.topic).items()}
        expected = sorted(map(repr, self.state(ends).values()))
        lost, strange = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
        assert found == expected, f"lost {lost[:3]}, too many {strange[:3]}, {len(found)} rows for {len(expected)}"
        assert set(self.quarantine()) == self._misfits

    def batch_rows(self, version: Version | None = None) -> pa.Table:
        """The batch view of *version*, as any other engine reads it: without what is recalled."""
        batch = (version or self.head).batch
        assert batch is not None
        return static(batch.metadata).scan().to_arrow()

    def recalled_rows(self, version: Version | None = None) -> pa.Table:
        """The rows of the batch view of *version* that lie in Postgres."""
        return self.stores.overlays.read(self.table.row, (version or self.head).overlays)

    def assert_merged(self, version: Version | None = None) -> None:
        """The batch view of *version* has one row for each key that lives below its batch_hi, and nothing else.

        What is recalled belongs to it.
        """
        version = version or self.head
        parts = [self.batch_rows(version), self.recalled_rows(version)]
        names = [*(c.name for c in self.table.spec.columns), "_kafka_partition", "_kafka_offset"]
        columns = [[_plain(v) for rows in parts for v in rows.column(name).to_pylist()] for name in names]
        found = sorted(map(repr, zip(*columns, strict=True)))
        expected = sorted(map(repr, self.state({p: b.batch_hi for p, b in version.bounds.items()}).values()))
        lost, strange = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
        assert found == expected, f"lost {lost[:3]}, too many {strange[:3]}, {len(found)} rows for {len(expected)}"
        assert {op for rows in parts for op in rows.column("_op").to_pylist()} <= {"put"}


class RecalledRig(KeyedRig):
    """A keyed table half of whose keys are recalled and released by turns, each time that more is produced."""

    def __init__(self, harness: hp.Harness, kafka: KafkaRig, **spec: Any) -> None:
        super().__init__(harness, kafka, **spec)
        self._produced = 0

    def produce(self, count: int) -> None:
        if self._produced % 2:
            self.stores.recalls.ask(self.table.row, OverlayRequest.RECALL, where=f"id < {KEYS // 2}", by="test")
        elif self._produced:
            self.stores.recalls.ask(self.table.row, OverlayRequest.RELEASE, where=None, by="test")
        self._produced += 1
        super().produce(count)


def row(id_: int | None, region: str | None = "eu", *, n: int = 0) -> dict[str, Any]:
    """A row of a `KeyedRig`."""
    return {"id": id_, "region": region, "n": n, "s": f"row {id_} {region} {n}"}


def assert_sound(rig: KeyedRig) -> None:
    """What the table says of itself: the full audit and fsck."""
    audited = audit_table(rig.stores, rig.table.row, full=True)
    assert audited.ok, audited
    report = fsck(rig.stores, [rig.name])
    assert report.ok, report


class Change(NamedTuple):
    """One record of a `NumbersRig`; ``n`` is None in a delete."""

    partition: int
    offset: int
    id: int
    n: int | None

    @property
    def op(self) -> str:
        return "delete" if self.n is None else "put"


class NumbersRig(KeyedRig):
    """A keyed table of numbers with the stream view alone, for tests that speak of single changes.

    A key is in the partition that its number is of, so that a test knows where.
    """

    def __init__(self, harness: hp.Harness, kafka: KafkaRig, **spec: Any) -> None:
        columns = {name: {"type": type_, "required": True} for name, type_ in (("id", "long"), ("n", "int"))}
        words = {"columns": columns, "key": ["id"], "delete": "tombstone", "views": "stream", "layout": {}}
        super().__init__(harness, kafka, **{**words, **spec})

    def home_of(self, key: Key) -> int:
        return int(key[0]) % self.partitions

    def put_numbers(self, values: Mapping[int, int]) -> None:
        """Produce ``{id: n}``, in this order."""
        for id_, n in values.items():
            self.put({"id": id_, "n": n})

    def delete_numbers(self, *ids: int) -> None:
        """Produce a tombstone for each of *ids*."""
        for id_ in ids:
            self.tombstone((id_,))

    @property
    def changes(self) -> list[Change]:
        """Every acknowledged record."""
        return [Change(p, offset, key[0], None if row is None else row["n"]) for p, offset, key, row in self.records]

    def newest(self, below: Mapping[int, int] | None = None) -> list[Change]:
        """The newest put per live id, of the changes *below* these offsets."""
        found: dict[int, Change] = {}
        for change in sorted(self.changes):
            if below is None or change.offset < below.get(change.partition, 0):
                found[change.id] = change
        return sorted(change for change in found.values() if change.n is not None)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    return str(value) if isinstance(value, uuid.UUID) else value
