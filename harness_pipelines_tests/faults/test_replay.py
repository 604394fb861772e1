"""Quarantined records are put back once, at their own coordinates; older versions and audits know what is what."""

from __future__ import annotations

import json
import threading
from collections import Counter
from functools import partialmethod
from typing import Any

import pytest
from click.testing import CliRunner

from harness_pipelines import faults
from harness_pipelines.app.table import Table
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.cli.main import cli
from harness_pipelines.lakes.iceberg.write.publish import Lake
from harness_pipelines.ledgers.postgres.acts.corrections import Corrections
from harness_pipelines.ports.ledger import Swap
from harness_pipelines.protocol.changes.corrections import ReplayRefused, Wanted
from harness_pipelines.protocol.keys import KeyInTwoPartitions
from harness_pipelines.protocol.lake.overlays import OverlayRequest
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.otree.recall import ask
from harness_pipelines.stages.otree.recall import run as run_recall
from harness_pipelines.stages.replay.quarantine import Replayed, drop, replay
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.rig import OTREE, TableRig, environment

pytestmark = pytest.mark.turns("odd", "keyed")

ODD = b'{"id":%d,"n":7,"s":"odd","more":1}'  #: refused where unknown fields are


def states(rig: TableRig) -> Counter[str]:
    with rig.stores.database.session() as connection:
        key = [rig.table.row.table_id]
        found = connection.execute("SELECT state FROM harness.quarantine WHERE table_id = %s", key).fetchall()
    return Counter(row["state"] for row in found)


def settled(rig: TableRig) -> None:
    """All that was produced is in every view, and no version needs the buffer to be read."""
    rig.ingest()
    rig.tier()
    if rig.table.spec.views == "both":
        rig.worker(OTREE, until_idle=True).run()


def lenient(rig: TableRig) -> None:
    rig.harness.apply(rig.table.spec.model_copy(update={"unknown_fields": "ignore"}))


def again(rig: TableRig, **more: Any) -> Replayed:
    return replay(rig.stores, rig.harness.table(rig.name).row, Wanted(), **more)


def offsets(rig: TableRig, *, at: int | None = None) -> list[tuple[int, int]]:
    found = rig.harness.table(rig.name).read(columns=["_kafka_partition", "_kafka_offset"], at=at)
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


@pytest.fixture(params=["both", "stream", "batch"])
def odd(request: pytest.FixtureRequest, make_rig: MakeRig) -> TableRig:
    """A table with 40 rows and 3 records that its spec does not take, all of it in the lake."""
    rig = make_rig(views=request.param, layout={"columns": ["n"]}, unknown_fields="quarantine")
    rig.produce(10)
    for number in range(3):
        rig.kafka.produce(rig.topic, number % 2, [ODD % (1000 + number)])
    rig.produce(10)
    settled(rig)
    return rig


@pytest.mark.long
def test_a_record_goes_back_to_its_own_coordinate_in_every_view_and_only_once(odd: TableRig):
    before = odd.stores.tables.head(odd.table.row).version
    known = offsets(odd)
    assert len(known) == 40
    lenient(odd)

    assert again(odd, dry_run=True).replayed == 3
    assert offsets(odd) == known, "a dry run changes nothing"
    done = again(odd)
    assert (done.records, done.replayed, len(done.versions)) == (3, 3, 1)

    assert offsets(odd) == sorted([*known, (0, 10), (0, 11), (1, 10)])
    assert offsets(odd, at=before) == known, "a version from before does not change"
    assert states(odd) == {"replayed": 3}
    assert again(odd).records == 0, "nothing is held any more"
    odd.produce(5)
    settled(odd)
    assert len(offsets(odd)) == 53
    report = audit_table(odd.stores, odd.harness.table(odd.name).row, full=True)
    assert report.ok, report
    assert fsck(odd.stores, [odd.name]).ok


def test_what_was_signed_off_before_is_judged_anew(odd: TableRig):
    row = odd.harness.table(odd.name).row
    assert audit_table(odd.stores, row).ok
    lenient(odd)
    again(odd)
    row = odd.harness.table(odd.name).row
    assert audit_table(odd.stores, row).ok
    assert audit_table(odd.stores, row).ok


def test_a_revert_takes_records_back_to_quarantine(odd: TableRig):
    before = odd.stores.tables.head(odd.table.row).version
    lenient(odd)
    again(odd)
    revert_table(odd.stores, odd.harness.table(odd.name).row, to=before)
    assert states(odd) == {"held": 3}
    assert len(offsets(odd)) == 40
    assert audit_table(odd.stores, odd.harness.table(odd.name).row).ok
    assert again(odd).replayed == 3
    assert len(offsets(odd)) == 43
    assert audit_table(odd.stores, odd.harness.table(odd.name).row, full=True).ok


def told(rig: TableRig, since: int) -> dict[tuple[int, int], tuple[str, int | None]]:
    """Per coordinate what a reader of the changes is told, and `id`."""
    found = rig.harness.table(rig.name).corrections(since, columns=["id"]).to_pylist()
    return {(row["_kafka_partition"], row["_kafka_offset"]): (row["_correction"], row["id"]) for row in found}


def test_who_had_passed_the_records_is_told_that_they_are_rows_now(odd: TableRig, monkeypatch: pytest.MonkeyPatch):
    before = odd.stores.tables.head(odd.table.row).version
    lenient(odd)
    [after] = again(odd).versions
    assert told(odd, before) == {(0, 10): ("added", 1000), (0, 11): ("added", 1002), (1, 10): ("added", 1001)}
    assert told(odd, after) == {}
    assert told(odd, 1) == {}, "who has none of it reads it as it is now"
    revert_table(odd.stores, odd.harness.table(odd.name).row, to=before)
    assert told(odd, after) == dict.fromkeys([(0, 10), (0, 11), (1, 10)], ("removed", None))
    assert told(odd, before) == {}
    run = CliRunner(env=environment(odd.stores.settings)).invoke
    words = [odd.name, "--from", str(after), "--corrections"]
    shown = run(cli, ["changes", *words, "--json"], catch_exceptions=False)
    assert [one["_correction"] for one in json.loads(shown.stdout)["corrections"]] == ["removed"] * 3
    assert "3 corrections" in run(cli, ["changes", *words]).output
    monkeypatch.setattr(Table, "changelog", partialmethod(Table.changelog, follow=False))
    for follower in (["changes", *words, "--follow"], ["stream", *words, "--no-follow"]):
        lines = run(cli, follower, catch_exceptions=False).stdout.splitlines()
        assert [json.loads(line)["_correction"] for line in lines] == ["removed"] * 3


def test_what_the_lake_has_not_passed_waits_and_says_for_what(make_rig: MakeRig):
    rig = make_rig(views="stream", unknown_fields="quarantine")
    rig.produce(10)
    rig.kafka.produce(rig.topic, 0, [ODD % 1])
    rig.ingest()
    lenient(rig)
    done = again(rig)
    assert (done.replayed, sum(done.waiting.values())) == (0, 1)
    assert done.way_on is not None
    assert "--until-idle" in done.way_on
    rig.tier()
    assert again(rig).replayed == 1


def test_what_does_not_fit_stays_and_can_be_given_up(odd: TableRig):
    done = again(odd)
    assert (done.replayed, dict(done.refused)) == (0, {"unknown_field": 3})
    row = odd.table.row
    assert drop(odd.stores, row, Wanted(partition=1), dry_run=True) == 1
    assert drop(odd.stores, row, Wanted(partition=1)) == 1
    assert states(odd) == {"held": 2, "dropped": 1}
    lenient(odd)
    assert again(odd).replayed == 2
    assert audit_table(odd.stores, odd.harness.table(odd.name).row, full=True).ok


def test_two_at_once_put_each_record_back_once(make_rig: MakeRig):
    rig = make_rig(views="both", layout={"columns": ["n"]}, unknown_fields="quarantine")
    rig.produce(10)
    for number in range(40):
        rig.kafka.produce(rig.topic, number % 2, [ODD % number])
    settled(rig)
    lenient(rig)
    done: list[Replayed] = []
    threads = [threading.Thread(target=lambda: done.append(again(rig))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.replayed for one in done) == 40
    assert len(offsets(rig)) == len(set(offsets(rig))) == 60


def test_who_finds_the_records_put_back_by_another_meanwhile_puts_none_back(
    odd: TableRig, monkeypatch: pytest.MonkeyPatch
):
    lenient(odd)
    reserve = Corrections._reserve

    def another_comes_first(corrections: Corrections, *wanted: Any) -> Any:
        monkeypatch.undo()
        assert again(odd).replayed == 3
        return reserve(corrections, *wanted)

    monkeypatch.setattr(Corrections, "_reserve", another_comes_first)
    assert again(odd).replayed == 0
    assert len(offsets(odd)) == 43


@pytest.mark.parametrize("point", ["before_lock", "in_transaction", "after_commit"])
def test_a_death_leaves_all_of_it_or_nothing(odd: TableRig, point: str):
    lenient(odd)
    faults.arm_from({"HARNESS_FAULT": f"replay.{point}=raise"})
    with pytest.raises(faults.FaultInjected):
        again(odd)
    took = point == "after_commit"
    assert states(odd) == {"replayed" if took else "held": 3}
    assert len(offsets(odd)) == (43 if took else 40)
    assert again(odd).replayed == (0 if took else 3)
    assert len(offsets(odd)) == 43
    assert audit_table(odd.stores, odd.harness.table(odd.name).row, full=True).ok


# -- keyed tables -------------------------------------------------------------------------------------------


def put(rig: TableRig, key: int, n: int, *, odd: bool = False, partition: int = 0) -> None:
    value = b'{"id":%d,"n":%d,"s":"%s"%s}' % (key, n, b"odd" if odd else b"plain", b',"more":1' if odd else b"")
    rig.kafka.produce(rig.topic, partition, [value], key=b'{"id":%d}' % key)


def delete(rig: TableRig, key: int) -> None:
    rig.kafka.produce(rig.topic, 0, [None], key=b'{"id":%d}' % key)


def state(rig: TableRig, *, at: int | None = None) -> dict[int, int]:
    found = rig.harness.table(rig.name).read(columns=["id", "n"], at=at)
    rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    assert len(rows) == len(dict(rows)), "a key has one row"
    return dict(rows)


@pytest.fixture(params=["both", "stream"])
def keyed(request: pytest.FixtureRequest, make_rig: MakeRig) -> TableRig:
    """Keys whose quarantined version is their only one, the newest, or older than what came after it.

    1: its only one; 2: the newest; 3: older than a put; 4: older than a delete; 5: two of them; 6: older than what is
    not in the batch view yet.
    """
    rig = make_rig(key=["id"], views=request.param, layout={"columns": ["n"]}, unknown_fields="quarantine")
    for key in range(2, 20):
        put(rig, key, 10)
    for key in (1, 2, 3, 4, 5, 5, 6):
        put(rig, key, 20 + key, odd=True)
    put(rig, 3, 30)
    delete(rig, 4)
    settled(rig)
    put(rig, 6, 60)
    rig.ingest()
    return rig


KEYED_BEFORE = {key: 10 for key in range(2, 20) if key != 4} | {3: 30, 6: 60}
KEYED_AFTER = {**KEYED_BEFORE, 1: 21, 2: 22, 5: 25}


def whole(rig: TableRig) -> None:
    report = audit_table(rig.stores, rig.harness.table(rig.name).row, full=True)
    assert report.ok, report
    found = fsck(rig.stores, [rig.name])
    assert found.ok, found


@pytest.mark.long
def test_of_a_key_the_newest_version_wins_whenever_it_came(keyed: TableRig):
    before = keyed.stores.tables.head(keyed.table.row).version
    assert state(keyed) == KEYED_BEFORE
    lenient(keyed)
    done = again(keyed)
    assert (done.replayed, dict(done.waiting)) == (7, {})
    assert state(keyed) == KEYED_AFTER
    assert state(keyed, at=before) == {**KEYED_BEFORE, 6: 10}, "a version from before does not change"
    whole(keyed)
    settled(keyed)
    assert state(keyed) == KEYED_AFTER
    whole(keyed)
    revert_table(keyed.stores, keyed.harness.table(keyed.name).row, to=before)
    assert state(keyed) == KEYED_BEFORE
    assert states(keyed) == {"held": 7}
    settled(keyed)
    assert again(keyed).replayed == 7
    assert state(keyed) == KEYED_AFTER
    whole(keyed)


def test_who_keeps_the_newest_row_of_each_key_asks_what_the_told_ones_show(keyed: TableRig):
    """As docs/how-to/stream.md says."""
    table = keyed.harness.table(keyed.name)
    stream = table.stream(columns=["id", "n"], follow=False, corrections=True)
    place = ("_kafka_partition", "_kafka_offset")
    kept: dict[int, dict[str, Any]] = {}

    def take() -> list[dict[str, Any]]:
        marked = []
        for batch in stream:
            rows = batch.rows.to_pylist()
            if not batch.is_correction:
                now = {row["id"]: row if row["_op"] == "put" else None for row in rows}
            else:
                marked += rows
                told = {tuple(row[name] for name in place) for row in rows}
                keys = {key for key, row in kept.items() if tuple(row[name] for name in place) in told}
                asked = sorted(keys | {row["id"] for row in rows if row["id"] is not None})
                now = dict(zip(asked, table.get_many(asked, columns=["id", "n", *place]), strict=True))
            for key, row in now.items():
                kept.pop(key, None)
                if row is not None:
                    kept[key] = row
        return marked

    assert take() == []
    before = keyed.stores.tables.head(keyed.table.row).version
    lenient(keyed)
    again(keyed)
    assert [row["id"] for row in take()] == [1, 2, 3, 4, 5, 5, 6], "the changelog has those that show nowhere, too"
    assert {key: row["n"] for key, row in kept.items()} == KEYED_AFTER
    revert_table(keyed.stores, keyed.harness.table(keyed.name).row, to=before)
    assert {row["_correction"] for row in take()} == {"removed"}
    assert {key: row["n"] for key, row in kept.items()} == KEYED_BEFORE


@pytest.mark.long
def test_a_delete_that_is_put_back_takes_its_key_away(make_rig: MakeRig):
    rig = make_rig(
        key=["id"],
        views="both",
        delete={"field": "op", "values": ["d"]},
        layout={"columns": ["n"]},
        unknown_fields="quarantine",
    )
    for key in (1, 2, 3):
        put(rig, key, 10)
    for key in (1, 2, 4):
        rig.kafka.produce(rig.topic, 0, [b'{"id":%d,"op":"D","more":1}' % key], key=b'{"id":%d}' % key)
    put(rig, 2, 20)
    settled(rig)
    assert state(rig) == {1: 10, 2: 20, 3: 10}
    told = {"unknown_fields": "ignore", "delete": {"field": "op", "values": ["d", "D"]}}
    decoder = TableSpec.model_validate({**dump_spec(rig.table.spec), **told})
    assert again(rig, decoder=decoder).replayed == 3
    assert state(rig) == {2: 20, 3: 10}
    whole(rig)


@pytest.mark.long
def test_what_is_merged_meanwhile_is_looked_at_again(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    """The files of a replay are written before the lock; a merge of a newer version comes between."""
    rig = make_rig(key=["id"], views="both", layout={"columns": ["n"]}, unknown_fields="quarantine")
    for key in (1, 2, 3):
        put(rig, key, 10)
    put(rig, 2, 20, odd=True)
    settled(rig)
    put(rig, 2, 30)
    build, calls = Lake.build_correction, []

    def late(lake: Lake, *args: Any, **kwargs: Any) -> Swap:
        swap = build(lake, *args, **kwargs)
        calls.append(kwargs["view"])
        if calls == ["batch", "stream"]:
            settled(rig)
        return swap

    monkeypatch.setattr(Lake, "build_correction", late)
    lenient(rig)
    assert again(rig).replayed == 1
    assert calls == ["batch", "stream", "stream"], "the batch view has a newer version when it is written anew"
    assert state(rig) == {1: 10, 2: 30, 3: 10}
    whole(rig)


@pytest.mark.long
def test_where_rows_are_recalled_nothing_is_put_back(make_rig: MakeRig):
    rig = make_rig(key=["id"], views="both", layout={"columns": ["n"]}, unknown_fields="quarantine")
    put(rig, 1, 10)
    put(rig, 1, 20, odd=True)
    settled(rig)
    list(run_recall(rig.stores, rig.table.row, ask(rig.stores, rig.table.row, OverlayRequest.RECALL, where="id = 1")))
    lenient(rig)
    with pytest.raises(ReplayRefused, match="--release"):
        again(rig)
    assert states(rig) == {"held": 1}
    assert state(rig) == {1: 10}


@pytest.mark.long
def test_a_key_in_two_partitions_is_named_and_nothing_put_back(make_rig: MakeRig):
    rig = make_rig(key=["id"], views="both", layout={"columns": ["n"]}, unknown_fields="quarantine")
    put(rig, 1, 10)
    put(rig, 1, 20, odd=True, partition=1)
    settled(rig)
    lenient(rig)
    with pytest.raises(KeyInTwoPartitions, match="partition 0 .* and in partition 1 "):
        again(rig)
    assert states(rig) == {"held": 1}
    assert state(rig) == {1: 10}
