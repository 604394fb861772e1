"""The rules of a revert, over the reference and over the real stores."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from harness_pipelines.ports.ledger import Boundary, BuildRevert, Swap, TableRow, TableUnknown
from harness_pipelines.protocol.bounds import Bounds, OffsetRange
from harness_pipelines.protocol.changes.reverts import RevertRefused
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.moves import MoveClosed, MoveState
from harness_pipelines.protocol.versions import Version, VersionGone, ViewName
from harness_pipelines_tests.contract.stores_rig import HOUR, MINUTE, StoresRig, fresh_view

OLD = {"versions": "1h", "grace": "1h"}


@pytest.fixture
def table(stores: StoresRig) -> TableRow:
    """Version 2 has [0, 4) and [0, 8) in the lake, version 3 [0, 6) and [0, 8); [0, 10) and [0, 20) were ingested."""
    made = stores.table(retention=OLD)
    stores.ingest(made, {0: (0, 10), 1: (0, 20)})
    stores.move(made, {0: 0, 1: 0}, {0: 4, 1: 8})
    stores.move(made, {0: 4}, {0: 6})
    return made


def names_only() -> BuildRevert:
    """Builds a view of which only the name counts."""

    def build(view: ViewName, base: str, head: Version, _target: Version, _move: int) -> Swap:
        return Swap(view=view, old=base, base_snapshot=head.views[view].snapshot, new=fresh_view())

    return build


def revert(stores: StoresRig, table: TableRow, to: int | None, **log_from: Any) -> Version:
    return stores.ledger.revert(table, to=to, log_from=log_from.get("log_from", {}), build=names_only())


def stream_hi(stores: StoresRig, table: TableRow) -> dict[int, int]:
    return {p.partition: p.bounds.stream_hi for p in stores.ledger.positions(table)}


def states(stores: StoresRig, table: TableRow, stage: Stage) -> list[tuple[str, bool]]:
    """(state, whether a revert took it back) of the moves of a stage, oldest first."""
    found = reversed(stores.ledger.moves(table, stage=stage))
    return [(str(m["state"]), m["undone_by"] is not None) for m in found]


def trimmed(stores: StoresRig, table: TableRow) -> dict[int, int]:
    claim = stores.claim(table, Stage.EXPIRE)
    decision = stores.upkeep.trim(table, claim)
    stores.ledger.release(claim)
    return dict(decision.floor)


def test_a_revert_is_a_new_version_with_old_lake_bounds_and_the_present_buffer(stores: StoresRig, table: TableRow):
    stores.ingest(table, {0: (10, 12)})

    made = revert(stores, table, to=2)

    assert (made.version, made.revert_of) == (4, 2)
    assert made.bounds == {
        0: Bounds(start=0, batch_hi=0, stream_hi=4, buffer_hi=12),
        1: Bounds(start=0, batch_hi=0, stream_hi=8, buffer_hi=20),
    }
    assert stores.ledger.head(table) == made
    assert stream_hi(stores, table) == {0: 4, 1: 8}
    assert stores.ledger.pointer(table, "stream") == made.stream.metadata
    assert stores.outbox(table)[-1][1] == "reverted"
    move = stores.ledger.moves(table, stage=Stage.REVERT)[0]
    assert (move["move_id"], move["state"], move["base_version"]) == (made.move_id, "COMMITTED", 3)


def test_the_moves_that_a_revert_takes_back_are_marked_until_they_are_restored(stores: StoresRig, table: TableRow):
    revert(stores, table, to=2)
    assert states(stores, table, Stage.TIER) == [("COMMITTED", False), ("COMMITTED", True)]

    stores.move(table, {0: 4, 1: 8}, {0: 9, 1: 9})
    revert(stores, table, to=3)

    assert stream_hi(stores, table) == {0: 6, 1: 8}
    assert states(stores, table, Stage.TIER) == [("COMMITTED", False), ("COMMITTED", False), ("COMMITTED", True)]


def test_the_next_move_starts_at_the_restored_bound_and_is_no_revert(stores: StoresRig, table: TableRow):
    revert(stores, table, to=1)

    made = stores.move(table, {0: 0, 1: 0}, {0: 10, 1: 20})

    assert (made.version, made.revert_of, made.stream_hi) == (5, None, {0: 10, 1: 20})


def test_an_open_move_is_closed_and_its_late_publish_is_refused(stores: StoresRig, table: TableRow):
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 6}, {0: 10})

    planned = stores.ledger.plan_revert(table, to=2, log_from={})
    assert [m.move_id for m in planned.open_moves] == [move.move_id]
    assert [c.stage for c in planned.claims] == [Stage.TIER]
    revert(stores, table, to=2)

    before = stores.contents(table)
    with pytest.raises(MoveClosed, match=f"move {move.move_id} is ABANDONED already; nothing was written"):
        stores.publish(table, claim, move)
    with pytest.raises(FencedOut):
        stores.plan(table, claim, {0: 4}, {0: 10})
    assert stores.contents(table) == before
    assert stores.ledger.open_move(table, Stage.TIER, shard=0) is None


def test_a_stuck_move_is_closed_too(stores: StoresRig, table: TableRow):
    claim = stores.claim(table)
    stores.ledger.close_move(
        claim, stores.plan(table, claim, {0: 6}, {0: 7}), state=MoveState.QUARANTINED, error="again and again"
    )

    revert(stores, table, to=3)

    assert stores.ledger.open_move(table, Stage.TIER, shard=0) is None
    said = "the table was reverted to version 3; its last error: again and again"
    assert stores.ledger.moves(table, stage=Stage.TIER)[0]["error"] == said


def test_claims_are_fenced_and_free_at_once_but_ingest_goes_on(stores: StoresRig, table: TableRow):
    ingest, tier, expire = (stores.claim(table, stage) for stage in (Stage.INGEST, Stage.TIER, Stage.EXPIRE))

    revert(stores, table, to=2)

    for late in (tier, expire):
        with pytest.raises(FencedOut):
            stores.ledger.renew(late, lease=HOUR)
        assert stores.claim(table, late.stage).epoch > late.epoch + 1
    assert stores.ledger.renew(ingest, lease=HOUR).epoch == ingest.epoch


def test_a_stopped_table_is_started(stores: StoresRig, table: TableRow):
    stores.ledger.stop_table(table, "a foreign commit")

    revert(stores, table, to=None)

    assert stores.again(table).stopped is None


def test_the_head_restores_itself_whatever_it_is_by_then(stores: StoresRig, table: TableRow):
    made = revert(stores, table, to=None)

    assert (made.version, made.revert_of, made.stream_hi) == (4, 3, {0: 6, 1: 8})
    assert states(stores, table, Stage.TIER) == [("COMMITTED", False), ("COMMITTED", False)]


@pytest.mark.parametrize("to", [None, 2])
def test_a_view_that_another_engine_dropped_names_its_way_back_and_is_put_back(
    stores: StoresRig, table: TableRow, to: int | None
):
    head, built_on = stores.ledger.head(table), dict[ViewName, str]()
    stores.drop_view(table, "stream")
    way = rf"no view {table.views['stream']}: .*`harness revert {table.name} --to HEAD --yes` restores it"
    with pytest.raises(TableUnknown, match=way):
        stores.ledger.pointer(table, "stream")
    assert stores.ledger.plan_revert(table, to=to, log_from={}).head.version == head.version

    def build(view: ViewName, base: str, locked: Version, _target: Version, _move: int) -> Swap:
        built_on[view] = base
        return Swap(view=view, old=base, base_snapshot=locked.views[view].snapshot, new=fresh_view())

    made = stores.ledger.revert(table, to=to, log_from={}, build=build)

    assert built_on == {view: pins.metadata for view, pins in head.views.items()}
    for view, pins in made.views.items():
        assert stores.ledger.pointer(table, view) == pins.metadata
    assert stream_hi(stores, table) == {0: 6 if to is None else 4, 1: 8}
    assert stores.move(table, {1: 8}, {1: 20}).version == made.version + 1


def test_a_plan_changes_nothing(stores: StoresRig, table: TableRow):
    claim = stores.claim(table)
    stores.plan(table, claim, {0: 6}, {0: 10})
    before = stores.contents(table)

    planned = stores.ledger.plan_revert(table, to=1, log_from={})

    assert (planned.head.version, planned.target.version, planned.limit, planned.floor) == (3, 1, None, 1)
    assert planned.back == (OffsetRange(partition=0, low=0, high=6), OffsetRange(partition=1, low=0, high=8))
    assert stores.contents(table) == before


def test_a_version_that_never_was_is_named(stores: StoresRig, table: TableRow):
    before = stores.contents(table)
    with pytest.raises(VersionGone, match=f"{table.name} has no version 9; the newest is 3"):
        revert(stores, table, to=9)
    assert stores.contents(table) == before


# -- what limits a revert -----------------------------------------------------------------------------------


def test_rows_that_the_buffer_may_have_dropped_limit_a_revert(stores: StoresRig):
    table = stores.table(retention={"versions": "2h", "grace": "1h"})
    stores.ingest(table, {0: (0, 10), 1: (0, 20)})
    stores.move(table, {0: 0, 1: 0}, {0: 4, 1: 8})
    stores.move(table, {0: 4, 1: 8}, {0: 6, 1: 20})
    stores.pass_time(HOUR + MINUTE)
    stores.ingest(table, {0: (10, 11)})
    stores.move(table, {0: 6}, {0: 11})
    assert trimmed(stores, table) == {0: 6, 1: 20}

    before = stores.contents(table)
    with pytest.raises(RevertRefused) as refused:
        revert(stores, table, to=2)
    assert "version 2 cannot be restored, the buffer limits it: [4, 11) of partition 0" in str(refused.value)
    assert "only from offset 6 on" in str(refused.value)
    assert "The oldest version that a revert can reach now is 3" in str(refused.value)
    assert stores.contents(table) == before
    assert revert(stores, table, to=3).stream_hi == {0: 6, 1: 20}


def test_versions_whose_files_may_be_gone_limit_a_revert(stores: StoresRig, table: TableRow):
    stores.pass_time(2 * HOUR)
    trimmed(stores, table)
    table = stores.again(table)

    planned = stores.ledger.plan_revert(table, to=2, log_from={})

    assert planned.limit is not None
    assert (planned.limit.tier, planned.floor) == ("lake", 3)
    with pytest.raises(RevertRefused, match="the lake limits it: its files are kept only from version 3 on"):
        revert(stores, table, to=2)


def test_without_a_buffer_kafka_limits_a_revert(stores: StoresRig):
    table = stores.table(partitions=1, buffer="none", retention=OLD)
    for low, high in ((0, 5), (5, 9)):
        claim = stores.claim(table)
        stores.publish(table, claim, stores.plan(table, claim, {0: low}, {0: high}), ingest_to={0: high})
        stores.ledger.release(claim)

    with pytest.raises(RevertRefused, match=r"the tail limits it: \[5, 9\) of partition 0 .*only from offset 6 on"):
        revert(stores, table, to=2, log_from={0: 6})
    made = revert(stores, table, to=2, log_from={0: 5})

    assert made.bounds[0] == Bounds(start=0, batch_hi=0, stream_hi=5, buffer_hi=9)
    claim = stores.claim(table)
    again = stores.publish(table, claim, stores.plan(table, claim, {0: 5}, {0: 7}), ingest_to={0: 7})
    assert again.bounds[0] == Bounds(start=0, batch_hi=0, stream_hi=7, buffer_hi=9)


# -- after a revert -----------------------------------------------------------------------------------------


def test_what_went_back_to_the_buffer_is_not_trimmed_however_old_the_higher_versions_are(stores: StoresRig):
    table = stores.table(partitions=1, retention={"versions": "3h", "grace": "1h"})
    stores.ingest(table, {0: (0, 10)})
    stores.move(table, {0: 0}, {0: 4})
    stores.move(table, {0: 4}, {0: 10})
    stores.segments.rotate(table)
    revert(stores, table, to=2)
    stores.pass_time(30 * MINUTE)
    assert trimmed(stores, table) == {0: 0}
    stores.pass_time(HOUR)

    assert trimmed(stores, table) == {0: 4}
    assert [s.state for s in stores.segments.all(table)] == ["closed", "open"]
    assert sum((Counter(rows) for rows in stores.buffered(table).values()), Counter()).total() == 10


def test_old_versions_are_answered_as_before(stores: StoresRig, table: TableRow):
    revert(stores, table, to=1)

    old = stores.leases.look(table, holder="r", lease=HOUR, at=2)
    assert old.answered_by is None  # [4, 10) and [8, 20) are in the buffer only
    assert len(old.segments) == 1
    stores.move(table, {0: 0, 1: 0}, {0: 10, 1: 20})
    for version in (2, 3, 4):
        found = stores.leases.look(table, holder="r", lease=HOUR, at=version)
        assert found.answered_by is not None and found.answered_by.version == 5
        assert found.segments == ()


def test_a_read_after_a_revert_finds_in_segments_what_left_the_lake(stores: StoresRig, table: TableRow):
    revert(stores, table, to=1)

    now = stores.leases.look(table, holder="r", lease=HOUR)

    assert {p: (b.stream_hi, b.buffer_hi) for p, b in now.bounds.items()} == {0: (0, 10), 1: (0, 20)}
    assert len(now.segments) == 1


# -- files --------------------------------------------------------------------------------------------------


def published(stores: StoresRig, table: TableRow, low: int, high: int) -> Version:
    """A move of partition 0 with one file."""
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: low}, {0: high})
    stores.lake.make_branch(table, move, stores.ledger.head(table).stream)
    stores.stage_files(table, move.branch, {0: range(low, high)}, move=(move.move_id, 1))
    staged = stores.lake.staged(table, move, rows=high - low)

    def build(base: str) -> Swap:
        return stores.lake.build_append(table, move, staged, base=base, keep=table.spec.retention.snapshots)

    made = stores.ledger.publish(table, Boundary(claim=claim, move=move, rows=high - low, bytes=1), build)
    stores.ledger.release(claim)
    return made


def restored(stores: StoresRig, table: TableRow, to: int | None) -> Version:
    def build(view: ViewName, base: str, head: Version, target: Version, move_id: int) -> Swap:
        keep = table.spec.retention.snapshots
        return stores.lake.build_revert(table, move_id, view, base=base, head=head, target=target, keep=keep)

    return stores.ledger.revert(table, to=to, log_from={}, build=build)


@pytest.mark.parametrize("snapshots", [50, 2])
def test_the_files_of_the_old_version_are_live_again_and_the_range_is_free(stores: StoresRig, snapshots: int):
    """With 2 the restored snapshot is not in the current metadata any more."""
    table = stores.table(partitions=1, files=True, retention={**OLD, "snapshots": snapshots})
    stores.ingest(table, {0: (0, 10)})
    versions = [published(stores, table, low, low + 2) for low in (0, 2, 4, 6)]

    made = restored(stores, table, to=2)

    assert stores.live(table, made.stream.metadata) == {(0, 0, 1): 1}
    again = published(stores, table, 2, 10)
    assert stores.live(table, again.stream.metadata) == {(0, 0, 1): 1, (0, 2, 9): 1}
    for version in versions:
        assert stores.live(table, version.stream.metadata).total() == version.version - 1


def test_rows_and_branches_of_another_writer_are_gone_from_main(stores: StoresRig):
    table = stores.table(partitions=1, files=True, retention=OLD)
    stores.ingest(table, {0: (0, 4)})
    published(stores, table, 0, 2)
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 2}, {0: 4})
    stores.lake.make_branch(table, move, stores.ledger.head(table).stream)
    stores.stage_files(table, "main", {0: [7, 8]}, move=None)

    made = restored(stores, table, to=None)

    assert stores.live(table, made.stream.metadata) == {(0, 0, 1): 1}
    assert stores.shape(table)[1] == set()
    stores.ledger.release(claim)
    assert stores.live(table, published(stores, table, 2, 4).stream.metadata).total() == 2
