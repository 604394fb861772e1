"""`buffer: none`: a record that is refused is kept whole, and judged again each time that the log is read again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import Observation

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.audit.repair.accept_loss import NothingLost, accept_loss, find_loss
from harness_pipelines.engines.spark import kafka
from harness_pipelines.ledgers.postgres.views.quarantine import set_aside, with_bytes
from harness_pipelines.ports.decoded import RecordRefused
from harness_pipelines.ports.errors import RecordsLost
from harness_pipelines.protocol.changes.corrections import Wanted
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.stages.ingest.refusing import NothingFits
from harness_pipelines.stages.replay.quarantine import drop
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.test_evolve import add
from harness_pipelines_tests.faults.test_replay import ODD, again, lenient, offsets, states
from harness_pipelines_tests.rig import TableRig

pytestmark = pytest.mark.turns("odd")

TOLD = ("partition", "offset", "reason", "detail", "key", "value", "headers", "kafka_ms", "schema_id", "state")
BAD = ODD % 1000
WITH_SCHEMA_ID = b"\0\0\0\0\7" + b'{"id":1'


def aside(rig: TableRig, **wanted: Any) -> list[Mapping[str, Any]]:
    database, table = rig.stores.database, rig.table.row
    listed = set_aside(database, table, Wanted(**wanted), limit=100)
    found = with_bytes(database, table, listed, in_lake=rig.stores.quarantined_in_lake)
    return [{name: row[name] for name in TOLD} for row in found]


def test_a_refused_record_is_kept_as_with_a_buffer(make_rig: MakeRig):
    found = []
    for buffer in ("postgres", "none"):
        rig = make_rig(buffer=buffer, unknown_fields="quarantine", partitions=1)
        produce, topic = rig.kafka.produce, rig.topic
        produce(
            topic,
            0,
            [BAD],
            key=b"k\xff",
            headers=[("a", b"1"), ("a", b"\xff\x00"), ("", b"")],
            timestamp_ms=1_700_000_000_123,
        )
        produce(topic, 0, [None], headers=[("gone", None)], timestamp_ms=1_600_000_000_001)
        produce(topic, 0, [WITH_SCHEMA_ID], timestamp_ms=1)
        produce(topic, 0, rig.values(3))
        produce(topic, 0, [b'{"id":"x"}'])
        rig.ingest() if buffer == "postgres" else None
        rig.tier()
        assert [row["offset"] for row in aside(rig, schema_id=7)] == [2]
        found.append(aside(rig))
    assert len(found[0]) == 4
    for buffered, unbuffered in zip(*found, strict=True):
        assert {**unbuffered, "kafka_ms": None} == {**buffered, "kafka_ms": None}
        if buffered["offset"] < 3:  # the broker stamps the others
            assert unbuffered["kafka_ms"] == buffered["kafka_ms"]


@pytest.mark.usefixtures("by_spark")
def test_a_write_whose_counts_spark_did_not_send_is_counted_and_not_written_again(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
):
    """Spark's server waits a tenth of a second for them; on a busy machine that can be too short every time."""
    monkeypatch.setattr(Observation, "get", property(lambda _: {}))
    read, reads = kafka.read_kafka, list[object]()

    def counted(*arguments: Any, **words: Any) -> Any:
        reads.append(words)
        return read(*arguments, **words)

    monkeypatch.setattr(kafka, "read_kafka", counted)
    rig = make_rig(buffer="none", unknown_fields="quarantine", partitions=1)
    rig.kafka.produce(rig.topic, 0, [*rig.values(3), BAD])
    rig.tier()
    [move] = rig.stores.ledger.moves(rig.table.row, limit=10)
    assert (move["rows"], move["attempt"]) == (3, 1)
    assert [row["offset"] for row in aside(rig)] == [3]
    assert len(reads) == 2, "written and counted as one, and the refused ones fetched"
    rig.kafka.produce(rig.topic, 0, rig.values(3))
    rig.tier()
    assert len(reads) == 3, "there is nothing to fetch"


@pytest.mark.parametrize("stops", [{"on_error": "stop"}, {}], ids=["at the first", "where none fits"])
def test_what_stops_the_table_is_decided_before_the_refused_records_are_fetched(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, stops: dict[str, str]
):
    """Whether or not Spark sent its counts: a move may have millions of them, and they are whole records."""
    monkeypatch.setattr(Observation, "get", property(lambda _: {}))
    fetched = list[object]()

    def fetch(*asked: object) -> list[object]:
        fetched.extend(asked)
        return []

    monkeypatch.setattr(kafka, "judged_again", fetch)
    rig = make_rig(buffer="none", partitions=1, **stops)
    rig.kafka.produce(rig.topic, 0, [b"{"] * 1_001)
    with pytest.raises((RecordRefused, NothingFits)):
        rig.tier()
    assert fetched == []
    assert rig.quarantine() == {}


def test_what_a_replay_puts_back_has_its_headers_and_its_time(make_rig: MakeRig):
    columns = {
        "id": {"type": "long", "required": True},
        "n": "int",
        "s": "string",
        "h": {"type": "list<struct<key: string, value: binary>>", "from": "headers"},
    }
    rows = []
    for buffer in ("postgres", "none"):
        rig = make_rig(buffer=buffer, unknown_fields="quarantine", partitions=1, columns=columns)
        rig.kafka.produce(rig.topic, 0, [BAD], headers=[("a", b"1")], timestamp_ms=1_700_000_000_123)
        rig.ingest() if buffer == "postgres" else None
        rig.tier()
        lenient(rig)
        assert again(rig).replayed == 1
        names = ["id", "h", "_kafka_offset", "_kafka_timestamp"]
        rows.append(rig.harness.table(rig.name).read(columns=names).to_pylist())
    assert rows[0] == rows[1]
    assert rows[1][0]["h"] == [{"key": "a", "value": b"1"}]


@pytest.fixture(params=["stream", "batch"])
def odd(request: pytest.FixtureRequest, make_rig: MakeRig) -> TableRig:
    """Versions 2 and 3; the second move found a record that the spec does not take."""
    rig = make_rig(buffer="none", views=request.param, layout={"columns": ["n"]}, unknown_fields="quarantine")
    rig.produce(5)
    rig.tier()
    rig.kafka.produce(rig.topic, 0, [BAD])
    rig.produce(5)
    rig.tier()
    return rig


def revert(rig: TableRig, to: int) -> int:
    return revert_table(rig.stores, rig.harness.table(rig.name).row, to=to).version


def sound(rig: TableRig) -> None:
    audited = audit_table(rig.stores, rig.harness.table(rig.name).row, full=True)
    assert audited.ok, audited.to_json()
    broken = fsck(rig.stores, [rig.name]).broken
    assert not broken, broken


def moved(rig: TableRig) -> int:
    rig.table = rig.harness.table(rig.name)
    rig.tier()
    return rig.stores.tables.head(rig.table.row).version


@pytest.mark.parametrize("given_up", [False, True])
def test_a_record_that_the_log_brings_again_as_a_row_is_held_no_more(odd: TableRig, given_up: bool):
    aside_as = "dropped" if given_up else "held"
    if given_up:
        assert drop(odd.stores, odd.table.row, Wanted()) == 1
    lenient(odd)
    revert(odd, to=2)
    taken = moved(odd)
    assert (0, 5) in offsets(odd)
    assert states(odd) == {"replayed": 1}
    assert again(odd).records == 0, "nothing is held"
    sound(odd)
    revert(odd, to=3)
    assert (0, 5) not in offsets(odd)
    assert states(odd) == {aside_as: 1}
    sound(odd)
    revert(odd, to=taken)
    assert (0, 5) in offsets(odd)
    assert states(odd) == {"replayed": 1}
    sound(odd)


def test_a_record_that_the_log_brings_again_and_does_not_fit_any_more_is_held_and_a_row_again_with_its_version(
    odd: TableRig,
):
    lenient(odd)
    revert(odd, to=2)
    taken = moved(odd)
    odd.harness.apply(odd.table.spec.model_copy(update={"unknown_fields": "quarantine"}))
    revert(odd, to=2)
    refused = moved(odd)
    assert states(odd) == {"held": 1}
    sound(odd)
    revert(odd, to=taken)
    assert states(odd) == {"replayed": 1}
    sound(odd)
    revert(odd, to=refused)
    assert states(odd) == {"held": 1}
    lenient(odd)
    assert again(odd).replayed == 1
    sound(odd)
    revert(odd, to=refused)
    assert states(odd) == {"held": 1}
    sound(odd)


def test_a_row_that_does_not_fit_any_more_is_held_and_a_row_again_with_its_version(make_rig: MakeRig):
    rig = make_rig(buffer="none", partitions=1)
    rig.kafka.produce(rig.topic, 0, [BAD, *rig.values(2)])
    first = moved(rig)
    rig.harness.apply(rig.table.spec.model_copy(update={"unknown_fields": "quarantine"}))
    revert(rig, to=1)
    moved(rig)
    assert states(rig) == {"held": 1}
    sound(rig)
    revert(rig, to=first)
    assert len(offsets(rig)) == 3
    assert states(rig) == {"replayed": 1}
    sound(rig)


def test_a_record_of_an_earlier_release_is_settled_and_unsettled_as_well(odd: TableRig):
    with odd.stores.database.transaction() as connection:
        connection.execute(
            "UPDATE harness.quarantine SET refused_by = NULL, digest = NULL WHERE table_id = %s",
            [odd.table.row.table_id],
        )
    lenient(odd)
    revert(odd, to=2)
    moved(odd)
    assert states(odd) == {"replayed": 1}
    revert(odd, to=3)
    assert states(odd) == {"held": 1}
    sound(odd)


def test_what_kafka_drops_after_a_revert_is_named_and_can_be_accepted_as_lost(make_rig: MakeRig):
    rig = make_rig(buffer="none", partitions=1)
    for _ in range(2):
        rig.kafka.produce(rig.topic, 0, rig.values(10))
        moved(rig)
    revert(rig, to=2)
    rig.kafka.delete_records(rig.topic, 0, 15)
    with pytest.raises(RecordsLost, match=r"\[10, 15\)"):
        rig.tier()
    with pytest.raises(NothingLost, match="read up to 10|all below 10"):
        find_loss(rig.stores, rig.table.row, partition=0, to=5)
    assert accept_loss(rig.stores, rig.table.row, partition=0, to=15).low == 10
    moved(rig)
    assert [offset for _, offset in offsets(rig)] == [*range(10), *range(15, 20)]


def test_columns_are_changed_after_a_revert_and_audits_know_what_was_decoded_with_them(make_rig: MakeRig):
    """What the lake does not have any more is decoded with the columns of then, not with those that it was taken by."""
    rig = make_rig(buffer="none", partitions=1)
    for _ in range(2):
        rig.kafka.produce(rig.topic, 0, rig.values(5))
        moved(rig)
    revert(rig, to=2)
    rig.harness.table(rig.name).evolve(ColumnChanges(add=(add("more", "string"),)))
    row = rig.harness.table(rig.name).row
    assert [row.decoded_with(0, offset) for offset in (4, 5, 9)] == [1, 2, 2]
    moved(rig)
    sound(rig)
