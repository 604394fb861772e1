"""Rows that a merge hides in files of the batch view that stay. Judged by a replay of the producer's own log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.engines.spark import merge as spark_merge
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.ports.lake_writes import Replacement
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.files import FilesGone
from harness_pipelines.protocol.versions import Version
from harness_pipelines.read.report.storage import costs
from harness_pipelines.services import Endpoints
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.engines import READERS, with_spark
from harness_pipelines_tests.keyed import BY_VALUE, EVERYTHING, KeyedRig, assert_sound, row
from harness_pipelines_tests.producer import KafkaRig


@pytest.fixture
def rig(harness: hp.Harness, kafka: KafkaRig) -> KeyedRig:
    return KeyedRig(harness, kafka, layout={**BY_VALUE, "staged_ratio": 10})  # nothing is due by itself


def merge(rig: KeyedRig) -> Version:
    """Everything that was produced comes to the batch view; a relayout may come first."""
    rig.to_stream()
    while any(b.batch_hi < b.stream_hi for b in rig.head.bounds.values()):
        rig.merge()
    return rig.head


def deleted_from(rig: KeyedRig, version: Version | None = None) -> dict[str, int]:
    """Hidden rows per data file of the batch view."""
    files = pinned((version or rig.head).views["batch"].metadata).files
    return {f.path: f.deletes.rows for f in files if f.deletes is not None}


def batch_files(rig: KeyedRig) -> set[str]:
    return {f.path for f in pinned(rig.head.views["batch"].metadata).files}


@pytest.mark.long
def test_few_changes_of_a_file_hide_rows_and_many_write_it_anew(rig: KeyedRig):
    rig.put(*(row(i, n=i) for i in range(1000)))
    first, files = merge(rig), batch_files(rig)
    seen: list[Version] = []
    # The second time some rows of the same files are hidden already, and half of the changes are of what came since.
    for again, deleted in (([*range(0, 1000, 25)], 1), ([*range(0, 1000, 50), *range(10, 1000, 50)], 2)):
        rig.put(*(row(i, n=-i) for i in again))
        rig.delete(*((i, "eu") for i in range(deleted, 1000, 200)))
        seen.append(merge(rig))
        rig.assert_merged()
        rig.assert_exact()
        assert files <= batch_files(rig)
        assert_sound(rig)
    hidden = deleted_from(rig)
    assert hidden.keys() <= batch_files(rig)
    assert sum(hidden.get(path, 0) for path in files) == 70
    assert not deleted_from(rig, first)
    for version in (first, *seen):
        rig.assert_merged(version)

    rig.put(*(row(i, n=7) for i in range(3, 1000, 2)))
    merge(rig)
    assert not files & batch_files(rig)
    assert not deleted_from(rig)
    rig.assert_merged()
    assert_sound(rig)


@pytest.mark.long
def test_hidden_rows_stay_hidden_through_filters_samples_reverts_and_relayouts(rig: KeyedRig):
    rig.put(*(row(i, n=i) for i in range(2000)))
    merged = merge(rig)
    rig.put(*(row(i, n=5000 + i) for i in range(0, 2000, 40)))
    rig.delete(*((i, "eu") for i in range(1, 2000, 40)))
    merge(rig)
    assert sum(deleted_from(rig).values()) == 100
    spark = rig.stores.spark()

    def found(where: str | None) -> tuple[list[Any], list[Any]]:
        rows = rig.table.read(columns=["id", "n"], where=where).sort_by("id")
        frame = rig.table.to_spark(spark, columns=["id", "n"], where=where).toArrow().sort_by("id")
        return rows.to_pylist(), frame.to_pylist()

    state = sorted((one[0], one[2]) for one in rig.state(EVERYTHING).values())
    for where, keep in ((None, lambda id_, n: True), ("n < 100", lambda id_, n: n < 100),
                        ("id < 200", lambda id_, n: id_ < 200), ("n >= 5000", lambda id_, n: n >= 5000),
                        ("s LIKE 'row 7%'", lambda id_, n: str(id_).startswith("7"))):  # fmt: skip
        expected = [{"id": id_, "n": n} for id_, n in state if keep(id_, n)]
        assert found(where) == (expected, expected), where
    assert rig.table.get((1, "eu")) is None
    assert rig.table.get((40, "eu"), columns=["n"]) == {"n": 5040}
    assert {r["id"] for r in rig.table.sample(0.5).to_pylist()} <= {id_ for id_, _ in state}
    assert costs(rig.table.row, rig.head, rig.stores.lake_reads)[1].rows == len(state)

    revert_table(rig.stores, rig.table.row, to=merged.version)
    rig.assert_merged()
    merge(rig)
    rig.assert_merged()
    assert sum(deleted_from(rig).values()) == 100
    before = deleted_from(rig)
    rig.relayout()
    assert before
    assert not deleted_from(rig), "a relayout leaves out what is hidden"
    rig.assert_merged()
    rig.assert_exact()
    assert_sound(rig)


@pytest.mark.long
def test_where_more_keys_change_than_positions_are_told_of_every_file_met_is_written_anew(
    rig: KeyedRig, monkeypatch: pytest.MonkeyPatch
):
    rig.put(*(row(i, n=i) for i in range(1000)))
    merge(rig)
    rig.put(*(row(i, n=-1) for i in range(0, 1000, 40)))
    merge(rig)
    files, hidden = batch_files(rig), deleted_from(rig)
    monkeypatch.setattr(spark_merge, "POSITIONS_MAX", 1)
    rig.put(row(1, n=7), row(2, n=7))  # both in the file of the least n
    merge(rig)
    gone = files - batch_files(rig)
    assert gone
    assert deleted_from(rig) == {path: count for path, count in hidden.items() if path not in gone}
    rig.assert_merged()
    assert_sound(rig)


def test_a_file_that_was_deleted_from_since_is_not_replaced(rig: KeyedRig):
    """Otherwise the rows that were hidden meanwhile would come back."""
    stores, table = rig.stores, rig.table.row
    rig.put(*(row(i, n=i) for i in range(1000)))
    old = merge(rig).views["batch"]
    taken = stores.lake.region_files(table, old.metadata)
    rig.put(row(3, n=4))
    merge(rig)
    claim = rig.claim(Stage.OTREE)
    move = rig.plan_relayout(claim)
    stale = Replacement(removed={f.path: f.deletes for f in taken}, added=(), same_rows=True)
    with pytest.raises(FilesGone, match="has been deleted from"):
        stores.lake.build_change(table, move, stale, base=rig.head.views["batch"].metadata, keep=50)
    stores.ledger.release(claim)


@pytest.fixture(scope="module")
def hiding(harness: hp.Harness, endpoints: Endpoints) -> Iterator[KeyedRig]:
    """A table of whose batch view some rows are hidden."""
    assert endpoints.kafka is not None
    columns = {"id": "long", "n": "int", "raw": "binary"}
    layout = {"columns": ["n"], "regions": 3, "staged_ratio": 10}
    with closing(KafkaRig(endpoints.kafka, properties=endpoints.kafka_login)) as kafka:
        rig = KeyedRig(harness, kafka, columns=columns, key=["id"], layout=layout)
        rig.put(*({"id": i, "n": i, "raw": "AAEC"} for i in range(600)))
        merge(rig)
        rig.put(*({"id": i, "n": 1000 + i, "raw": None} for i in range(0, 600, 20)))
        rig.delete(*((i,) for i in range(1, 600, 20)))
        merge(rig)
        assert sum(deleted_from(rig).values()) == 60
        yield rig


@pytest.mark.parametrize("engine", [*READERS, "Spark"])
def test_other_engines_do_not_see_hidden_rows(hiding: KeyedRig, engine: str):
    read = with_spark(hiding.stores.spark(), hiding.stores.settings) if engine == "Spark" else READERS[engine]
    state = sorted((id_, n) for id_, n, *_ in hiding.state(EVERYTHING).values())
    for where, least, most in (("id >= 0", 0, 2000), ("n < 100", 0, 100)):
        rows = read(hiding.head.views["batch"].metadata, where)
        found = sorted(zip(rows.column("id").to_pylist(), rows.column("n").to_pylist(), strict=True))
        assert found == [(id_, n) for id_, n in state if least <= n < most], where
