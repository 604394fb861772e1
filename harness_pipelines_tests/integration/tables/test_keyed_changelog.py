"""The stream side of keyed tables: puts and deletes in the buffer and in the stream view, every record one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import psycopg
import pytest

import harness_pipelines as hp
from harness_pipelines.ports.ledger import TableExists
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.keys import PartitionsGrown
from harness_pipelines.stages.compact import compact_once
from harness_pipelines.stages.ingest import ingest, new_partitions
from harness_pipelines.stages.run import reading
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.keyed import Change, NumbersRig
from harness_pipelines_tests.producer import DEADLINE_S, KafkaRig, wait_until

MakeKeyed = Callable[..., NumbersRig]


@pytest.fixture
def make_keyed(harness: hp.Harness, kafka: KafkaRig) -> MakeKeyed:
    return partial(NumbersRig, harness, kafka)


def changelog(rig: NumbersRig) -> list[tuple[str, Change]]:
    """What the stream view holds."""
    stores, table = rig.stores, rig.table.row
    view = stores.lake.load(table, stores.ledger.head(table).stream.metadata)
    found = view.scan().to_arrow().to_pylist()
    rows = [(r["_op"], Change(r["_kafka_partition"], r["_kafka_offset"], r["id"], r["n"])) for r in found]
    return sorted(rows, key=lambda row: row[1][:2])


def expected(rig: NumbersRig) -> list[tuple[str, Change]]:
    return sorted(((change.op, change) for change in rig.changes), key=lambda row: row[1][:2])


@pytest.mark.long
def test_every_record_is_a_row_of_the_changelog_through_buffer_lake_and_compaction(make_keyed: MakeKeyed):
    rig = make_keyed()
    for turn in range(6):
        rig.put_numbers({i: 10 * turn + i for i in range(8)})
        rig.delete_numbers(turn, 100 + turn)  # the second was never there
        rig.ingest()
        rig.tier()
    assert changelog(rig) == expected(rig)
    assert compact_once(rig.stores, rig.table.row, rig.claim(Stage.COMPACT), trigger="files") is not None
    assert changelog(rig) == expected(rig)
    assert rig.table.audit(full=True).to_json()["ok"]


def test_the_changelog_goes_on_with_every_version_and_tells_what_each_record_did(make_keyed: MakeKeyed):
    rig = make_keyed()

    def version() -> int:
        rig.ingest()
        rig.tier()
        return rig.head.version

    rig.put_numbers({1: 5, 2: 6})
    first = version()
    rig.put_numbers({1: 7, 3: 8})
    second = version()
    rig.delete_numbers(2)
    following = rig.table.changelog(first, columns=["id", "n"], pre_images=True)
    found = [next(following)]
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(next, following)  # nothing is there yet
        third = version()
        found.append(done.result(DEADLINE_S))
    assert [number for number, _ in found] == [second, third]
    kinds = [(r["_change_type"], r["id"], r["n"]) for _, rows in found for r in rows.to_pylist()]
    assert Counter(kinds) == Counter([("-U", 1, 5), ("+U", 1, 7), ("+I", 3, 8), ("-D", 2, 6)])
    [(_, rows)] = rig.table.changelog(second, columns=["id", "n"], follow=False)
    assert [(r["_op"], r["id"]) for r in rows.to_pylist()] == [("delete", 2)]


def test_the_buffer_keeps_all_versions_and_which_of_them_delete(make_keyed: MakeKeyed):
    rig = make_keyed()
    rig.put_numbers({1: 5, 2: 6})
    rig.delete_numbers(1)
    rig.put_numbers({1: 7})
    rig.ingest()
    [segment] = rig.stores.segments.all(rig.table.row)
    with psycopg.connect(rig.stores.dsn) as owner:
        rows = owner.execute(
            f"SELECT _op, _kafka_partition, _kafka_offset, id, n FROM harness_buffer.{segment.name} ORDER BY 2, 3"
        ).fetchall()
    assert [(op, Change(*change)) for op, *change in rows] == expected(rig)
    assert rig.table.audit(full=True).to_json()["ok"]


def test_without_a_buffer_spark_decodes_the_same(make_keyed: MakeKeyed):
    rig = make_keyed(buffer="none")
    rig.put_numbers({1: 5, 2: 6})
    rig.delete_numbers(2, 3)
    rig.tier()
    assert changelog(rig) == expected(rig)


def test_a_tombstone_without_a_key_and_a_put_without_its_columns_go_to_quarantine(make_keyed: MakeKeyed):
    rig = make_keyed()
    rig.put_numbers({1: 5})
    nameless = rig.produce_misfit(None)
    keyless = rig.produce_misfit(b'{"n": 1}')
    rig.put_numbers({2: 6})
    rig.ingest()
    rig.tier()
    assert changelog(rig) == expected(rig)
    reasons = {offset: reason for (_, offset), (reason, _, _) in rig.quarantine().items()}
    assert reasons == {nameless: "missing_key", keyless: "missing_field"}


def test_a_topic_that_grows_stops_the_table_by_name(make_keyed: MakeKeyed):
    rig = make_keyed()
    rig.put_numbers({1: 5})
    rig.ingest()
    rig.kafka.add_partitions(rig.topic, 3)
    rig.put_numbers({1: 6})
    with pytest.raises(PartitionsGrown, match="had 2 partitions and has 3 now, so a key may have moved to partition 2"):
        rig.ingest()


def tier_from_kafka(rig: NumbersRig) -> None:
    rig.tier()


def ingest_on_spark(rig: NumbersRig) -> None:
    options = WorkerOptions(stages=frozenset({Stage.INGEST}), ingest_on="spark", until_idle=True)
    Worker(rig.stores, [rig.table.row], options).run()


def read_the_tail(rig: NumbersRig) -> None:
    rig.table.read(tail=True)


def audit(rig: NumbersRig) -> None:
    rig.table.audit()


@pytest.mark.parametrize(
    ("buffer", "route"),
    [
        ("none", tier_from_kafka),
        ("postgres", ingest_on_spark),
        ("none", read_the_tail),
        ("postgres", read_the_tail),
        ("postgres", audit),
    ],
)
def test_a_topic_that_grows_stops_every_route_that_takes_from_it(
    make_keyed: MakeKeyed, buffer: str, route: Callable[[NumbersRig], None]
):
    rig = make_keyed(buffer=buffer)
    rig.put_numbers({1: 5})
    route(rig)
    rig.kafka.add_partitions(rig.topic, 3)
    with pytest.raises(PartitionsGrown, match="had 2 partitions and has 3 now, so a key may have moved to partition 2"):
        route(rig)


def test_a_topic_that_grows_under_a_worker_stops_its_ingest(make_keyed: MakeKeyed, monkeypatch: pytest.MonkeyPatch):
    stopped = Event()

    class Loop(ingest.IngestLoop):
        """Tells when it begins no more: what was under way when the partition was seen is over then."""

        def start(self, partitions: Iterable[int]) -> None:
            try:
                super().start(partitions)
            except PartitionsGrown:
                stopped.set()
                raise

    monkeypatch.setattr(new_partitions, "PARTITIONS_EVERY_S", 0.1)
    monkeypatch.setattr(reading, "INGEST_UNITS_MAX", 1)  # so that the one that tells is the one that stops
    monkeypatch.setattr(ingest, "IngestLoop", Loop)
    rig = make_keyed(partitions=1)
    with rig.working() as working:
        rig.put_numbers({1: 5})
        wait_until(lambda: rig.status()[0][1] == 1, "the record is buffered")
        rig.kafka.add_partitions(rig.topic, 2)
        wait_until(lambda: "has 2 now" in str(working.progress[0].trouble), "the worker tells of it")
        wait_until(stopped.is_set, "its ingest stops")
        rig.put_numbers({1: 6})
    assert rig.status()[0][1] == 1
    with rig.working() as working:
        wait_until(lambda: "has 2 now" in str(working.progress[0].trouble), "the next one does not begin")
    assert rig.status()[0][1] == 1


@pytest.mark.parametrize(
    "words",
    [{"key": ["n"]}, {"key_format": "text"}, {"delete": {"field": "n", "values": [0]}}, {"format": "debezium"}],
)
def test_what_a_key_is_and_what_deletes_cannot_change(
    make_keyed: MakeKeyed, harness: hp.Harness, words: dict[str, Any]
):
    rig = make_keyed()
    rig.put_numbers({1: 5})
    rig.ingest()
    given = {**rig.table.spec.model_dump(mode="json", by_alias=True), **words}
    with pytest.raises(TableExists, match=f"exists with another `{next(iter(words))}`"):
        harness.apply(hp.TableSpec.model_validate(given))
