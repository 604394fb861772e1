"""The rules of a compaction's boundary commit; over the reference and Postgres with real Iceberg files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest

from harness_pipelines.ports.errors import StagedWrong
from harness_pipelines.ports.ledger import Boundary, MoveDraft, Swap, TableRow
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage
from harness_pipelines.protocol.lake.files import FilesGone
from harness_pipelines.protocol.moves import Move, MoveClosed, MoveState
from harness_pipelines.protocol.versions import ForeignCommit, Version
from harness_pipelines_tests.contract.stores_rig import Files, StoresRig


@pytest.fixture
def table(stores: StoresRig) -> TableRow:
    """Two partitions with [0, 60) in the buffer, [0, 40) of it in the lake, as files of ten rows."""
    made = stores.table(files=True)
    stores.ingest(made, {0: (0, 60), 1: (0, 60)})
    for low in range(0, 40, 10):
        tiered(stores, made, low)
    return made


@pytest.fixture
def claim(stores: StoresRig, table: TableRow) -> Claim:
    return stores.claim(table, Stage.COMPACT)


def tiered(stores: StoresRig, table: TableRow, low: int) -> Version:
    """A whole move of tier: [low, low + 10) of both partitions."""
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: low, 1: low}, {0: low + 10, 1: low + 10})
    stores.lake.make_branch(table, move, stores.ledger.head(table).stream)
    files = {p: range(low, low + 10) for p in (0, 1)}
    stores.stage_files(table, move.branch, files, move=(move.move_id, move.attempt))
    staged = stores.lake.staged(table, move, rows=20)

    def build(base: str) -> Swap:
        return stores.lake.build_append(table, move, staged, base=base, keep=50)

    published = stores.ledger.publish(table, Boundary(claim=claim, move=move, rows=20, bytes=1), build)
    stores.ledger.release(claim)
    return published


def begun(stores: StoresRig, table: TableRow, claim: Claim, files: Files) -> tuple[Move, set[str]]:
    """A compaction of all files into *files*, staged; and the files that it takes."""
    head = stores.ledger.head(table)
    draft = MoveDraft(
        stage=Stage.COMPACT,
        shard=0,
        lo={},
        hi={},
        base_version=head.version,
        schema_version=1,
        trigger="files",
    )
    move = stores.ledger.plan_move(claim, draft)
    stores.lake.make_branch(table, move, head.stream)
    stores.stage_files(table, move.branch, files, move=(move.move_id, move.attempt))
    return move, stores.paths(table, head.stream.metadata)


def publish(
    stores: StoresRig, table: TableRow, claim: Claim, move: Move, removed: Collection[str], *, rows: int = 80
) -> Version:
    staged = stores.lake.staged(table, move, rows=rows)

    def build(base: str) -> Swap:
        return stores.lake.build_replace(
            table, move, staged, removed=dict.fromkeys(sorted(removed)), base=base, keep=50
        )

    return stores.ledger.publish(table, Boundary(claim=claim, move=move, rows=rows, bytes=1), build)


ALL: Files = {0: range(40), 1: range(40)}


def test_new_files_stand_for_old_ones_and_every_bound_stays(stores: StoresRig, table, claim):
    before = stores.ledger.head(table)
    move, removed = begun(stores, table, claim, ALL)

    after = publish(stores, table, claim, move, removed)

    assert after.version == before.version + 1
    assert after.bounds == before.bounds
    assert stores.live(table, after.stream.metadata) == Counter([(0, 0, 39), (1, 0, 39)])
    assert stores.shape(table)[1] == set()
    assert stores.ledger.moves(table, stage=Stage.COMPACT)[0]["state"] == MoveState.COMMITTED
    assert stores.live(table, before.stream.metadata).total() == 8  # an old version reads as before
    assert {p.partition: p.bounds for p in stores.ledger.positions(table)} == after.bounds


def test_what_tier_appended_since_the_base_stays(stores: StoresRig, table, claim):
    move, removed = begun(stores, table, claim, ALL)
    appended = tiered(stores, table, 40)

    after = publish(stores, table, claim, move, removed)

    assert after.stream_hi == appended.stream_hi == {0: 50, 1: 50}
    assert stores.live(table, after.stream.metadata) == Counter([(0, 0, 39), (1, 0, 39), (0, 40, 49), (1, 40, 49)])


def test_tier_goes_on_while_a_compaction_is_open_and_after_it(stores: StoresRig, table, claim):
    move, removed = begun(stores, table, claim, ALL)
    tiered(stores, table, 40)
    publish(stores, table, claim, move, removed)

    after = tiered(stores, table, 50)

    assert after.stream_hi == {0: 60, 1: 60}
    assert stores.live(table, after.stream.metadata).total() == 6


def test_files_that_are_not_live_any_more_are_not_replaced_again(stores: StoresRig, table, claim):
    move, removed = begun(stores, table, claim, ALL)
    publish(stores, table, claim, move, removed)
    late, _ = begun(stores, table, claim, ALL)
    before = stores.contents(table)

    with pytest.raises(FilesGone, match="not live any more"):
        publish(stores, table, claim, late, removed)
    assert stores.contents(table) == before


def test_a_row_less_is_not_published(stores: StoresRig, table, claim):
    move, removed = begun(stores, table, claim, {0: range(40), 1: range(39)})

    with pytest.raises(StagedWrong, match="80 rows were to be moved, 79 were staged"):
        publish(stores, table, claim, move, removed)


def test_a_move_takes_effect_once(stores: StoresRig, table, claim):
    move, removed = begun(stores, table, claim, ALL)
    staged = stores.lake.staged(table, move, rows=80)
    publish(stores, table, claim, move, removed)
    before = stores.contents(table)

    def build(base: str) -> Swap:
        return stores.lake.build_replace(
            table, move, staged, removed=dict.fromkeys(sorted(removed)), base=base, keep=50
        )

    with pytest.raises(MoveClosed, match="COMMITTED already"):
        stores.ledger.publish(table, Boundary(claim=claim, move=move, rows=80, bytes=1), build)
    assert stores.contents(table) == before


def test_who_lost_the_claim_replaces_nothing(stores: StoresRig, table):
    asleep, _ = stores.taken_over(table, Stage.COMPACT)
    with pytest.raises(FencedOut):
        begun(stores, table, asleep, ALL)


def test_who_loses_the_claim_after_staging_replaces_nothing(stores: StoresRig, table, claim):
    move, removed = begun(stores, table, claim, ALL)
    stores.ledger.release(claim)
    stores.claim(table, Stage.COMPACT)
    before = stores.ledger.head(table)

    with pytest.raises(FencedOut):
        publish(stores, table, claim, move, removed)
    assert stores.ledger.head(table) == before
    assert stores.ledger.pointer(table, "stream") != before.stream.metadata  # the branch is there; its files are dead
    assert stores.live(table, stores.ledger.pointer(table, "stream")).total() == 8


def test_nothing_is_replaced_in_a_view_that_another_writer_committed_to(stores: StoresRig, table, claim):
    move, removed = begun(stores, table, claim, ALL)
    stores.stage_files(table, "main", {0: [45]}, move=None)

    with pytest.raises(ForeignCommit, match="another writer committed to it"):
        publish(stores, table, claim, move, removed)
