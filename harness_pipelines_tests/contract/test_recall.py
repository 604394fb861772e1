"""Recalls over real files and a real Postgres, without Spark: what is gathered, hidden, read, and what a merge makes of
it. Files are written as an engine would; moves that need Spark are in the integration tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import harness_pipelines as hp
from harness_pipelines.audit.fsck.batch_view import same_rows
from harness_pipelines.audit.fsck.overlays import overlays_there, overlays_whole, recalled_once, told_recalled
from harness_pipelines.audit.fsck.run import _Looks
from harness_pipelines.audit.proof.batch_view import BatchJob, judge_batch
from harness_pipelines.audit.proof.jobs import PartitionAudit, RowTally
from harness_pipelines.audit.proof.report import Findings, Kind
from harness_pipelines.audit.repair.batch_view import BatchPlan, left_behind, plan_batch
from harness_pipelines.audit.repair.lake import Way, apply_plan, plan_lake
from harness_pipelines.cli.main import cli
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.lakes.iceberg.reads import IcebergReads
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.keys import KeyInTwoPartitions
from harness_pipelines.protocol.lake.overlays import NotRecallable, OverlayRequest, OverlayWrong, RecallTooLarge
from harness_pipelines.protocol.lake.properties import RECALLED
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.spec.where import WhereError
from harness_pipelines.stages.otree import look, recalled
from harness_pipelines.stages.otree.otree import plan, publish, stage, trigger
from harness_pipelines.stages.otree.recall import plan_recall, plan_release
from harness_pipelines.stages.run.moving import FAILURES_MAX
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.contract.recall_rig import ALL, KEYED, Lake, Record, fill
from harness_pipelines_tests.contract.stores_rig import RealRig

pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning")  # of the views, which Spark knows


@pytest.fixture(autouse=True)
def _nothing_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that nobody clustered are, and a relayout would need Spark."""
    monkeypatch.setattr(look, "due", lambda *_, **__: [])


@pytest.fixture
def lake(real: RealRig, tmp_path: Path) -> Iterator[Lake]:
    made = Lake(real, tmp_path)
    fill(made)
    yield made
    made.stores.close()


def test_recalled_rows_leave_the_lake_and_are_read_from_postgres_in_one_commit(lake: Lake):
    assert lake.read() == ALL
    before = lake.head

    published = lake.recall("id >= 4 and id < 7")

    assert published is not None and published.version == before.version + 1
    assert (lake.in_lake(), lake.in_postgres()) == ([i for i in range(20) if i not in (4, 5, 6)], [4, 5, 6])
    assert lake.read() == ALL
    assert lake.read(at=before.version) == ALL
    [overlay] = published.overlays
    assert (overlay.rows, overlay.move) == (3, published.move_id)
    snapshot = lake.stores.lake.current(lake.row, "batch").metadata.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert snapshot.summary[RECALLED] == f"{overlay.segment}:3"
    [request] = lake.rig.ask(
        "SELECT state, rows, move_id FROM harness.recalls WHERE table_id = %s", [lake.row.table_id]
    )
    assert request == {"state": "done", "rows": 3, "move_id": published.move_id}


def test_reads_of_any_kind_see_recalled_rows_once(lake: Lake):
    lake.recall("id in (3, 4, 15)")

    assert lake.read(where="id = 4") == {4: "row 4"}
    assert lake.read(where="s = 'row 15'") == {15: "row 15"}
    assert lake.read(where="id > 13 and id < 17") == {14: "row 14", 15: "row 15", 16: "row 16"}
    assert lake.table.get(4) == {"id": 4, "s": "row 4"}
    assert lake.table.get_many([3, 5, 99]) == [{"id": 3, "s": "row 3"}, {"id": 5, "s": "row 5"}, None]
    assert lake.table.read(columns=["id", "_kafka_offset", "_op"], where="id = 15").to_pylist() == [
        {"id": 15, "_kafka_offset": 15, "_op": "put"}
    ]
    assert lake.table.read(limit=20).num_rows == 20
    with lake.table.reader(columns=["id"]) as batches:
        assert sorted(batches.read_all().column("id").to_pylist()) == list(range(20))


def test_newer_records_hide_recalled_rows(lake: Lake):
    lake.recall("id in (4, 5, 6)")
    lake.buffer({0: 30, 1: 30})
    lake.add("stream", [[(20, 4, "new 4"), (20, 5, None), (22, 24, "row 24")]], {0: 30, 1: 30})

    assert lake.read() == {**{i: v for i, v in ALL.items() if i != 5}, 4: "new 4", 24: "row 24"}
    assert lake.table.get_many([4, 5, 6]) == [{"id": 4, "s": "new 4"}, None, {"id": 6, "s": "row 6"}]
    changed = lake.table.changes(lake.head.version - 1, pre_images=True).to_pylist()
    assert [(c["_change_type"], c["id"], c["s"]) for c in changed] == [
        ("-U", 4, "row 4"),
        ("+U", 4, "new 4"),
        ("+I", 24, "row 24"),
        ("-D", 5, "row 5"),
    ]


def test_rows_that_are_recalled_already_are_not_recalled_again(lake: Lake):
    lake.recall("id < 3")
    lake.recall("id < 5")

    assert [one.rows for one in lake.head.overlays] == [3, 2]
    assert lake.in_postgres() == [0, 1, 2, 3, 4]
    assert lake.read() == ALL


def test_a_file_of_which_every_row_is_recalled_goes(lake: Lake):
    lake.recall("id < 10")

    assert lake.head.batch is not None
    assert len(pinned(lake.head.batch.metadata).files) == 1
    assert lake.read() == ALL
    lake.recall("id >= 10")
    assert (lake.in_lake(), lake.in_postgres()) == ([], list(range(20)))
    assert lake.read() == ALL


def test_a_recall_that_matches_nothing_changes_nothing_and_is_done(lake: Lake):
    before = lake.head
    number = lake.ask(where="id > 1000")

    assert lake.otree() is None
    assert lake.head == before
    assert lake.stores.recalls.find(lake.row, number).state == "done"
    assert lake.otree() is None


def test_more_rows_than_the_spec_allows_are_refused_with_their_number(real: RealRig, tmp_path: Path):
    lake = Lake(real, tmp_path, recall={"max_rows": 5})
    fill(lake)
    lake.recall("id < 3")
    number = lake.ask(where="id < 7")

    assert lake.otree() is None
    request = lake.stores.recalls.find(lake.row, number)
    assert request.state == "refused"
    assert request.detail is not None and "4 rows match beside the 3 that are recalled already" in request.detail
    assert lake.in_postgres() == [0, 1, 2]
    assert lake.rig.ledger.moves(lake.row, stage=Stage.OTREE)[0]["state"] == MoveState.ABANDONED
    lake.stores.close()


def fails(*_: object, **more: object) -> None:
    raise OverlayWrong("the disk lies")


@pytest.mark.parametrize("act", OverlayRequest)
def test_what_fails_in_every_attempt_is_refused_and_merges_go_on(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, act: OverlayRequest
):
    lake.recall("id = 0")
    number = lake.ask(act, where="id = 4" if act is OverlayRequest.RECALL else None)
    with monkeypatch.context() as broken:
        broken.setattr(recalled, "gather" if act is OverlayRequest.RECALL else "check_release", fails)
        for _ in range(FAILURES_MAX):
            with pytest.raises(OverlayWrong):
                lake.otree()
        assert lake.otree() is None
    request = lake.stores.recalls.find(lake.row, number)
    assert request.state == "refused" and request.detail is not None and "the disk lies" in request.detail
    assert lake.in_postgres() == [0]
    assert lake.read() == ALL


def test_a_second_attempt_of_a_recall_publishes_once(lake: Lake):
    number = lake.ask(where="id in (1, 2)")
    claim = lake.rig.claim(lake.row, Stage.OTREE)
    move = plan(lake.stores, lake.row, claim, trigger="request", run_id=None)
    assert move is not None and move.recall == number
    late = stage(lake.stores, lake.row, move)
    lake.rig.ledger.release(claim)

    assert lake.otree() is not None
    with pytest.raises(hp.HarnessError, match="COMMITTED already|superseded|taken over|lease"):
        publish(lake.stores, lake.row, claim, move, late)
    assert lake.in_postgres() == [1, 2]
    assert lake.read() == ALL


def test_a_revert_takes_a_recall_back_and_brings_it_again(lake: Lake):
    before = lake.head.version
    recalled_at = lake.recall("id < 3")
    assert recalled_at is not None

    revert_table(lake.stores, lake.row, to=before)
    assert (lake.in_lake(), lake.head.overlays) == (list(range(20)), ())
    assert lake.read() == ALL
    revert_table(lake.stores, lake.row, to=recalled_at.version)
    assert (lake.in_postgres(), lake.in_lake()) == ([0, 1, 2], list(range(3, 20)))
    assert lake.read() == ALL
    snapshot = lake.stores.lake.current(lake.row, "batch").metadata.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None and snapshot.summary[RECALLED] is not None


def test_a_named_snapshot_keeps_recalled_rows(lake: Lake):
    lake.recall("id < 3")
    name = f"s_{uuid.uuid4().hex[:8]}"
    lake.table.harness.snapshot(name, [lake.table.name])
    lake.recall("id = 5")

    assert lake.read(at=name) == ALL


# -- what a person asks for ---------------------------------------------------------------------------------


def test_a_person_asks_and_it_is_done_when_the_call_returns(lake: Lake):
    done = lake.table.recall("id in (4, 5)")

    assert (done.state, done.rows, done.act) == ("done", 2, OverlayRequest.RECALL)
    assert lake.in_postgres() == [4, 5]
    again = lake.table.recall("id in (4, 5)")
    assert (again.state, again.rows) == ("done", 0)


def test_a_request_that_nobody_waits_for_stays_until_otree_takes_it_up(lake: Lake):
    asked = lake.table.recall("id in (4, 5)", wait=False)

    assert asked.is_open and lake.head.overlays == ()
    assert trigger(lake.stores, lake.row) == "request"
    lake.otree()
    assert lake.in_postgres() == [4, 5]
    assert trigger(lake.stores, lake.row) is None


def test_what_a_recall_would_move_is_told_without_moving_it(lake: Lake):
    before = lake.head
    planned = plan_recall(lake.stores, lake.row, "id < 12")

    assert (planned.rows, planned.files, planned.held) == (12, 2, 0)
    assert plan_recall(lake.stores, lake.row, "id < 3").files == 1
    assert plan_release(lake.stores, lake.row).rows == 0
    assert lake.head == before
    assert lake.stores.recalls.open(lake.row) == []


def test_a_request_that_was_refused_fails_with_the_number_of_rows(real: RealRig, tmp_path: Path):
    lake = Lake(real, tmp_path, recall={"max_rows": 5})
    fill(lake)

    with pytest.raises(
        RecallTooLarge, match="6 rows match, and `recall: max_rows` of its spec is 5; nothing was moved"
    ):
        lake.table.recall("id < 6")
    with pytest.raises(RecallTooLarge, match="6 rows match"):
        plan_recall(lake.stores, lake.row, "id < 6")
    assert lake.head.overlays == ()
    lake.stores.close()


def test_a_where_that_is_none_is_said_before_anything_is_recorded(lake: Lake):
    with pytest.raises(WhereError, match="nowhere"):
        lake.table.recall("nowhere = 3")
    assert lake.stores.recalls.open(lake.row) == []


def test_releasing_what_is_not_recalled_is_done_at_once(lake: Lake):
    assert lake.table.release_recalled().rows == 0
    assert lake.stores.recalls.open(lake.row) == []


def command(lake: Lake, *words: str) -> Result:
    env = {
        "HARNESS_DSN": lake.rig.dsn,
        "HARNESS_WAREHOUSE": lake.stores.warehouse,
        "HARNESS_HOME": str(lake.stores.settings.home),
        "HARNESS_KAFKA": "127.0.0.1:1",
        "HARNESS_SPARK": "sc://127.0.0.1:1",
    }
    return CliRunner().invoke(cli, list(words), env=env)


def test_the_command_recalls_tells_and_cancels(lake: Lake):
    name = lake.table.name
    dry = command(lake, "recall", name, "--where", "id < 3", "--dry-run")
    assert f"{name}: would recall 3 rows, " in dry.output and "found in 1 file" in dry.output, dry.output
    done = orjson.loads(command(lake, "recall", name, "--where", "id < 3", "--json").stdout)
    assert {k: done[k] for k in ("table", "act", "where", "rows", "state", "done", "recalled")} == {
        "table": name,
        "act": "recall",
        "where": "id < 3",
        "rows": 3,
        "state": "done",
        "done": True,
        "recalled": 3,
    }
    waiting = command(lake, "recall", name, "--release", "--no-wait")
    assert f"waits for a worker; `harness status {name}` shows it" in waiting.output
    assert command(lake, "recall", name, "--cancel").output == f"{name}: cancelled 1 request\n"
    shown = orjson.loads(command(lake, "table", "show", name, "--json").stdout)
    assert [one["rows"] for one in shown["recalled"]] == [3]
    assert "# batch view: 3 of its rows are recalled to Postgres" in command(lake, "table", "show", name).output
    [overlay] = lake.head.overlays
    plan = orjson.loads(command(lake, "explain", name, "--json").stdout)
    assert [one["name"] for one in plan["overlay"]["segments"]] == [overlay.segment]
    assert overlay.segment in command(lake, "explain", name).output
    assert "recalled 3 rows; buffer" in command(lake, "explain", name, "--analyze").output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "give either --where SQL, the rows to recall, or --release"),
        (["--where", "id < 3", "--release"], "give either --where SQL"),
        (["--cancel", "--release"], "--cancel cancels the waiting requests"),
        (["--release", "--dry-run", "--no-wait"], "--dry-run and --no-wait exclude each other"),
    ],
)
def test_words_that_do_not_go_together_are_refused(words: list[str], why: str):
    found = CliRunner().invoke(cli, ["recall", "a.b", *words])

    assert (found.exit_code, why in found.output) == (2, True), found.output


# -- what is told of it ---------------------------------------------------------------------------------------


def plan_again(lake: Lake) -> BatchPlan | None:
    bounds = lake.head.bounds.items()
    return plan_batch(lake.stores, lake.row, lake.head.stream_hi, kept={p: b.batch_hi for p, b in bounds})


def test_a_ledger_that_has_its_recalled_rows_goes_on_with_them(lake: Lake):
    lake.recall("id < 3")
    assert plan_again(lake) is None


def test_where_recalled_rows_are_gone_the_batch_view_is_begun_anew(lake: Lake):
    lake.recall("id < 3")
    lake.rig.ask(f"DROP TABLE harness_buffer.{lake.head.overlays[0].segment}")

    planned = plan_again(lake)
    assert planned is not None and planned.view is None
    lake_plan = plan_lake(lake.stores, lake.row)
    assert (lake_plan.way, lake_plan.act) == (Way.BATCH, planned.act)
    apply_plan(lake.stores, lake.row, lake_plan)
    assert (lake.head.overlays, lake.in_lake()) == ((), [])
    assert {p: b.batch_hi for p, b in lake.head.bounds.items()} == {0: 0, 1: 0}
    assert lake.read() == ALL
    assert plan_lake(lake.stores, lake.row).way is Way.NONE


def test_a_batch_view_that_lacks_recalled_rows_is_not_taken_over_by_a_lost_ledger(lake: Lake):
    spec, bound = lake.row.spec, lake.head.stream_hi
    assert left_behind(lake.stores, spec, bound) is not None
    lake.recall("id < 3")
    assert left_behind(lake.stores, spec, bound) is None


def found_by_fsck(lake: Lake) -> list[str]:
    """What the rules about recalled rows and about counts find."""
    look = _Looks(lake.stores, None, data=True).look(lake.row.name)
    rules = (overlays_there, overlays_whole, told_recalled, recalled_once, same_rows)
    return [found.detail for check in rules for found in check(look)]


def test_fsck_finds_nothing_in_a_sound_table_and_names_what_is_wrong(lake: Lake):
    lake.recall("id in (4, 5)")
    lake.recall("id = 6")
    assert found_by_fsck(lake) == []
    first, second = lake.head.overlays

    lake.rig.ask(f"DELETE FROM harness_buffer.{first.segment} WHERE id = 4")
    [found] = found_by_fsck(lake)
    assert f"{first.segment} has 1 rows with digest v1:" in found and f"says 2 with {first.digest}" in found
    lake.rig.ask("UPDATE harness.overlays SET retired_at = clock_timestamp() WHERE segment = %s", [second.segment])
    assert any(
        f"{second.segment}, which version {lake.head.version} names, is given up" in f for f in found_by_fsck(lake)
    )
    lake.rig.ask(f"DROP TABLE harness_buffer.{second.segment}")
    assert any("is not in Postgres: 1 rows of the batch view are gone" in found for found in found_by_fsck(lake))
    lake.rig.ask("UPDATE harness.versions SET overlays = '[]' WHERE table_id = %s", [lake.row.table_id])
    assert any(
        f"names no recalled rows, its snapshot of the batch view {first.segment}:2" in f for f in found_by_fsck(lake)
    )


def test_a_full_audit_reads_recalled_rows_with_the_batch_view(lake: Lake):
    lake.recall("id in (4, 5)")
    head = lake.head
    assert head.batch is not None
    held = lake.stores.overlays.read(lake.row, head.overlays)
    done = [PartitionAudit(partition=p, tally=RowTally(())) for p in (0, 1)]

    def judged(recalled_rows: pa.Table) -> tuple[bool, dict[Kind, int]]:
        findings = Findings()
        job = BatchJob(
            lake=IcebergReads(),
            table=lake.row,
            bounds=head.bounds,
            batch=head.batch.metadata if head.batch else "",
            stream=head.stream.metadata,
            foreign=None,
            overlays=head.overlays,
            recalled=lambda: recalled_rows,
        )
        ok = judge_batch(job, done, findings, step=lambda _: None).ok
        return ok, {kind: count for kind, count in findings.counts.items() if count}

    assert judged(held) == (True, {})
    assert judged(held.slice(0, 1)) == (False, {Kind.MISSING: 1})
    doubled = judged(pa.concat_tables([held, held.slice(0, 1)]))
    assert not doubled[0] and doubled[1][Kind.DUPLICATED]


# -- what a merge makes of recalled rows ----------------------------------------------------------------------


def next_generation(lake: Lake, files: list[list[Record]], hi: Mapping[int, int]) -> Any:
    lake.buffer(hi)
    lake.add("stream", files, hi)
    claim = lake.rig.claim(lake.row, Stage.OTREE)
    move = plan(lake.stores, lake.row, claim, trigger="rows", run_id=None)
    assert move is not None
    ranges = {r.partition: (r.low, r.high) for r in move.ranges}
    try:
        return recalled.merged(lake.stores, lake.row, move, base=lake.head, ranges=ranges)
    finally:
        lake.rig.ledger.release(claim)


def test_a_merge_puts_the_newest_of_recalled_keys_into_their_next_generation(lake: Lake):
    lake.recall("id in (4, 5)")
    lake.recall("id = 6")
    records: list[Record] = [(20, 4, "old 4"), (22, 4, "new 4"), (21, 5, None), (24, 8, "new 8"), (25, 31, "row 31")]
    change = next_generation(lake, [records[:2], records[2:]], {0: 30, 1: 30})

    assert change.on == lake.head.overlays
    [made] = change.then
    found = lake.stores.overlays.read(lake.row, [made]).sort_by("id")
    assert found.select(["id", "s", "_kafka_offset"]).to_pylist() == [
        {"id": 4, "s": "new 4", "_kafka_offset": 22},
        {"id": 6, "s": "row 6", "_kafka_offset": 6},
    ]
    assert made.rows == 2


def test_a_merge_that_meets_no_recalled_key_leaves_them_as_they_are(lake: Lake):
    lake.recall("id in (4, 5)")

    assert next_generation(lake, [[(20, 8, "new 8")]], {0: 30, 1: 30}) is None


def test_nothing_is_left_when_all_recalled_keys_are_deleted(lake: Lake):
    lake.recall("id in (4, 5)")
    change = next_generation(lake, [[(20, 4, None), (21, 5, None)]], {0: 30, 1: 30})

    assert change.then == ()


def test_a_damaged_table_of_recalled_rows_is_never_merged_into_the_next_one(lake: Lake):
    lake.recall("id in (4, 5)")
    [overlay] = lake.head.overlays
    lake.rig.ask(f"UPDATE harness_buffer.{overlay.segment} SET s = 'changed' WHERE id = 4")

    with pytest.raises(
        hp.HarnessError, match=f"recalled rows in {overlay.segment}: expected 2 rows with digest .* nothing was"
    ):
        next_generation(lake, [[(20, 4, "new")]], {0: 30, 1: 30})


@pytest.mark.parametrize(
    ("spec", "why"), [({"key": [], "delete": "tombstone"}, "has no key"), ({"views": "stream"}, "views: stream")]
)
def test_tables_of_another_kind_are_refused_by_name(real: RealRig, spec: dict[str, Any], why: str):
    words = {k: v for k, v in {**KEYED, **spec}.items() if v not in ([], {})}
    if "key" not in words:
        words.pop("delete", None)
    table: TableRow = real.table(**words)

    with pytest.raises(NotRecallable, match=f"{table.name}.*{why}"):
        recalled.check_recallable(table)


def test_a_key_in_two_partitions_stops_the_merge(lake: Lake):
    lake.recall("id in (4, 5)")
    [overlay] = lake.head.overlays
    assert overlay.rows == 2
    held = lake.stores.overlays.read(lake.row, [overlay])
    moved = held.set_column(
        held.column_names.index("_kafka_partition"), "_kafka_partition", pa.array([1] * 2, pa.int32())
    ).set_column(held.column_names.index("_kafka_offset"), "_kafka_offset", pa.array([90, 91], pa.int64()))
    from harness_pipelines.protocol.reading.fold import fold

    with pytest.raises(KeyInTwoPartitions):
        fold(lake.row.name, pa.concat_tables([held, moved]), lake.row.spec.key)
