"""The rules of the ingest commit and of segments, over the reference and over Postgres."""

from __future__ import annotations

from collections import Counter

import pytest

from harness_pipelines.ports.errors import TopicRecreated
from harness_pipelines.protocol.bounds import BoundaryGap
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.schema.schemas import SchemaMoved
from harness_pipelines.protocol.segments import SegmentClosed
from harness_pipelines.stages.ingest.ingest import OpenSegment
from harness_pipelines_tests.contract.stores_rig import MINUTE, StoresRig, agrees, decoded


@pytest.fixture
def table(stores: StoresRig):
    return stores.table()


@pytest.fixture
def claim(stores: StoresRig, table):
    return stores.claim(table, Stage.INGEST)


def rows(partition: int, low: int, high: int) -> Counter[tuple[int, int]]:
    return Counter((partition, o) for o in range(low, high))


def test_rows_positions_and_refused_records_commit_together(stores: StoresRig, table, claim):
    segment = stores.segments.open_segment(table)
    writer = stores.writer(table, claim)

    count = writer.commit(segment, [decoded(table, 0, 0, 5, refused=[2]), decoded(table, 1, 0, 3)], confirm=agrees)

    assert count == 7
    assert stores.buffered(table) == {segment.name: rows(0, 0, 5) - rows(0, 2, 3) + rows(1, 0, 3)}
    assert stores.refused(table) == {(0, 2)}
    assert {p: at.buffer_hi for p, at in stores.segments.positions(table).items()} == {0: 5, 1: 3}
    done = stores.ledger.moves(table, stage=Stage.INGEST)
    assert [(m["state"], m["rows"], m["hi"]) for m in done] == [("COMMITTED", 7, {"0": 5, "1": 3})]
    writer.close()


def test_a_range_without_rows_still_moves_the_position(stores: StoresRig, table, claim):
    writer = stores.writer(table, claim)

    assert (
        writer.commit(stores.segments.open_segment(table), [decoded(table, 0, 0, 2, refused=[0, 1])], confirm=agrees)
        == 0
    )
    assert stores.segments.positions(table)[0].buffer_hi == 2
    writer.close()


@pytest.mark.parametrize(("low", "verb"), [(4, "repeat"), (6, "skip")])
def test_a_commit_must_begin_where_the_buffer_ends(stores: StoresRig, table, claim, low: int, verb: str):
    stores.ledger.add_partitions(claim, {2: 0})
    segment = stores.ingest(table, {1: (0, 5)}, claim=claim)
    before, writer = stores.contents(table), stores.writer(table, claim)

    with pytest.raises(
        BoundaryGap, match=f"would {verb} records of partition 1: it starts at offset {low}, the buffer ends at 5"
    ) as gap:
        writer.commit(segment, [decoded(table, 1, low, 9, refused=[8]), decoded(table, 2, 0, 5)], confirm=agrees)
    assert (gap.value.partition, gap.value.expected_low, gap.value.got_low) == (1, 5, low)
    assert stores.contents(table) == before  # partition 2 fitted, but a vector moves all or nothing
    writer.close()


def test_an_unknown_partition_is_a_gap(stores: StoresRig, table, claim):
    writer = stores.writer(table, claim)

    with pytest.raises(BoundaryGap, match="partition 7: it starts at offset 0, the buffer ends at -1"):
        writer.commit(stores.segments.open_segment(table), [decoded(table, 7, 0, 1)], confirm=agrees)
    writer.close()


def test_a_writer_that_slept_through_a_takeover_cannot_commit(stores: StoresRig, table):
    asleep, awake = stores.taken_over(table, Stage.INGEST)
    segment = stores.ingest(table, {0: (0, 5)}, claim=awake)
    before, writer = stores.contents(table), stores.writer(table, asleep)

    with pytest.raises(FencedOut, match="claim epoch 1 was taken over, current is epoch 2; nothing was written"):
        writer.commit(segment, [decoded(table, 0, 5, 9, refused=[6])], confirm=agrees)
    assert stores.contents(table) == before
    writer.close()


def test_a_writer_whose_lease_ended_cannot_commit_even_if_nobody_took_over(stores: StoresRig, table):
    claim = stores.claim(table, Stage.INGEST, lease=MINUTE)
    segment = stores.segments.open_segment(table)
    stores.pass_time(2 * MINUTE)
    before, writer = stores.contents(table), stores.writer(table, claim)

    with pytest.raises(FencedOut, match="the lease of epoch 1 ended at .*; nothing was written"):
        writer.commit(segment, [decoded(table, 0, 0, 5)], confirm=agrees)
    assert stores.contents(table) == before
    writer.close()


def test_rows_of_a_log_that_is_not_confirmed_are_not_committed(stores: StoresRig, table, claim):
    segment = stores.segments.open_segment(table)
    before, writer = stores.contents(table), stores.writer(table, claim)

    def other() -> None:
        raise TopicRecreated("t", expected_id="i", found_id="j")

    with pytest.raises(TopicRecreated):
        writer.commit(segment, [decoded(table, 0, 0, 5, refused=[1])], confirm=other)
    assert stores.contents(table) == before
    assert writer.commit(segment, [decoded(table, 0, 0, 5)], confirm=agrees) == 5  # the writer is still good
    writer.close()


def test_rows_decoded_with_an_older_schema_are_refused(stores: StoresRig, table, claim):
    segment = stores.segments.open_segment(table)
    stores.evolve(table)
    before, writer = stores.contents(table), stores.writer(table, claim)

    with pytest.raises(SchemaMoved, match="decoded with schema 1, the table is at 2"):
        writer.commit(segment, [decoded(table, 0, 0, 5)], confirm=agrees)
    assert stores.contents(table) == before
    writer.close()


def test_a_closed_segment_takes_nothing_and_the_next_one_does(stores: StoresRig, table, claim):
    current = OpenSegment(stores.segments, table)
    old, writer = current.current(), stores.writer(table, claim)
    stores.segments.rotate(table)
    before = stores.contents(table)

    with pytest.raises(SegmentClosed, match=f"segment {old.name} is not open any more"):
        writer.commit(old, [decoded(table, 0, 0, 5)], confirm=agrees)
    assert stores.contents(table) == before
    writer.commit(current.renew(), [decoded(table, 0, 0, 5)], confirm=agrees)
    assert stores.buffered(table) == {old.name: Counter(), current.current().name: rows(0, 0, 5)}
    writer.close()


def test_a_rotation_opens_one_and_closes_all_before_it_with_what_they_reach_to(stores: StoresRig, table):
    first = stores.ingest(table, {0: (0, 5), 1: (0, 3)})
    stores.segments.rotate(table)
    second = stores.ingest(table, {0: (5, 8)})
    stores.segments.rotate(table)

    found = stores.segments.all(table)
    assert [(s.name, s.state, s.max_hi) for s in found[:2]] == [
        (first.name, "closed", {0: 5, 1: 3}),
        (second.name, "closed", {0: 8, 1: 3}),
    ]
    assert [s.state for s in found[2:]] == ["open"]


def test_there_is_one_open_segment_until_it_is_closed(stores: StoresRig, table):
    first = stores.segments.open_segment(table)

    assert stores.segments.open_segment(table) == first
    stores.segments.rotate(table)
    assert stores.segments.open_segment(table).seq > first.seq
