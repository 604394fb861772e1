"""The sample layer as one more column of the tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import ColumnValues, IndexedColumn
from harness_pipelines.layout.files import Extent, FileStats
from harness_pipelines.layout.rewrites import due
from harness_pipelines.layout.sampling import Sample
from harness_pipelines.layout.tree import LAYER, is_layered, layered

ROWS, SHARE, TARGET = 40_000, 0.02, 100.0
NUMBERS = (IndexedColumn("a", "long"), IndexedColumn("b", "long"))


@pytest.fixture(scope="module")
def sample() -> Sample:
    dice = np.random.default_rng(3)
    columns = [(dice.random(ROWS) < SHARE).astype(np.int64), *(dice.integers(0, 2**40, ROWS) for _ in NUMBERS)]
    none = np.zeros(ROWS, dtype=bool)
    return Sample((LAYER, *NUMBERS), tuple(ColumnValues(values, none) for values in columns), 1.0)


def test_the_first_cut_parts_the_layer_from_the_other_rows_and_no_other_cut_does(sample: Sample):
    tree = sample.tree(target_rows=TARGET)
    first, *others = [node for node in tree.nodes() if node is not None]

    assert first == (0, At(1))
    assert others, "both sides have regions of their own"
    assert all(axis != 0 for axis, _ in others)
    inside = sum(rows for path, rows in sample.counts(tree).items() if path.startswith("1"))
    assert inside == sample.values[0].values.sum()
    assert sum(path.startswith("1") for path in tree.paths()) == pytest.approx(ROWS * SHARE / TARGET, abs=3)


def test_a_tree_that_is_cut_anew_from_its_root_still_has_a_layer(sample: Sample):
    tree = sample.tree(target_rows=TARGET)
    assert sample.cut_again(tree, "", target_rows=TARGET).digest == tree.digest
    assert len(sample.cut_again(tree, "", target_rows=ROWS)) == 1, "one file is sample enough"
    coarser = sample.cut_again(tree, "1", target_rows=ROWS)
    assert [path for path in coarser.paths() if path.startswith("1")] == ["1"]
    assert [path for path in coarser.paths() if path.startswith("0")] == [p for p in tree.paths() if p.startswith("0")]


def test_nobody_is_taken_to_ask_for_the_layer(sample: Sample):
    asked = sample.queries
    assert asked.low[0].is_null.all()
    assert asked.high[0].is_null.all()
    for axis in (1, 2):
        assert not asked.low[axis].is_null.all()


def test_a_small_view_is_not_written_anew_for_its_layer_to_become_part_of_a_region():
    tree = layered((LAYER, *NUMBERS))

    def file(path: str, *, inside: int, size: int) -> FileStats:
        extents = (Extent(inside, inside, 0, None), Extent(0, 9, 0, None), Extent(0, 9, 0, None))
        return FileStats(path=path, rows=10, bytes=size, sequence=1, extents=extents)

    files = [file("rest", inside=0, size=100), file("layer", inside=1, size=10)]
    rules: dict[str, Any] = {"target_bytes": 1_000, "staged_ratio": 0.5, "budget_bytes": 10_000}
    assert due(tree, files, {"0": 1, "1": 1}, **rules) == []
    assert [part.path for part in due(tree, files, {"0": 1, "1": 0}, **rules)] == ["1"]


def test_only_a_tree_whose_first_column_it_is_has_a_layer():
    assert is_layered((LAYER, *NUMBERS))
    assert not is_layered(NUMBERS)
    assert not is_layered((*NUMBERS, LAYER))
