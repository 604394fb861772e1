"""The rules of the lake's views: what is staged, checked and referenced; over the reference and real Iceberg files."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from harness_pipelines.lakes.iceberg.write.checks import ForeignFiles
from harness_pipelines.ports.errors import BaseGone, StagedWrong
from harness_pipelines.ports.ledger import Boundary, TableRow
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.versions import ForeignCommit, Version
from harness_pipelines_tests.contract.stores_rig import Files, RealRig, StoresRig, rows_at


@pytest.fixture
def table(stores: StoresRig):
    """Two partitions with [0, 30) in the buffer, and a real view."""
    made = stores.table(files=True)
    stores.ingest(made, {0: (0, 30), 1: (0, 30)})
    return made


@pytest.fixture
def claim(stores: StoresRig, table):
    return stores.claim(table)


def begun(stores: StoresRig, table: TableRow, claim: Claim, lo: dict[int, int], hi: dict[int, int]) -> Move:
    """A move with its branch."""
    move = stores.plan(table, claim, lo, hi)
    stores.lake.make_branch(table, move, stores.ledger.head(table).stream)
    return move


def write(stores: StoresRig, table: TableRow, move: Move, files: Files) -> None:
    stores.stage_files(table, move.branch, files, move=(move.move_id, move.attempt))


def publish(stores: StoresRig, table: TableRow, claim: Claim, move: Move, *, rows: int, keep: int = 50) -> Version:
    staged = stores.lake.staged(table, move, rows=rows)
    boundary = Boundary(claim=claim, move=move, rows=rows, bytes=1)

    def build(base: str):
        return stores.lake.build_append(table, move, staged, base=base, keep=keep)

    return stores.ledger.publish(table, boundary, build)


def moved(stores: StoresRig, table: TableRow, claim: Claim, low: int, high: int, *, keep: int = 50) -> Version:
    """A whole move of [low, high) of partition 0."""
    move = begun(stores, table, claim, {0: low}, {0: high})
    write(stores, table, move, {0: range(low, high)})
    return publish(stores, table, claim, move, rows=high - low, keep=keep)


def test_exactly_what_the_attempt_added_is_referenced_and_its_branch_goes(stores: StoresRig, table, claim):
    first = moved(stores, table, claim, 0, 10)
    move = begun(stores, table, claim, {0: 10, 1: 0}, {0: 20, 1: 5})
    write(stores, table, move, {0: range(10, 20), 1: [0, 4]})

    second = publish(stores, table, claim, move, rows=12)

    assert stores.live(table, second.stream.metadata) == Counter([(0, 0, 9), (0, 10, 19), (1, 0, 4)])
    assert stores.live(table, first.stream.metadata) == Counter([(0, 0, 9)])  # an old version reads as before
    assert stores.shape(table)[1] == set()


def test_what_is_staged_or_built_is_visible_to_nobody(stores: StoresRig, table, claim):
    move = begun(stores, table, claim, {0: 0}, {0: 10})
    write(stores, table, move, {0: range(10)})
    pointer = stores.ledger.pointer(table, "stream")
    staged = stores.lake.staged(table, move, rows=10)

    stores.lake.build_append(table, move, staged, base=pointer, keep=50)

    assert stores.ledger.pointer(table, "stream") == pointer
    assert stores.live(table, pointer) == Counter()


@pytest.mark.parametrize("found", [9, 11])
def test_a_wrong_number_of_rows_is_not_published(stores: StoresRig, table, claim, found: int):
    move = begun(stores, table, claim, {0: 0}, {0: 20})
    write(stores, table, move, {0: range(found)})

    with pytest.raises(
        StagedWrong, match=f"attempt 1: 10 rows were to be moved, {found} were staged; nothing was published"
    ):
        stores.lake.staged(table, move, rows=10)


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({0: [9, 12]}, r"offsets 9\.\.12 of partition 0"),
        ({0: [19, 20]}, r"offsets 19\.\.20 of partition 0"),
        ({1: [12, 13]}, r"offsets 12\.\.13 of partition 1"),
    ],
)
def test_a_file_outside_of_the_move_is_not_published(stores: StoresRig, table, claim, files: Files, where: str):
    moved(stores, table, claim, 0, 10)
    move = begun(stores, table, claim, {0: 10}, {0: 20})
    write(stores, table, move, files)

    with pytest.raises(StagedWrong, match=f"{where}, outside the move"):
        stores.lake.staged(table, move, rows=2)


def test_what_another_attempt_staged_is_not_published(stores: StoresRig, table, claim):
    late = begun(stores, table, claim, {0: 0}, {0: 10})
    again = stores.ledger.take_attempt(claim, late, run_id=None)
    stores.lake.make_branch(table, again, stores.ledger.head(table).stream)
    stores.stage_files(table, again.branch, {0: range(10)}, move=(late.move_id, late.attempt))

    with pytest.raises(StagedWrong, match=f"branch {again.branch} holds no snapshot of attempt 2"):
        stores.lake.staged(table, again, rows=10)


def test_two_attempts_write_apart_and_one_is_published(stores: StoresRig, table, claim):
    late = begun(stores, table, claim, {0: 0}, {0: 10})
    write(stores, table, late, {0: range(10)})
    again = stores.ledger.take_attempt(claim, late, run_id=None)
    stores.lake.make_branch(table, again, stores.ledger.head(table).stream)
    write(stores, table, again, {0: range(10)})

    published = publish(stores, table, claim, again, rows=10)

    assert stores.live(table, published.stream.metadata) == Counter([(0, 0, 9)])
    assert stores.shape(table)[1] == {late.branch}
    assert stores.lake.drop_branches(table, [late.branch])
    assert stores.shape(table)[1] == set()
    assert stores.live(table, stores.ledger.pointer(table, "stream")) == Counter([(0, 0, 9)])


def test_a_branch_that_is_gone_is_no_result(stores: StoresRig, table, claim):
    move = stores.plan(table, claim, {0: 0}, {0: 10})

    with pytest.raises(StagedWrong, match=f"branch {move.branch} is gone"):
        stores.lake.staged(table, move, rows=10)


def test_a_move_without_rows_needs_no_files(stores: StoresRig, table, claim):
    move = begun(stores, table, claim, {0: 0}, {0: 10})

    published = publish(stores, table, claim, move, rows=0)

    assert published.stream_hi == {0: 10, 1: 0}
    assert stores.live(table, published.stream.metadata) == Counter()


def test_a_branch_is_made_once(stores: StoresRig, table, claim):
    move = begun(stores, table, claim, {0: 0}, {0: 10})
    write(stores, table, move, {0: range(10)})

    assert stores.lake.make_branch(table, move, stores.ledger.head(table).stream) == move.branch
    assert stores.lake.staged(table, move, rows=10).rows == 10


def test_a_foreign_file_in_the_moves_range_stops_it(stores: StoresRig, table, claim):
    move = begun(stores, table, claim, {0: 0}, {0: 10})
    write(stores, table, move, {0: range(10)})
    stores.stage_files(table, "main", {0: [5]}, move=None)
    before = stores.contents(table)

    with pytest.raises(ForeignFiles, match="holds offset 5 of partition 0.*has published only below 0"):
        publish(stores, table, claim, move, rows=10)
    assert stores.contents(table) == before


def test_a_foreign_file_anywhere_else_stops_it_too(stores: StoresRig, table, claim):
    moved(stores, table, claim, 0, 10)
    move = begun(stores, table, claim, {0: 10}, {0: 20})
    write(stores, table, move, {0: range(10, 20)})
    stores.stage_files(table, "main", {0: [5]}, move=None)
    before = stores.contents(table)

    with pytest.raises(ForeignCommit, match="another writer committed to it. Nothing was written"):
        publish(stores, table, claim, move, rows=10)
    assert stores.contents(table) == before


def test_the_current_metadata_keeps_so_many_snapshots_and_old_versions_stay_readable(stores: StoresRig, table, claim):
    versions = [moved(stores, table, claim, 5 * i, 5 * i + 5, keep=3) for i in range(5)]

    assert stores.shape(table) == (3, set())
    for i, version in enumerate(versions):
        assert stores.live(table, version.stream.metadata).total() == i + 1


def test_a_base_that_was_expired_is_named(stores: StoresRig, table, claim):
    first = stores.ledger.head(table)
    for i in range(3):
        moved(stores, table, claim, 5 * i, 5 * i + 5, keep=1)
    move = stores.plan(table, claim, {0: 15}, {0: 20})

    with pytest.raises(BaseGone, match=f"move {move.move_id} was planned on snapshot {first.stream.snapshot}"):
        stores.lake.make_branch(table, move, first.stream)


def test_main_names_the_attempts_own_snapshot_while_nothing_else_was_published(real: RealRig):
    table = real.table(files=True)
    real.ingest(table, {0: (0, 30)})
    claim = real.claim(table)
    move = begun(real, table, claim, {0: 0}, {0: 10})
    real._lake.append_to_branch(table, move, lake_rows(table, range(10)))
    own = real._lake.current(table, "stream").metadata.snapshot_by_name(move.branch)
    assert own is not None

    first = publish(real, table, claim, move, rows=10)

    assert first.stream.snapshot == own.snapshot_id
    assert real.live(table, first.stream.metadata) == Counter([(0, 0, 9)])
    assert real.shape(table)[1] == set()

    move = begun(real, table, claim, {0: 10}, {0: 20})
    real._lake.append_to_branch(table, move, lake_rows(table, range(10, 20)))
    staged = real.lake.staged(table, move, rows=10)
    real.stage_files(table, "main", {1: range(5)}, move=None)  # somebody was quicker
    pointer = real.ledger.pointer(table, "stream")

    built = real.lake.build_append(table, move, staged, base=pointer, keep=50).new

    assert real.live(table, built.metadata) == Counter([(0, 0, 9), (0, 10, 19), (1, 0, 4)])
    assert real._lake.load(table, built.metadata).metadata.snapshot_by_name(move.branch) is None


def lake_rows(table: TableRow, offsets: range) -> pa.Table:
    """Rows of partition 0 with all columns of the view."""
    rows = rows_at(0, offsets, table.spec)
    rows = rows.append_column("_op", pa.array(["put"] * len(offsets), pa.string()))
    return rows.append_column("_schema_version", pa.array([1] * len(offsets), pa.int32()))
