"""Acts that no open move stands for, stopped past two graces between what they build and its commit, while expire runs.

Each either says by name that its files are gone, and works when it is asked again; or what it publishes is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness_pipelines import faults
from harness_pipelines.drivers.files import size_of
from harness_pipelines.lakes.iceberg.write.schema import IcebergSchemas
from harness_pipelines.ledgers.postgres.history.numbers import nonce_of
from harness_pipelines.ports.corrections import Correction
from harness_pipelines.ports.errors import BuiltGone
from harness_pipelines.ports.ledger import Swap, TableRow
from harness_pipelines.ports.repair import AdoptedMove, Adoption
from harness_pipelines.protocol.changes.corrections import Change, Kind
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.protocol.schema.evolution import ColumnChanges, evolved
from harness_pipelines.protocol.topics import FOREIGN_PARTITION
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import Primitive
from harness_pipelines_tests.contract import test_lake
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig, rows_at
from harness_pipelines_tests.contract.test_expire_paths import made_at, moved, needed

Act = Callable[[], Any]


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.disarm()


@pytest.fixture
def table(real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TableRow:
    """Version 2 has [0, 10), version 3 [0, 20) but for offset 15, which is quarantined."""
    made = made_at(real, monkeypatch, tmp_path.as_uri(), views="stream")
    moved(real, made, 0, 10)
    moved(real, made, 10, 20)
    real.ask(
        'INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, value, headers, kafka_ms) '
        "VALUES (%s, 0, 5, 'malformed', 'no JSON', '{', '[]', 0)",
        [made.table_id],
    )
    return made


def expire_twice(real: RealRig, table: TableRow, *, slept: timedelta = 2 * HOUR) -> None:
    """As long ago is all that there is; one run of expire condemns, and after a grace the next one deletes."""
    time_passes(real, table, slept)
    upkeep: Any = real.upkeep
    upkeep.condemn(real.again(table))
    real.ask("UPDATE harness.condemned_files SET since = since - interval '15 minutes'")
    claim = real.claim(table, Stage.EXPIRE)
    upkeep.delete_ripe(real.again(table), claim)
    real.ledger.release(claim)


def time_passes(real: RealRig, table: TableRow, by: timedelta) -> None:
    real.pass_time(by)
    for path in view_folder(real, table).rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - by.total_seconds()
            os.utime(path, (then, then))


def view_folder(real: RealRig, table: TableRow) -> Path:
    view = real._lake.load(table, real.ledger.pointer(table, "stream"))
    return Path(view.location().removeprefix("file://"))


# -- the acts -----------------------------------------------------------------------------------------------


def revert(real: RealRig, table: TableRow) -> Act:
    def build(name: Any, base: str, head: Any, target: Any, move_id: int) -> Swap:
        return real._lake.build_revert(table, move_id, name, base=base, head=head, target=target, keep=50)

    return lambda: real.ledger.revert(table, to=2, log_from={}, build=build)


def evolve(real: RealRig, table: TableRow) -> Act:
    def act() -> Any:
        now = real.again(table)
        changes = ColumnChanges(add=(Column(name="more", type=Primitive("string")),))
        found = evolved(now.spec, now.fields, changes, next_id=IcebergSchemas(real._lake).next_field_id(now))

        def build(pointers: Any, move_id: int) -> Any:
            return {
                v: IcebergSchemas(real._lake).build(table, found, view=v, base=base, move_id=move_id)
                for v, base in pointers.items()
            }

        return real.evolutions(table).publish(found, build, by="test")

    return act


def replay(real: RealRig, table: TableRow) -> Act:
    rows = rows_at(0, [5], table.spec)
    real.ask("UPDATE harness.tables SET retained_from = 2 WHERE table_id = %s", [table.table_id])  # all have its offset

    def build(_head: Any, pointers: Any, move_id: int) -> Any:
        return {"stream": _put_back(real, table, rows, pointers["stream"], move_id)}

    changes = {(0, 5): Change(kind=Kind.ADDED, digest="0")}
    correction = Correction(changes=changes, states={(0, 5): "held"}, bytes=1, decoder=None)
    return lambda: real.corrections(table).publish(correction, build, by="me", run_id=None)


def _put_back(real: RealRig, table: TableRow, rows: pa.Table, base: str, move_id: int) -> Swap:
    """In the place of the row that the rig wrote there."""
    hidden = {path: np.array([5], np.int64) for path in real.paths(table, base) if _first(path) == 0}
    return real._lake.build_correction(table, move_id, rows, view="stream", base=base, hidden=hidden)


def _first(path: str) -> int:
    offsets = pq.read_table(path.removeprefix("file://"), columns=["_kafka_offset"])["_kafka_offset"]
    return int(offsets[0].as_py())


ACTS = {"revert": revert, "evolve": evolve, "replay": replay}


@pytest.mark.parametrize("name", ACTS)
def test_an_act_that_slept_for_hours_says_that_its_files_are_gone_and_works_when_asked_again(
    real: RealRig, table: TableRow, name: str
):
    act, before = ACTS[name](real, table), real.ledger.head(table).version
    faults.arm(f"{name}.before_lock", partial(expire_twice, real, table))

    with pytest.raises(BuiltGone, match="run the same command again"):
        act()

    assert real.ledger.head(table).version == before
    made = act()
    assert real.ledger.head(table).version == made.version
    assert all(path.exists() for path in needed(real, real.again(table), made))


@pytest.mark.parametrize("name", ACTS)
def test_what_an_act_built_within_the_hour_is_left_to_it(real: RealRig, table: TableRow, name: str):
    """Three graces, that is: a replay of a long range takes its time."""
    act = ACTS[name](real, table)
    faults.arm(f"{name}.before_lock", partial(expire_twice, real, table, slept=timedelta(minutes=30)))

    made = act()

    assert all(path.exists() for path in needed(real, real.again(table), made))


@pytest.mark.parametrize("name", ACTS)
def test_an_act_whose_files_are_condemned_but_still_there_does_not_publish_them(
    real: RealRig, table: TableRow, name: str
):
    """A run of expire may have chosen what it removes, and sleep before it does."""

    def slept() -> None:
        upkeep: Any = real.upkeep
        time_passes(real, table, 2 * HOUR)
        assert upkeep.condemn(real.again(table))

    faults.arm(f"{name}.before_lock", slept)
    with pytest.raises(BuiltGone):
        ACTS[name](real, table)()
    claim = real.claim(table, Stage.EXPIRE)
    real.ask("UPDATE harness.condemned_files SET since = since - interval '1 hour'")
    real.upkeep.delete_ripe(real.again(table), claim)  # type: ignore[attr-defined]
    assert all(path.exists() for path in needed(real, table, real.ledger.head(table)))


def test_an_act_is_not_held_up_by_condemned_files_that_it_does_not_name(real: RealRig, table: TableRow):
    real.ask(
        "INSERT INTO harness.condemned_files (table_id, path, bytes) VALUES (%s, 'file:///nowhere/old.parquet', 1)",
        [table.table_id],
    )
    assert revert(real, table)().version == 4


# -- pointers that move without a version -------------------------------------------------------------------


def asleep_after_build(real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch, slept: Act) -> None:
    """Whoever writes the next metadata file sleeps before it is named by anybody."""
    write = real.catalog.commit_table
    turns = iter([slept])

    def commit_table(*arguments: Any) -> Any:
        written = write(*arguments)
        if (first := next(turns, None)) is not None:
            first()
        return written

    monkeypatch.setattr(real.catalog, "commit_table", commit_table)


def with_branch(real: RealRig, table: TableRow) -> str:
    real.ingest(table, {0: (20, 30)})
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 20}, {0: 30})
    branch = real._lake.make_branch(table, move, real.ledger.head(table).stream)
    real.ledger.close_move(claim, move, state=MoveState.ABANDONED, error="test")
    real.ledger.release(claim)
    return branch


def test_a_holder_of_expire_that_slept_over_its_branches_does_not_move_the_pointer(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    branch = with_branch(real, table)
    asleep = real.claim(table, Stage.EXPIRE, lease=timedelta(minutes=1))
    asleep_after_build(real, table, monkeypatch, lambda: _taken_over(real, table))
    pointer = real.ledger.pointer(table, "stream")

    with pytest.raises(FencedOut):
        real._lake.drop_branches(table, [branch], claim=asleep)

    assert real.ledger.pointer(table, "stream") == pointer
    real._lake.drop_branches(table, [branch], claim=real.claim(table, Stage.EXPIRE))
    assert real.shape(table)[1] == set()


def test_branches_are_not_dropped_over_what_was_published_meanwhile(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    """Else the catalog names a metadata file without the newest rows, and the next publish builds on it."""
    branch, published = with_branch(real, table), list[Version]()

    def publish() -> None:
        claim = real.claim(table)
        published.append(test_lake.moved(real, table, claim, 20, 30))
        real.ledger.release(claim)

    asleep_after_build(real, table, monkeypatch, publish)

    assert not real._lake.drop_branches(table, [branch])
    assert [real.ledger.pointer(table, "stream")] == [version.stream.metadata for version in published]
    assert real._lake.drop_branches(table, [branch])
    assert real.shape(table)[1] == set()


def _taken_over(real: RealRig, table: TableRow) -> None:
    real.pass_time(2 * HOUR)
    real.ledger.release(real.claim(table, Stage.EXPIRE))


@pytest.mark.parametrize("what", ["drop", "make"])
def test_a_metadata_file_that_expire_removed_is_named_by_nobody(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch, what: str
):
    branch = with_branch(real, table)
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 20}, {0: 30})
    pointer = real.ledger.pointer(table, "stream")

    def slept() -> None:
        real.ask("UPDATE harness.moves SET state = 'ABANDONED' WHERE move_id = %s", [move.move_id])
        expire_twice(real, table)

    asleep_after_build(real, table, monkeypatch, slept)
    with pytest.raises(BuiltGone):
        if what == "drop":
            real._lake.drop_branches(table, [branch])
        else:
            real._lake.make_branch(table, move, real.ledger.head(table).stream)

    assert real.ledger.pointer(table, "stream") == pointer
    assert needed(real, table, real.ledger.head(table))[0].exists()


# -- reconcile ----------------------------------------------------------------------------------------------


def test_rows_of_another_writer_that_were_written_anew_too_long_ago_are_not_taken_over(real: RealRig, table: TableRow):
    reconciler = real.reconciler
    real.stage_files(table, "main", {0: [100, 101]}, move=None)
    head, pointer = real.ledger.head(table), real.ledger.pointer(table, "stream")
    files = real._lake.foreign_files(table, pointer=pointer, published=head.stream.metadata)
    assert files is not None
    low, high = {FOREIGN_PARTITION: 0}, {FOREIGN_PARTITION: 2}

    def build() -> tuple[AdoptedMove, Any]:
        move = AdoptedMove(move_id=None, stage="tier", rows=2, lo=low, hi=high)
        number = reconciler.reserve(table, move, on=head)
        return AdoptedMove(move_id=number, stage="tier", rows=2, lo=low, hi=high), number

    move, number = build()
    view = files.replaced(move_id=number, nonce=nonce_of(real.database, number), first=0, schema_version=1)
    expire_twice(real, table)
    with pytest.raises(BuiltGone):
        reconciler.accept(table, pointer=pointer, stream=view, on=head, move=move)
    assert real.ledger.head(table).version == head.version

    again = real._lake.foreign_files(table, pointer=pointer, published=head.stream.metadata)
    assert again is not None
    move, number = build()
    view = again.replaced(move_id=number, nonce=nonce_of(real.database, number), first=0, schema_version=1)
    made = reconciler.accept(table, pointer=pointer, stream=view, on=head, move=move)
    assert all(path.exists() for path in needed(real, table, made))


def test_a_state_of_the_lake_is_adopted_only_if_all_its_files_are_there_at_the_commit(real: RealRig, table: TableRow):
    reconciler = real.reconciler
    head, pointer = real.ledger.head(table), real.ledger.pointer(table, "stream")
    next(path for path in needed(real, table, head) if path.suffix == ".parquet").unlink()
    adoption = Adoption(pointer=pointer, head=head.stream, starts={0: 0}, stream_hi={0: 20}, buffer_hi={0: 20})

    with pytest.raises(BuiltGone, match="parquet"):
        reconciler.adopt(table, adoption, lost=(), retained_from=1)
    assert real.ledger.head(table).version == head.version


def of_a_lost_time(real: RealRig, table: TableRow) -> Adoption:
    """The ledger went back behind the newest version and has condemned its data file since; what may be adopted."""
    old = real.ledger.head(table)
    lost = moved(real, table, 20, 30)
    key = {"table_id": table.table_id, "version": lost.version, "old": old.stream.metadata, "view": table.tiered_view}
    real.ask("DELETE FROM harness.versions WHERE table_id = %(table_id)s AND version = %(version)s", key)
    real.ask("UPDATE harness.lake_positions SET stream_hi = 20 WHERE table_id = %(table_id)s", key)
    real.ask("UPDATE public.iceberg_tables SET metadata_location = %(old)s WHERE table_name = %(view)s", key)
    time_passes(real, table, 2 * HOUR)
    upkeep: Any = real.upkeep
    upkeep.condemn(real.again(table))
    real.ask(r"DELETE FROM harness.condemned_files WHERE table_id = %(table_id)s AND path !~ '\.parquet$'", key)
    assert len(real.ask("SELECT path FROM harness.condemned_files WHERE table_id = %(table_id)s", key)) == 1
    real.ask("UPDATE harness.condemned_files SET since = since - interval '15 minutes'")
    pointer, head = old.stream.metadata, lost.stream
    return Adoption(pointer=pointer, head=head, starts={0: 0}, stream_hi={0: 30}, buffer_hi={0: 30})


def test_what_a_sleeping_holder_of_expire_has_begun_to_remove_is_not_adopted(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    adoption, delete, refused = of_a_lost_time(real, table), real.upkeep.files.delete, list[str]()  # type: ignore[attr-defined]
    asleep = real.claim(table, Stage.EXPIRE, lease=timedelta(minutes=1))

    def late(paths: Any) -> None:
        """Its lease ends between its last look at the claim and the request, and reconcile runs meanwhile."""
        real.pass_time(timedelta(minutes=10))
        with pytest.raises(BuiltGone, match="began to remove") as error:
            real.reconciler.adopt(table, adoption, lost=(), retained_from=1)
        refused.append(str(error.value))
        delete(paths)

    monkeypatch.setattr(real.upkeep.files, "delete", late)  # type: ignore[attr-defined]
    [gone] = real.upkeep.delete_ripe(real.again(table), asleep)  # type: ignore[attr-defined]
    assert len(refused) == 1 and gone in refused[0] and size_of(gone) is None


def test_what_expire_began_to_remove_and_did_not_is_adopted_an_hour_later(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    """The process was killed between its note and the request."""
    adoption = of_a_lost_time(real, table)
    killed = real.claim(table, Stage.EXPIRE)

    def dies(_paths: Any) -> None:
        raise InterruptedError

    monkeypatch.setattr(real.upkeep.files, "delete", dies)  # type: ignore[attr-defined]
    with pytest.raises(InterruptedError):
        real.upkeep.delete_ripe(real.again(table), killed)  # type: ignore[attr-defined]
    real.ledger.release(killed)
    adopt = partial(real.reconciler.adopt, table, adoption, lost=(), retained_from=1)
    older = "UPDATE harness.condemned_files SET removing_since = removing_since - %s WHERE table_id = %s"
    real.ask(older, [timedelta(minutes=50), table.table_id])
    with pytest.raises(BuiltGone, match="began to remove"):
        adopt()

    real.ask(older, [timedelta(minutes=11), table.table_id])
    made = adopt()

    assert all(path.exists() for path in needed(real, real.again(table), made))
    assert real.ask("SELECT path FROM harness.condemned_files WHERE table_id = %s", [table.table_id]) == []


def test_a_run_of_expire_that_sleeps_before_it_begins_removes_nothing_that_was_adopted(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    adoption, begin = of_a_lost_time(real, table), real.upkeep._begin  # type: ignore[attr-defined]
    asleep = real.claim(table, Stage.EXPIRE, lease=timedelta(minutes=1))
    adopted = list[Version]()

    def late(*arguments: Any) -> Any:
        if not adopted:
            real.pass_time(timedelta(minutes=10))
            adopted.append(real.reconciler.adopt(table, adoption, lost=(), retained_from=1))
        return begin(*arguments)

    monkeypatch.setattr(real.upkeep, "_begin", late)
    with pytest.raises(FencedOut):
        real.upkeep.delete_ripe(real.again(table), asleep)  # type: ignore[attr-defined]
    assert all(path.exists() for path in needed(real, real.again(table), adopted[0]))


def test_a_pointer_to_a_file_that_is_gone_is_set_right_by_a_revert_to_the_head(real: RealRig, table: TableRow):
    real.ask(
        "UPDATE public.iceberg_tables SET metadata_location = replace(metadata_location, '/metadata/', '/metadata/0') "
        "WHERE table_name = %s",
        [table.tiered_view],
    )

    def build(name: Any, base: str, head: Any, target: Any, move_id: int) -> Swap:
        return real._lake.build_revert(table, move_id, name, base=base, head=head, target=target, keep=50)

    made = real.ledger.revert(table, to=None, log_from={}, build=build)
    assert real.ledger.pointer(table, "stream") == made.stream.metadata
    assert all(path.exists() for path in needed(real, table, made))
