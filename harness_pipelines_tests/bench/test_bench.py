"""The benches' own judges: a bench that cannot see a fault proves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner

from harness_pipelines.cli.operate import bench as command
from harness_pipelines.cli.operate.bench import bench
from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.bench import layout_batches, layout_clustering, layout_peers, layout_scans, main
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.freshness import Seen
from harness_pipelines_tests.bench.layout_data import batches_2d
from harness_pipelines_tests.bench.reads import Read, _goes_back, _Truth, fault_of
from harness_pipelines_tests.bench.records import COLUMNS, value
from harness_pipelines_tests.bench.steady import Produced


def produced(ids: list[int], *, first: int = 0) -> Produced:
    count = len(ids)
    return Produced(
        offsets=np.arange(first, first + count), ids=np.array(ids), acked_at=np.arange(count, dtype=np.float64)
    )


def sums_of(ids: list[int]) -> tuple[int, int, int, int, int]:
    return len(ids), 0, len(ids) - 1, sum(range(len(ids))), sum(ids)


def test_a_figure_holds_up_to_its_goal_and_one_without_a_value_never_holds():
    def figure(value: float | None, sense: str) -> Figure:
        return Figure(figure="f", value=value, unit="s", goal=2, sense=sense)  # type: ignore[arg-type]

    assert figure(2, "<=").holds and figure(2, ">=").holds
    assert not figure(2.1, "<=").holds and not figure(1.9, ">=").holds
    assert not figure(None, "<=").holds and not figure(None, ">=").holds
    assert figure(None, "<=").to_json() == {
        "figure": "f",
        "value": None,
        "unit": "s",
        "goal": 2.0,
        "sense": "<=",
        "holds": False,
    }


def test_a_record_is_json_of_about_130_bytes_with_every_column():
    values = [value(i) for i in range(0, 2_000_000, 99_991)]
    assert all(set(orjson.loads(v)) == set(COLUMNS) for v in values)
    assert 115 <= sum(map(len, values)) / len(values) <= 140


def test_a_read_that_is_the_producers_log_below_its_bounds_has_no_fault():
    truth = {0: _Truth.of(produced([4, 8, 15, 16])), 1: _Truth.of(produced([1, 2]))}
    assert fault_of(Read({0: (0, 3), 1: (0, 0)}, {0: sums_of([4, 8, 15])}), truth) is None


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([4, 8], id="one is lost"),
        pytest.param([4, 8, 15, 15], id="one is doubled"),
        pytest.param([4, 8, 14], id="one is changed"),
        pytest.param([4, 8, 15, 16], id="one is beyond the bounds"),
    ],
)
def test_a_read_with_a_wrong_row_is_found(rows):
    truth = {0: _Truth.of(produced([4, 8, 15, 16]))}
    assert "partition 0 [0, 3)" in (fault_of(Read({0: (0, 3)}, {0: sums_of(rows)}), truth) or "")


def test_rows_of_a_partition_without_bounds_are_found():
    truth = {0: _Truth.of(produced([4]))}
    assert "[7]" in (fault_of(Read({0: (0, 1)}, {0: sums_of([4]), 7: sums_of([1])}), truth) or "")


def test_a_reader_that_goes_back_is_found():
    reads = [Read({0: (0, high)}, {}) for high in (1, 5, 4, 5)]
    assert _goes_back(reads) == 1


def test_age_is_from_acknowledgement_to_the_first_read_that_returned_the_record():
    seen = Seen({0: 10})
    seen.take(pa.table({"p": [0, 0], "o": [10, 11]}), at=1.5)
    seen.take(pa.table({"p": [0], "o": [12]}), at=2.25)
    log = {0: produced([7, 8, 9], first=10)}
    assert seen.has_all(log)
    assert seen.ages(log, skip_s=0).tolist() == [1.5, 0.5, 0.25]
    assert seen.ages(log, skip_s=1).tolist() == [0.5, 0.25]


def test_a_read_of_the_newest_rows_with_a_hole_is_not_counted_as_fresh():
    with pytest.raises(AssertionError, match=r"1 rows of \[10, 12\)"):
        Seen({0: 10}).take(pa.table({"p": [0], "o": [11]}), at=1.0)


def test_an_unknown_bench_or_group_is_named_with_those_that_exist():
    with pytest.raises(UsageError, match="no bench 'mian'; the benches are main"):
        command._groups("mian", None)
    with pytest.raises(UsageError, match=r"no bench 'base'"):
        command._groups("base", None)
    with pytest.raises(UsageError, match="no figures speed; it has throughput, union"):
        command._groups("main", ["speed"])


def test_bench_says_that_it_needs_a_checkout(monkeypatch):
    monkeypatch.setattr(command, "BENCHES", "no_such_package.bench")
    monkeypatch.setattr(command, "PACKAGE", "no_such_package")
    with pytest.raises(UsageError, match="needs a checkout"):
        command._groups("main", None)


@pytest.fixture
def without_services(monkeypatch):
    monkeypatch.setattr(command, "_services_up", lambda settings: settings)
    monkeypatch.setattr("harness_pipelines.app.client.Harness.init", lambda _harness: [])


def test_a_group_that_fails_does_not_stop_the_others_and_ends_with_code_1(monkeypatch, tmp_path, without_services):
    def bad(run: Run) -> list[Figure]:
        raise RuntimeError("password=secret is wrong")

    def good(run: Run) -> list[Figure]:
        run.note("n", 3, "s")
        return [Figure(figure="good.f", value=1, unit="s", goal=2, sense="<=")]

    monkeypatch.setattr(main, "FIGURES", {"bad": bad, "good": good})
    out = tmp_path / "bench.json"
    result = CliRunner().invoke(bench, ["main", f"--json={out}"], obj=Settings(home=Path(tmp_path)))
    found = json.loads(out.read_text())
    assert [f["figure"] for f in found["figures"]] == ["good.f"]
    assert {"name", "machine", "figures"} <= set(found)
    assert result.exit_code == 1
    assert "bad: could not be measured" in result.output and "secret" not in result.output


def test_every_bench_that_is_named_exists():
    assert all(command._groups(name, None) for name in command.NAMES.split(", "))


def test_the_layout_bench_prints_each_layout_beside_its_peers_and_each_goal_beside_its_figure(
    monkeypatch, tmp_path, without_services
):
    monkeypatch.setattr(layout_clustering, "QUICK_ROWS", 2_000)
    monkeypatch.setattr(layout_clustering, "FILES", 10)
    monkeypatch.setattr(layout_clustering, "QUICK_TREE_REGIONS", 500)
    monkeypatch.setattr(layout_batches, "BATCHES", 4)
    monkeypatch.setattr(layout_batches, "QUICK_ROWS", 1_200)
    monkeypatch.setattr(layout_batches, "QUICK_FILES", 12)
    out = tmp_path / "bench.json"

    arguments = ["layout", "--only=clustering,batches", "--quick", f"--json={out}"]
    result = CliRunner().invoke(bench, arguments, obj=Settings(home=Path(tmp_path)))

    assert result.exit_code == 0, result.output
    found = {one["figure"]: one for one in json.loads(out.read_text())["figures"]}
    notes = {one["note"]: one["value"] for one in json.loads(out.read_text())["notes"]}
    for data in layout_peers.DATA:
        peers = {peer: found[f"clustering.{data}.to_{peer.replace(' ', '_')}"] for peer in layout_peers.GOALS}
        assert {peer: one["goal"] for peer, one in peers.items()} == layout_peers.GOALS
        assert 1 <= found[f"clustering.{data}.file_p95_to_p50"]["value"] < 3
        assert notes[f"clustering.{data}.to_arrival"] < 1
    assert found["clustering.tree_in_memory"]["holds"]
    for scenario in layout_batches.SCENARIOS:
        assert found[f"batches.{scenario}.depth"]["holds"]
        assert (
            1 <= found[f"batches.{scenario}.written"]["value"] < notes[f"batches.{scenario}.written_by_full_relayouts"]
        )
        assert notes[f"batches.{scenario}.written_by_full_relayouts"] == 1 + (1 + 4) / 2


@pytest.fixture
def batches():
    return list(batches_2d(1_200, 1, count=4))


def test_the_batch_view_of_the_bench_loses_no_row_and_doubles_none(batches):
    view = layout_batches.BatchView(rows_per_file=100)
    for batch in batches:
        view.merge(batch)
        while view.relayout():
            pass
        held = np.sort(np.concatenate([file.rows for file in view.files]))
        assert held.tolist() == list(range(view.rows))


def test_the_bench_counts_every_row_that_a_move_writes(batches):
    view = layout_batches.BatchView(rows_per_file=100)
    view.merge(batches[0])
    assert view.written == batches[0].rows
    view.merge(batches[1])
    before = {file.stats.path: file.stats.rows for file in view.files}
    assert view.written == view.rows and view.relayout()
    gone = set(before) - {file.stats.path for file in view.files}
    assert view.written == view.rows + sum(before[path] for path in gone)


def test_the_first_files_of_the_batch_view_of_the_bench_are_a_full_relayout(batches):
    view = layout_batches.BatchView(rows_per_file=100)
    view.merge(batches[0])
    assert view.waiting == 0
    assert layout_batches._scan_ratio(view) == 1


def test_a_box_is_a_condition_over_the_columns_that_it_closes():
    march = 1_772_323_200_000_000
    low, high = [march, -np.inf, 12_345], [march + 1, np.inf, 20_001]
    assert layout_scans._condition(low, high) == (
        "t.at BETWEEN '2026-03-01 00:00:00+00:00' AND '2026-03-01 00:00:00.000001+00:00' "
        "AND t.amount BETWEEN 123.45 AND 200.01"
    )


def test_ranges_of_offsets_lie_inside_of_the_partitions():
    assert layout_scans._offset_ranges(1_000, count=3) == [
        "_kafka_partition = 0 AND _kafka_offset >= 0 AND _kafka_offset < 10",
        "_kafka_partition = 1 AND _kafka_offset >= 495 AND _kafka_offset < 505",
        "_kafka_partition = 2 AND _kafka_offset >= 990 AND _kafka_offset < 1000",
    ]


def test_a_large_tree_has_as_many_regions_as_it_was_asked_for():
    assert len(layout_clustering._large_tree(1_001)) == 1_001
