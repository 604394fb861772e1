"""A file of the lake that is damaged is made again, with the same rows, or it is said why it cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from harness_pipelines import faults
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.cli.main import cli
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.ports.errors import LakeFileBroken, LakeFileMissing
from harness_pipelines.protocol.lake.files import FilesGone
from harness_pipelines.protocol.lake.properties import MOVE, NONCE
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages.replay.damaged_file import RepairRefused, repair_file
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.keyed import BY_VALUE, KeyedRig, row
from harness_pipelines_tests.lake_files import content, name_of, put, remove
from harness_pipelines_tests.rig import TableRig

from .flips import forget_what_was_read
from .scratch import Scratch, scratch
from .test_two_views import merge


@pytest.fixture
def place(endpoints: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    with scratch(endpoints, tmp_path_factory.mktemp("repair")) as made:
        yield made


def damage(path: str) -> None:
    """A bit in the middle of a file is another one."""
    damaged = bytearray(content(path))
    damaged[len(damaged) // 2] ^= 8
    put(path, bytes(damaged))
    forget_what_was_read()


def file_of(rig: TableRig, view: Any, number: int = 0) -> str:
    return pinned(rig.stores.ledger.head(rig.table.row).views[view].metadata).files[number].path


def repaired(rig: TableRig, path: str, *, source: str) -> None:
    """A dry run changes nothing; then the file is made again, and all is as it was."""
    row = rig.table.row
    before = rig.stores.ledger.head(row)
    planned = repair_file(rig.stores, row, path, dry_run=True)
    assert planned.source == source, planned
    assert rig.stores.ledger.head(row) == before
    done = repair_file(rig.stores, row, path)
    after = rig.stores.ledger.head(row)
    assert (done.version, done.rows) == (before.version + 1, planned.rows)
    assert {p: (b.batch_hi, b.stream_hi) for p, b in after.bounds.items()} == {
        p: (b.batch_hi, b.stream_hi) for p, b in before.bounds.items()
    }
    assert path not in {f.path for view in after.views.values() for f in pinned(view.metadata).files}
    rig.assert_exact()
    with pytest.raises(RepairRefused, match="has no data file"):
        repair_file(rig.stores, row, path)


def told_by(version: Version) -> Iterator[tuple[str | None, str | None]]:
    """The move, with its nonce, that each view of *version* says made it."""
    for view in version.views.values():
        snapshot = pinned(view.metadata).metadata.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        yield snapshot.summary[MOVE], snapshot.summary[NONCE]


def assert_newest_sound(rig: TableRig, path: str) -> None:
    """Only older versions, which cannot be repaired, lack the file."""
    assert audit_table(rig.stores, rig.table.row, full=True).ok
    head = rig.stores.ledger.head(rig.table.row)
    assert (str(head.move_id), rig.stores.reconciler.nonce_of(head.move_id or 0)) in set(told_by(head))
    newest = head.version
    for found in fsck(rig.stores, [rig.name]).broken:
        assert (found.invariant, name_of(path) in found.detail) == ("S10", True), found
        assert not re.search(rf"version [\d, -]*\b{newest}\b needs it", found.detail), found


@pytest.fixture
def both(place: Scratch) -> TableRig:
    rig = place.rig(views="both", layout={"columns": ["n", "id"], "regions": 4})
    rig.produce(30)
    rig.ingest()
    rig.tier()
    return rig


@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_a_file_of_the_stream_view_is_made_again_from_the_batch_view(both: TableRig, how: str):
    merge(both)
    path = file_of(both, "stream")
    damage(path) if how == "flipped" else remove(path)
    repaired(both, path, source="the batch view")
    assert_newest_sound(both, path)


def test_a_file_of_the_batch_view_is_made_again_from_the_stream_view(both: TableRig):
    merge(both)
    path = file_of(both, "batch")
    damage(path)
    with pytest.raises((LakeFileBroken, LakeFileMissing)):
        both.table.read()
    repaired(both, path, source="the stream view")
    assert_newest_sound(both, path)


def test_a_file_is_made_again_from_the_buffer_and_from_kafka_where_its_digest_agrees(both: TableRig, place: Scratch):
    path = file_of(both, "stream")
    damage(path)
    repaired(both, path, source="the buffer")
    path = file_of(both, "stream", 1)
    damage(path)
    [(segment,)] = place.sql("SELECT segment FROM harness.segments WHERE state = 'open'")
    place.sql(f"DELETE FROM harness_buffer.{segment}")
    repaired(both, path, source="Kafka")


def test_what_cannot_be_had_is_refused_by_name(both: TableRig, place: Scratch):
    path = file_of(both, "stream")
    damage(path)
    [(segment,)] = place.sql("SELECT segment FROM harness.segments WHERE state = 'open'")
    place.sql(f"DELETE FROM harness_buffer.{segment}")
    for partition in range(2):
        place.kafka.delete_records(both.topic, partition, 30)
    before = place.rows()
    with pytest.raises(RepairRefused, match=r"cannot be had: the buffer has 0 of its 30 rows; Kafka.*harness revert"):
        repair_file(both.stores, both.table.row, path)
    with pytest.raises(RepairRefused, match=r"has no data file or delete file other\.parquet"):
        repair_file(both.stores, both.table.row, "other.parquet")
    assert place.rows() == before


def test_rows_that_the_buffer_has_otherwise_are_not_believed(both: TableRig, place: Scratch):
    path = file_of(both, "stream")
    damage(path)
    [(segment,)] = place.sql("SELECT segment FROM harness.segments WHERE state = 'open'")
    place.sql(f"UPDATE harness_buffer.{segment} SET n = n + 1 WHERE _kafka_offset = 3")
    assert repair_file(both.stores, both.table.row, path, dry_run=True).source == "Kafka"


@pytest.mark.parametrize("what", ["data", "deletes"])
def test_files_of_a_merged_state_are_made_again_without_what_was_hidden(place: Scratch, what: str):
    rig = KeyedRig(place.harness, place.kafka, layout={**BY_VALUE, "staged_ratio": 10})
    rig.put(*(row(i, n=i) for i in range(400)))
    rig.merge_all()
    rig.put(*(row(i, n=1000) for i in range(0, 400, 40)))
    rig.delete(*((i, "eu") for i in range(1, 400, 80)))
    rig.merge_all()
    assert rig.head.batch is not None
    hidden = next(f for f in pinned(rig.head.batch.metadata).files if f.deletes is not None)
    assert hidden.deletes is not None
    path = hidden.path if what == "data" else hidden.deletes.path
    damage(path)
    done = repair_file(rig.stores, rig.table.row, path)
    assert (done.source, done.rows) == ("the stream view", hidden.rows)
    rig.assert_exact()
    rig.assert_merged()
    assert_newest_sound(rig, path)


def test_a_file_that_others_rewrote_meanwhile_is_left_alone(both: TableRig, monkeypatch: pytest.MonkeyPatch):
    from harness_pipelines.stages.replay import damaged_file

    path = file_of(both, "stream")
    known = damaged_file._made_again

    def slow(*given: Any) -> Any:
        made = known(*given)
        monkeypatch.setattr(damaged_file, "_made_again", known)
        repair_file(both.stores, both.table.row, path)  # another person was faster
        return made

    monkeypatch.setattr(damaged_file, "_made_again", slow)
    with pytest.raises(FilesGone):
        repair_file(both.stores, both.table.row, path)
    both.assert_exact()


def test_damaged_metadata_is_refused_with_the_way_on(both: TableRig):
    view = pinned(both.stores.ledger.head(both.table.row).views["stream"].metadata)
    for path in view.manifests:
        whole = content(path)
        damage(path)
        with pytest.raises(RepairRefused, match=rf"{name_of(path)}.*harness revert"):
            repair_file(both.stores, both.table.row, path)
        put(path, whole)
        forget_what_was_read()


@pytest.mark.turns("how")
@pytest.mark.parametrize("how", ["flipped", "gone"])
@pytest.mark.parametrize("name", ["stream", "batch"])
def test_a_metadata_file_is_made_again_and_the_table_goes_on(both: TableRig, name: Any, how: str):
    merge(both)
    both.produce(5)
    both.ingest()
    both.tier()
    merge(both)
    head = both.stores.ledger.head(both.table.row)
    path = head.views[name].metadata
    damage(path) if how == "flipped" else remove(path)
    forget_what_was_read()
    if name == "batch":  # which has all rows: the stream view is not asked
        with pytest.raises((LakeFileBroken, LakeFileMissing)):
            both.table.read()
    assert repair_file(both.stores, both.table.row, path, dry_run=True).version is None
    assert repair_file(both.stores, both.table.row, path).version == head.version + 1
    both.assert_exact()
    assert_newest_sound(both, path)
    both.produce(5)
    both.ingest()
    both.tier()
    merge(both)
    both.assert_exact()
    assert_newest_sound(both, path)


@pytest.mark.parametrize("number", [0, 1])
def test_a_revert_leads_on_where_a_manifest_is_damaged(both: TableRig, number: int):
    before = both.stores.ledger.head(both.table.row).version
    both.produce(5)
    both.ingest()
    both.tier()
    [head, older] = [
        pinned(v.views["stream"].metadata).manifests for v in reversed(both.stores.ledger.versions(both.table.row)[-2:])
    ]
    damage([path for path in head if path not in older][number])
    with pytest.raises(LakeFileBroken):
        both.table.read()
    revert_table(both.stores, both.table.row, to=before)
    both.tier()
    both.assert_exact()


def test_the_command_asks_first(both: TableRig, place: Scratch, monkeypatch: pytest.MonkeyPatch):
    from harness_pipelines_tests.rig import environment

    path = name_of(file_of(both, "stream"))
    damage(file_of(both, "stream"))
    asked = ["reconcile", both.name, "--repair-file", path, "--json"]
    env = environment(place.settings)
    dry = CliRunner().invoke(cli, [*asked, "--dry-run"], env=env)
    assert dry.exit_code == 0, dry.output
    assert orjson.loads(dry.stdout)["version"] is None
    assert CliRunner().invoke(cli, asked, env=env).exit_code == 2
    done = CliRunner().invoke(cli, [*asked, "--yes"], env=env)
    assert done.exit_code == 0, done.output
    assert orjson.loads(done.stdout)["version"] == 3
    both.assert_exact()


@pytest.mark.parametrize("point", ["repair.before_lock", "repair.in_transaction", "repair.after_commit"])
def test_a_repair_that_dies_is_done_wholly_or_not_at_all(both: TableRig, point: str):
    path, before = file_of(both, "stream"), both.stores.ledger.head(both.table.row).version
    damage(path)
    faults.arm(point, died)
    try:
        with pytest.raises(faults.FaultInjected):
            repair_file(both.stores, both.table.row, path)
    finally:
        faults.disarm()
    if point == "repair.after_commit":
        assert both.stores.ledger.head(both.table.row).version == before + 1
    else:
        repaired(both, path, source="the buffer")
    both.assert_exact()
    assert_newest_sound(both, path)


def died() -> None:
    raise faults.FaultInjected
