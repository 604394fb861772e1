"""A keyed table, and what its reads must show: the producer's own log, replayed into a dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import harness_pipelines as hp
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import TableRig

COLUMNS: Mapping[str, Any] = {"id": {"type": "long", "required": True}, "n": {"type": "int", "required": True}}


class Change(NamedTuple):
    """One acknowledged record; ``n`` is None in a delete."""

    partition: int
    offset: int
    id: int
    n: int | None

    @property
    def op(self) -> str:
        return "delete" if self.n is None else "put"


class KeyedRig:
    """A topic that is partitioned by key, its table, and every change that was acknowledged, in order."""

    def __init__(self, harness: hp.Harness, kafka: KafkaRig, *, partitions: int = 2, **spec: Any) -> None:
        self.rig = TableRig(harness, kafka, partitions=partitions, **{"columns": COLUMNS, "key": ["id"], **spec})
        self.table = self.rig.table
        self.changes: list[Change] = []
        self._partitions = partitions

    def put(self, values: Mapping[int, int]) -> None:
        """Produce ``{id: n}``, in this order."""
        self._produce([(id_, b'{"id":%d,"n":%d}' % (id_, n), n) for id_, n in values.items()])

    def delete(self, *ids: int) -> None:
        """Produce a tombstone for each of *ids*."""
        self._produce([(id_, None, None) for id_ in ids])

    def _produce(self, records: Sequence[tuple[int, bytes | None, int | None]]) -> None:
        for id_, value, n in records:
            partition = id_ % self._partitions
            [offset] = self.rig.kafka.produce(self.rig.topic, partition, [value], key=b"%d" % id_)
            self.changes.append(Change(partition, offset, id_, n))

    def state(self, below: Mapping[int, int] | None = None) -> dict[int, Change]:
        """The newest put per id that is not deleted, of the changes *below* these offsets."""
        found: dict[int, Change] = {}
        for change in sorted(self.changes, key=lambda c: (c.partition, c.offset)):
            if below is None or change.offset < below.get(change.partition, 0):
                found[change.id] = change
        return {id_: change for id_, change in found.items() if change.n is not None}
