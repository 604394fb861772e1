"""A reader in Kafka is ahead of ingest: what becomes of a record that does not fit is told by the table alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.protocol.reading.streams import StreamToken
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.read.stream import stream as live
from harness_pipelines.read.stream.stream import NotJudged, Stream
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.keyed import NumbersRig
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import DEADLINE_S, INGEST, TableRig

MakeRig = Callable[..., TableRig]
Place = tuple[int, int, int]  #: partition, offset, id


class Following:
    """A stream that a thread reads."""

    def __init__(self, stream: Stream) -> None:
        self.rows: list[Place] = []
        self.values: list[dict[str, Any]] = []
        self.failed: BaseException | None = None
        self.stream = stream
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        try:
            for batch in self.stream:
                found = batch.rows.to_pylist()
                self.values += found
                self.rows += [(r["_kafka_partition"], r["_kafka_offset"], r["id"]) for r in found]
                if self._stop.is_set():
                    return
        except BaseException as error:
            self.failed = error

    def await_ids(self, *ids: int) -> None:
        def there() -> bool:
            assert self.failed is None, self.failed
            return {id_ for _, _, id_ in self.rows} >= set(ids)

        wait_until(there, f"the stream gave {ids}", deadline_s=DEADLINE_S)

    @property
    def offsets(self) -> dict[int, int]:
        return dict(StreamToken.parse(self.stream.token).offsets)


@contextmanager
def following(table: hp.Table, **options: Any) -> Iterator[Following]:
    found = Following(table.stream(**options))
    found._thread.start()
    yield found
    found._stop.set()


def in_offset_order(rows: list[Place]) -> bool:
    return all(
        [o for p, o, _ in rows if p == partition] == sorted({o for p, o, _ in rows if p == partition})
        for partition in {p for p, _, _ in rows}
    )


def applied(rig: TableRig, **changes: Any) -> None:
    spec = dump_spec(rig.harness.table(rig.name).spec)
    rig.harness.apply(hp.TableSpec.model_validate({**spec, **changes}))


def relax(rig: TableRig) -> None:
    applied(rig, unknown_fields="ignore")


def add_column(rig: TableRig) -> None:
    more = Column(name="more", type=parse_type("int"))
    rig.harness.table(rig.name).evolve(ColumnChanges(add=(more,)))


STRICT = {"unknown_fields": "quarantine"}
CASES = [
    pytest.param(STRICT, b'{"id":100,"more":1}', relax, id="apply"),
    pytest.param(STRICT, b'{"id":100,"more":1}', add_column, id="evolve"),
]


@pytest.mark.parametrize(("spec", "value", "change"), CASES)
def test_a_live_reader_waits_at_a_record_until_ingest_has_judged_it(
    make_rig: MakeRig, spec: dict[str, Any], value: bytes, change: Callable[[TableRig], None]
):
    rig = make_rig(**spec)
    rig.produce(1)
    rig.ingest()
    with following(rig.table) as found:
        found.await_ids(0, 1)
        rig.kafka.produce(rig.topic, 0, [b'{"id":2}', value, b'{"id":3}'])
        rig.kafka.produce(rig.topic, 1, [b'{"id":4}'])
        found.await_ids(2, 4)  # the other partition is not held up
        assert found.offsets == {0: 2, 1: 2}
        token = found.stream.token
        change(rig)
        rig.harness.table(rig.name)  # whose spec the reader does not have
        TableRig.ingest(_renewed(rig))
        found.await_ids(100, 3)
        assert in_offset_order(found.rows)
        rig.kafka.produce(rig.topic, 0, [b'{"id":5}'])
        found.await_ids(5)  # and it is live again
    later = [id_ for _, _, id_ in _collected(rig.harness.table(rig.name).stream(token, follow=False))]
    assert later == [100, 3, 5]
    if change is add_column:
        assert [row.get("more") for row in found.values if row["id"] == 100] == [1]


def _renewed(rig: TableRig) -> TableRig:
    rig.table = rig.harness.table(rig.name)
    return rig


def _collected(stream: Stream) -> list[Place]:
    rows = [row for batch in stream for row in batch.rows.to_pylist()]
    return [(r["_kafka_partition"], r["_kafka_offset"], r["id"]) for r in rows]


def test_a_record_that_stays_refused_is_left_out_once_ingest_has_set_it_aside(rig: TableRig):
    with following(rig.table) as found, rig.working(INGEST):
        for first in range(0, 30, 10):
            for id_ in range(first, first + 10):
                rig.kafka.produce(rig.topic, id_ % 2, [b'{"id":%d}' % id_])
            rig.produce_misfit(b"no json", partition=first % 3 % 2)
        found.await_ids(*range(30))
        assert in_offset_order(found.rows)
        assert len(found.rows) == 30


def test_a_filtered_table_is_followed_as_fast_as_ingest_goes(make_rig: MakeRig):
    rig = make_rig(transform={"filter": "id >= 1000"})
    with following(rig.table) as found, rig.working(INGEST):
        for step in range(10):
            rig.kafka.produce(rig.topic, 0, [b'{"id":%d}' % id_ for id_ in range(20)])
            rig.kafka.produce(rig.topic, 0, [b'{"id":%d}' % (1000 + step)])
        found.await_ids(*range(1000, 1010))
        assert [id_ for _, _, id_ in found.rows] == list(range(1000, 1010))


def test_a_stream_that_ends_says_where_ingest_has_to_come_first(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "HELD_S_MAX", DEADLINE_S)  # until the other partition has come
    rig = make_rig(**STRICT)
    rig.produce(1)
    rig.ingest()
    rig.kafka.produce(rig.topic, 0, [b'{"id":7,"more":1}', b'{"id":8}'])
    rig.kafka.produce(rig.topic, 1, [b'{"id":9}'])
    stream = rig.table.stream(follow=False)
    rows: list[int] = []
    with pytest.raises(NotJudged, match="offset 1 of partition 0 .*harness run"):
        for batch in stream:
            rows += batch.rows.column("id").to_pylist()
            if 9 in rows:
                monkeypatch.setattr(live, "HELD_S_MAX", 0.1)
    assert sorted(rows) == [0, 1, 9]
    token = stream.token
    relax(rig)
    _renewed(rig).ingest()
    assert [id_ for _, _, id_ in _collected(rig.table.stream(token, follow=False))] == [7, 8]
    assert [id_ for _, _, id_ in _collected(stream)] == [7, 8]  # it can be iterated over again


def test_a_reader_goes_on_once_the_table_does_not_stop_at_a_record_any_more(make_rig: MakeRig):
    rig = make_rig(on_error="stop")
    rig.produce(1)
    rig.ingest()
    stream = rig.table.stream(follow=False)
    rig.kafka.produce(rig.topic, 0, [b"no json", b'{"id":8}'])
    applied(rig, on_error="quarantine")
    with _renewed(rig).working(INGEST):
        assert [id_ for _, _, id_ in _collected(stream)] == [0, 1]  # it ends where Kafka ended when it was opened
        assert [id_ for _, _, id_ in _collected(rig.table.stream({0: 1, 1: 1}, follow=False))] == [8]


@pytest.mark.parametrize("spec", [STRICT, {**STRICT, "buffer": "none"}], ids=["buffer", "no buffer"])
def test_a_read_with_the_tail_decodes_by_the_spec_of_now(make_rig: MakeRig, spec: dict[str, Any]):
    rig = make_rig(**spec)
    opened = rig.harness.table(rig.name)
    rig.kafka.produce(rig.topic, 0, [b'{"id":7,"more":1}'])
    assert opened.read(columns=["id"], tail=True).num_rows == 0
    relax(rig)
    assert opened.read(columns=["id"], tail=True).column("id").to_pylist() == [7]


def test_the_state_of_some_partitions_is_theirs_alone(harness: hp.Harness, kafka: KafkaRig):
    rig = NumbersRig(harness, kafka)
    rig.put_numbers({number: number for number in range(12)})
    rig.tier()
    rig.put_numbers({number: number + 100 for number in range(6)})
    rig.ingest()
    whole = _state(rig.table.stream(state_first=True, follow=False))
    parts = [_state(rig.table.stream(state_first=True, partitions=[p], follow=False)) for p in (0, 1)]
    assert [{row[0] for row in part} for part in parts] == [{0}, {1}]
    assert sorted(parts[0] + parts[1]) == sorted(whole)
    assert len(whole) == 12


def _state(stream: Stream) -> list[tuple[int, int]]:
    rows = [row for batch in stream if batch.is_state for row in batch.rows.to_pylist()]
    return [(row["_kafka_partition"], row["_kafka_offset"]) for row in rows]
