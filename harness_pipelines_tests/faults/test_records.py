"""Bad input: each record that does not fit is quarantined with its reason, and the partition goes on."""

from __future__ import annotations

import re

import pytest

from harness_pipelines.ports.decoded import RecordRefused
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST, TIER, TableRig, good, running

from .conftest import MakeRig

MISFITS: tuple[tuple[bytes | None, str, str], ...] = (
    (b'{"id": 1, "n": ', "malformed", r"JSON"),
    (b"\xff\xfe", "malformed", r""),
    (b"", "null_value", r"empty"),
    (b"[1, 2]", "malformed", r"object"),
    (None, "null_value", r""),
    (b'{"id": "one"}', "wrong_type", r"id"),
    (b'{"id": 7, "n": 2147483648}', "out_of_range", r"`n`.*2147483647"),
    (b'{"id": 9223372036854775808}', "out_of_range", r"`id`"),
    (b'{"n": 1}', "missing_field", r"id"),
    (b'{"id": null}', "missing_field", r"id"),
)


def test_a_record_that_does_not_fit_is_set_aside_with_reason_and_bytes_and_the_partition_goes_on(rig: TableRig):
    rig.produce(3)
    expected = {}
    for value, reason, names in MISFITS:
        offset = rig.produce_misfit(value)
        expected[0, offset] = (reason, names, value)
        rig.produce(1)
    rig.ingest()
    rig.assert_exact()
    found = rig.quarantine()
    assert {at: (reason, value) for at, (reason, _, value) in found.items()} == {
        at: (reason, value) for at, (reason, _, value) in expected.items()
    }
    for at, (_, names, value) in expected.items():
        assert re.search(names, found[at][1]), (value, found[at])
        assert found[at][1], "a refusal without a detail helps nobody"


def test_an_unknown_field_is_ignored_or_set_aside_as_the_spec_says(make_rig: MakeRig):
    extra = b'{"id": 5, "colour": "red"}'
    lenient, strict = make_rig(partitions=1), make_rig(partitions=1, unknown_fields="quarantine")
    lenient.kafka.produce(lenient.topic, 0, [extra])
    offset = strict.produce_misfit(extra)
    strict.produce(1)
    for rig in (lenient, strict):
        rig.ingest()
        rig.assert_exact()
    reason, detail, value = strict.quarantine()[0, offset]
    assert (reason, value) == ("unknown_field", extra)
    assert "colour" in detail


def test_a_table_that_stops_on_bad_records_names_partition_offset_and_the_way_on(make_rig: MakeRig):
    rig = make_rig(partitions=2, on_error="stop")
    rig.kafka.produce(rig.topic, 1, rig.values(2))
    offset = rig.produce_misfit(b"{", partition=1)
    rig.kafka.produce(rig.topic, 0, rig.values(5))
    with pytest.raises(
        RecordRefused, match=rf"{rig.name}: partition 1, offset {offset}: malformed.*on_error: quarantine"
    ):
        rig.ingest()
    assert not rig.quarantine()
    assert not rig.read() - rig.truth


def test_a_record_of_ten_megabytes_is_a_row_like_any_other(make_rig: MakeRig):
    rig = make_rig(partitions=1, topic_config={"max.message.bytes": "16000000"})
    rig.produce(2)
    text = b"x" * 10_000_000
    rig.kafka.produce(rig.topic, 0, [b'{"id": 99, "s": "%s"}' % text])
    rig.produce(2)
    rig.ingest()
    rig.assert_exact()
    large = rig.table.read(columns=["s"], where="id = 99").column("s").to_pylist()
    assert [len(value) for value in large] == [len(text)]


def test_an_empty_topic_is_a_readable_empty_table_and_its_first_record_arrives(rig: TableRig):
    rig.ingest()
    rig.tier()
    assert rig.read().total() == 0
    with running(rig.worker(INGEST)):
        rig.produce(1)
        rig.await_exact()


def test_a_move_without_rows_advances_the_bounds_past_control_records(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    aborted = rig.kafka.begin()
    aborted.produce(rig.topic, 0, [good(1), good(2)])
    aborted.abort()
    rig.ingest()
    assert rig.status() == {0: (0, 3)}
    before = rig.table.versions()[-1]
    rig.tier()
    assert rig.status() == {0: (3, 3)}
    after = rig.table.versions()[-1]
    assert after.version == before.version + 1
    assert rig.read().total() == 0
    rig.produce(2)
    rig.worker(INGEST | TIER, until_idle=True).run()
    rig.assert_exact()


def test_a_transactional_topic_gives_the_committed_records_and_never_goes_above_an_open_transaction(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    rig.produce(2)
    for fate in ("abort", "commit", "abort"):
        transaction = rig.kafka.begin()
        transaction.produce(rig.topic, 0, rig.values(3))
        getattr(transaction, fate)()
    rig.produce(1)
    with rig.working():
        rig.await_exact()
        still_open = rig.kafka.begin()
        [first, *_] = still_open.produce(rig.topic, 0, rig.values(2))
        rig.produce(5)  # behind the open transaction: acknowledged, above the last stable offset
        doomed = rig.kafka.begin()
        doomed.produce(rig.topic, 0, rig.values(4))
        hidden = {row for row in rig.truth if row[1] >= first}
        assert len(hidden) == 5
        assert rig.read() == rig.truth - type(rig.truth)(hidden)
        assert rig.status()[0][1] <= first
        still_open.commit()
        wanted = rig.truth.total()
        wait_until(lambda: rig.read().total() == wanted, "the committed transaction is read")
        doomed.abort()
        rig.produce(1)
        rig.await_exact()


def test_large_and_small_refused_records_are_set_aside_with_their_bytes_together(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    rig.produce(1)  # a table that never took a record stops before it has set so many aside
    small = [b'{"id": "\\u0000 %d"}' % i + bytes([0, 255]) for i in range(1_200)]
    large = [b"x" * 20_000, b"\x00" * 300_000]
    offsets = rig.kafka.produce(rig.topic, 0, [*small[:700], large[0], *small[700:], large[1]])
    rig.ingest()
    held = {offset: value for (_, offset), (_, _, value) in rig.quarantine().items()}
    assert held == dict(zip(offsets, [*small[:700], large[0], *small[700:], large[1]], strict=True))
