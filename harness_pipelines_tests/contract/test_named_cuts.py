"""Cuts of named snapshots: whatever moves the table, an engine finds in one what the snapshot had. It is made once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from harness_pipelines import faults
from harness_pipelines.drivers.postgres import READER
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.ports.ledger import TableUnknown
from harness_pipelines.ports.serving.cuts import Cut, CutOvertaken, CutRejected, CutsFull
from harness_pipelines.ports.serving.keys import CutOverLimits
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.read import cut as cut_module
from harness_pipelines.read import cut_chunks, named_cut
from harness_pipelines.read.cut import CutTooSlow, Served
from harness_pipelines.read.named_cut import NamedCutter
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.contract import cut_rig, test_cut_flow, test_keyed_cut_flow
from harness_pipelines_tests.contract.cut_drafts import server_of
from harness_pipelines_tests.contract.cut_rig import HOUR, CutWorld, Row, dies
from harness_pipelines_tests.contract.keyed_cut_rig import KeyedWorld
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.contract.test_cut_damage import file_of
from harness_pipelines_tests.contract.test_cut_files import aged, ripe, there
from harness_pipelines_tests.contract.test_expire import expire

#: A batch view names the size of row groups for Spark, which writes its files; here PyIceberg does.
pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")
BOTH = {"views": "both", "layout": {"columns": ["id"], "sample": 0}}


@pytest.fixture
def world(real: RealRig, tmp_path: Path) -> Iterator[CutWorld]:
    made = CutWorld(real, tmp_path, **BOTH, retention={"versions": "1h"})
    yield made
    faults.disarm()
    made.stores.close()


@pytest.fixture
def keyed(real: RealRig, tmp_path: Path) -> Iterator[KeyedWorld]:
    made = KeyedWorld(real, tmp_path)
    yield made
    made.stores.close()


def of(world: CutWorld, snapshot: str) -> str:
    """The name of a snapshot, which tables of other tests have, too."""
    return f"{snapshot}.{world.row.table_id}"


def name(world: CutWorld, snapshot: str) -> None:
    world.stores.snapshots.create(of(world, snapshot), [world.row])


def drop(world: CutWorld, snapshot: str) -> None:
    world.stores.snapshots.drop(of(world, snapshot))


def load(server: NamedCutter, world: CutWorld, snapshot: str) -> Served:
    return server.load(world.table.row, of(world, snapshot))


def named(world: CutWorld, snapshot: str) -> Cut:
    """As a server gives it that knows nothing."""
    return load(cutter(world), world, snapshot).cut


def cutter(world: CutWorld, *, keep: timedelta = HOUR) -> NamedCutter:
    return NamedCutter(world.stores, holder="test", keep=keep)


def truth_at(world: CutWorld, snapshot: str) -> Counter[Row]:
    return cut_rig.rows_of(world.table.read(columns=["_kafka_partition", "_kafka_offset", "s"], at=of(world, snapshot)))


def rows_of(world: CutWorld) -> list[dict[str, Any]]:
    return world.rig.ask("SELECT * FROM harness.named_cuts WHERE table_id = %s ORDER BY sequence", [world.row.table_id])


def over(world: CutWorld) -> None:
    """Let the time of all named cuts end."""
    world.rig.ask("UPDATE harness.named_cuts SET until = served_at WHERE table_id = %s", [world.row.table_id])


# -- rows -------------------------------------------------------------------------------------------------------


def assert_all_named(world: CutWorld, steps: Any, *, every: int = 1) -> None:
    """A snapshot after each n-th step; its cut, made at once or when all is over, has the rows of that moment."""
    truths = {}
    for number, (_, step) in enumerate(steps, 1):
        step(world)
        if number % every:
            continue
        name(world, snapshot := f"s{number}")
        truths[snapshot] = world.truth()
        assert world.seen(named(world, snapshot)) == truths[snapshot]
    over(world)
    assert world.fsck() == {}
    for snapshot, truth in truths.items():
        cut = named(world, snapshot)
        assert world.seen(cut) == truth == truth_at(world, snapshot), snapshot
    assert world.fsck() == {}
    assert len({row["snapshot_id"] for row in rows_of(world)}) == len(rows_of(world))


def test_a_cut_has_the_rows_of_its_snapshot_wherever_they_are_by_now(world: CutWorld):
    assert_all_named(world, test_cut_flow.STEPS)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_a_cut_of_a_keyed_table_has_the_newest_versions_of_its_snapshot(keyed: KeyedWorld, every: int):
    assert_all_named(keyed, test_keyed_cut_flow.STEPS, every=every)


def test_a_table_whose_buffer_goes_to_the_batch_view_is_no_different(real: RealRig, tmp_path: Path):
    world = CutWorld(real, tmp_path, views="batch", layout={"columns": ["id"], "sample": 0})
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20})
    name(world, "a")
    truth = world.truth()
    world.ingest({0: 60})
    world.tier({0: 55, 1: 25})
    assert world.seen(named(world, "a")) == truth == truth_at(world, "a")
    world.stores.close()


@pytest.mark.parametrize("engine", ["DuckDB", "chDB"])
def test_every_engine_reads_rows_that_are_in_a_later_view_by_now(keyed: KeyedWorld, engine: str):
    keyed.ingest({0: 60, 1: 45})
    keyed.tier({0: 30, 1: 40}, files=2)
    keyed.merge({0: 20, 1: 12}, files=2)
    name(keyed, "a")
    truth = keyed.truth()
    keyed.ingest({0: 70})
    keyed.tier({0: 70, 1: 45})
    keyed.merge({0: 65, 1: 45})
    assert keyed.seen(named(keyed, "a"), engine) == truth


def test_a_snapshot_keeps_its_columns_when_the_table_gets_others(keyed: KeyedWorld):
    keyed.ingest({0: 40, 1: 25})
    keyed.tier({0: 30, 1: 20})
    keyed.merge({0: 20, 1: 10})
    name(keyed, "a")
    truth = keyed.truth()
    keyed.evolve(ColumnChanges(add=(Column(name="extra", type=parse_type("string")),), order=("extra",)))
    keyed.ingest({0: 50, 1: 33})
    cut = named(keyed, "a")
    assert (keyed.seen(cut), cut.schema_version) == (truth, 1)
    name(keyed, "b")
    assert keyed.seen(named(keyed, "b")) == keyed.truth()


def test_a_revert_does_not_change_what_a_snapshot_has(keyed: KeyedWorld):
    keyed.ingest({0: 40, 1: 25})
    keyed.tier({0: 30, 1: 20})
    keyed.merge({0: 20, 1: 10})
    version = keyed.head.version
    keyed.merge({0: 30, 1: 20})
    name(keyed, "a")
    truth = keyed.truth()
    keyed.revert(version)
    keyed.merge({0: 25})
    assert keyed.seen(named(keyed, "a")) == truth == truth_at(keyed, "a")


# -- made once --------------------------------------------------------------------------------------------------


def test_a_cut_is_made_once_and_the_newest_one_goes_on_as_if_it_were_not_there(world: CutWorld):
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20})
    world.merge({0: 10, 1: 12})
    newest = world.cut()
    name(world, "a")
    server = cutter(world)
    first = load(server, world, "a")
    before = world.files()
    assert first.made
    assert first.cut.snapshot_id != newest.snapshot_id, "though it has the same rows"
    for one in (server, server, cutter(world)):
        again = load(one, world, "a")
        assert (again.made, again.cut.metadata) == (False, first.cut.metadata)
    name(world, "the-same")
    assert named(world, "the-same").metadata == first.cut.metadata
    assert world.files() == before
    world.pause()
    assert world.cutter.load(world.row).cut.metadata == newest.metadata, "nothing is new"
    world.ingest({0: 41})
    following = world.cut()
    assert following.sequence == newest.sequence + 1
    assert {chunk.path for chunk in following.chunks} & {chunk.path for chunk in newest.chunks}
    world.assert_exact(following)
    assert world.fsck() == {}


def test_a_name_that_is_there_again_means_the_state_that_it_has_now(world: CutWorld):
    world.ingest({0: 10})
    name(world, "a")
    first, truth = named(world, "a"), world.truth()
    drop(world, "a")
    with pytest.raises(TableUnknown, match="is in no snapshot a"):
        named(world, "a")
    world.ingest({0: 12})
    name(world, "a")
    second = named(world, "a")
    assert second.snapshot_id != first.snapshot_id
    assert world.seen(second) == world.truth()
    assert world.seen(first) == truth, "engines may be reading it"


def test_of_two_servers_that_make_it_at_once_one_publishes_and_both_give_that_one(
    world: CutWorld, monkeypatch: pytest.MonkeyPatch
):
    world.ingest({0: 40, 1: 25})
    name(world, "a")
    write, others = world.stores.cut_files.write_cut, list[Cut]()

    def while_another_one_publishes(*given: Any, **words: Any) -> Any:
        monkeypatch.setattr(world.stores.cut_files, "write_cut", write)
        others.append(named(world, "a"))
        return write(*given, **words)

    monkeypatch.setattr(world.stores.cut_files, "write_cut", while_another_one_publishes)
    served = load(cutter(world), world, "a")
    assert (served.made, served.cut.metadata) == (False, others[0].metadata)
    assert len(rows_of(world)) == 1


def test_a_snapshot_that_is_dropped_while_its_cut_is_made_is_not_there(
    world: CutWorld, monkeypatch: pytest.MonkeyPatch
):
    world.ingest({0: 40, 1: 25})
    name(world, "a")
    write = world.stores.cut_files.write_cut

    def while_it_is_dropped(*given: Any, **words: Any) -> Any:
        world.rig.ask("DELETE FROM harness.snapshots WHERE name = %s", [of(world, "a")])
        return write(*given, **words)

    monkeypatch.setattr(world.stores.cut_files, "write_cut", while_it_is_dropped)
    with pytest.raises(TableUnknown, match="is in no snapshot a"):
        named(world, "a")
    assert rows_of(world) == []


def test_what_takes_longer_than_a_cut_may_is_served_by_a_later_load_and_no_row_is_written_twice(
    world: CutWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cut_chunks, "CHUNK_ROWS_MAX", 100)
    world.ingest({0: 450, 1: 300})
    name(world, "a")
    world.tier({0: 450, 1: 300})  # the chunks are read from the view, by windows
    clock = SimpleNamespace(now_s=0.0, step_s=50.0)
    rows, write = list[int](), world.stores.cut_files.write_chunk
    for module in (cut_module, named_cut):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))

    def slow(*given: Any, **words: Any) -> Any:
        clock.now_s += clock.step_s
        made = write(*given, **words)
        rows.append(made.rows)
        return made

    monkeypatch.setattr(world.stores.cut_files, "write_chunk", slow)
    server = cutter(world)
    for _ in range(2):
        with pytest.raises(CutTooSlow):
            load(server, world, "a")
    clock.step_s = 0.0
    assert world.seen(load(server, world, "a").cut) == truth_at(world, "a")
    assert sum(rows) == 750


def test_more_keys_than_a_cut_may_fold_are_refused_and_not_shown_as_merged(real: RealRig, tmp_path: Path):
    world = KeyedWorld(real, tmp_path, serve={"hot_rows": 5})
    world.ingest({0: 20})
    name(world, "a")
    with pytest.raises(CutOverLimits, match=r"up to 5 \(`serve.hot_rows`\)"):
        named(world, "a")
    world.stores.close()


# -- files ------------------------------------------------------------------------------------------------------


def test_files_stay_while_a_cut_is_served_though_its_snapshot_is_dropped_and_go_in_two_runs(world: CutWorld):
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20})
    name(world, "a")
    truth = world.truth()
    cut = named(world, "a")
    world.ingest({0: 60, 1: 50})
    world.tier({0: 60, 1: 50}, files=3)
    drop(world, "a")
    world.rig.pass_time(timedelta(hours=3))
    world.rig.ask("UPDATE harness.named_cuts SET until = clock_timestamp() + interval '1 hour'")
    aged(world.files())
    for _ in range(3):
        expire(world.rig, world.row)
        ripe(world.rig, world.row)
    assert world.seen(cut) == truth, "of its version's files none is gone"

    over(world)
    expire(world.rig, world.row)
    assert there(cut.files) == [True] * len(cut.files)
    assert rows_of(world) == []
    ripe(world.rig, world.row)
    expire(world.rig, world.row)
    assert there(cut.files) == [False] * len(cut.files)


def test_serving_prolongs_a_cut_while_a_snapshot_pins_its_state_and_no_longer(world: CutWorld):
    world.ingest({0: 10})
    name(world, "a")
    short = load(cutter(world, keep=timedelta(minutes=1)), world, "a").cut
    cuts, longer = world.stores.cuts, timedelta(hours=2)
    cuts.serve(short, keep=longer)
    [row] = rows_of(world)
    assert row["until"] > short.until + HOUR
    found = cuts.known(world.row, short.snapshot_id)
    assert found is not None
    assert (found.is_named, found.metadata) == (True, short.metadata)
    drop(world, "a")
    with pytest.raises(CutOvertaken, match="was dropped"):
        cuts.serve(short, keep=2 * longer)
    assert rows_of(world)[0]["until"] == row["until"]
    over(world)
    assert cuts.known(world.row, short.snapshot_id) is None


@pytest.mark.parametrize("kind", ["metadata", "manifest list", "chunk"])
def test_a_cut_that_lost_a_file_is_retired_and_made_again(world: CutWorld, kind: str):
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20})
    name(world, "a")
    first = named(world, "a")
    file_of(first, kind).unlink()
    assert [*world.fsck()] == ["F3"]
    second = named(world, "a")
    assert second.metadata != first.metadata
    assert second.sequence > first.sequence
    assert world.seen(second) == world.truth()
    assert world.fsck() == {}, "what is lost of a retired cut is known"


@pytest.mark.parametrize("point", [one for one, found in faults.POINTS.items() if found.stage == "serve"])
def test_a_load_after_a_death_at_any_point_gives_all_rows(world: CutWorld, point: str, monkeypatch: pytest.MonkeyPatch):
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20})
    name(world, "a")
    dies(lambda: named(world, "a"), point, monkeypatch)
    served = load(cutter(world), world, "a")
    assert served.made == (point != "serve.after_commit")
    assert world.seen(served.cut) == world.truth()


# -- the ledger -------------------------------------------------------------------------------------------------


def test_a_pin_that_was_changed_by_hand_has_no_cut(world: CutWorld):
    world.ingest({0: 10})
    name(world, "a")
    named(world, "a")
    world.rig.ask("UPDATE harness.snapshot_tables SET bounds = '{}' WHERE name = %s", [of(world, "a")])
    with pytest.raises(CutRejected, match="changed by hand"):
        named(world, "a")


def test_a_reader_publishes_no_named_cut_of_a_state_that_no_snapshot_pins(world: CutWorld):
    world.ingest({0: 10})
    name(world, "a")
    state = world.stores.leases.look(world.row, holder="x", lease=HOUR, at=of(world, "a"))
    found = world.stores.cuts.named(world.row, of(world, "a"))
    assert found is not None
    numbers, _ = found
    draft = cutter_draft(world, state)
    cuts, words = world.stores.cuts, dict[str, Any](lease_id=state.lease_id, keep=HOUR)
    other = {p: (*bound[:3], bound[3] - 1 if p == 0 else bound[3]) for p, bound in draft.bounds.items()}
    with pytest.raises(CutOvertaken, match="no named snapshot pins version"):
        cuts.publish_named(world.row, _changed(draft, bounds=other), **words)
    with pytest.raises(CutRejected, match="far ahead"):
        cuts.publish_named(world.row, _changed(draft, sequence=numbers.sequence + 10**12), **words)
    with pytest.raises(CutRejected, match="lies in no folder"):
        cuts.publish_named(world.row, _changed(draft, files=(*draft.files, "file:///etc/passwd")), **words)
    cuts.publish_named(world.row, draft, **words)
    with pytest.raises(CutOvertaken, match="already"):
        cuts.publish_named(world.row, draft, **words)
    with psycopg.connect(session_dsn(world.rig.dsn, role=READER)) as login:
        for statement in ("DELETE FROM harness.named_cuts", "UPDATE harness.named_cuts SET until = 'infinity'"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), login.transaction():
                login.execute(statement)


def test_a_thousand_named_cuts_of_a_table_are_alive_at_most(world: CutWorld):
    world.ingest({0: 10})
    name(world, "a")
    named(world, "a")
    world.rig.ask(
        "INSERT INTO harness.named_cuts SELECT (jsonb_populate_record(c, jsonb_build_object('sequence', n,"
        " 'snapshot_id', n, 'version', 1000 + n))).*"
        " FROM harness.named_cuts c, generate_series(1, 999) n WHERE c.table_id = %s",
        [world.row.table_id],
    )
    world.ingest({0: 11})
    name(world, "b")
    with pytest.raises(CutsFull, match="1000 cuts of named snapshots are alive"):
        named(world, "b")
    world.rig.ask("UPDATE harness.named_cuts SET until = served_at WHERE sequence <= 5")
    assert world.seen(named(world, "b")) == world.truth()


def cutter_draft(world: CutWorld, state: Any) -> Any:
    server = server_of(world.rig, world.row)
    server.state, server.newest = state, None
    return server.draft(sequence=10**12, timestamp_ms=1_700_000_000_000)


def _changed(draft: Any, **changes: Any) -> Any:
    return replace(draft, **changes)
