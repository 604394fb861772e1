"""What lies where, by the sequence numbers of the files and the regions' last rewrites."""

from __future__ import annotations

import pytest

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.region_contents import contents_of
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines_tests.unit.layout.given import file_of

LONG = IndexedColumn("n", "long")


def test_files_since_the_last_rewrite_are_staged_and_files_across_are_astray():
    tree = RegionTree.single([LONG]).split("", 0, At(10)).split("1", 0, At(20))
    files = [
        file_of("old", [(1,), (2,)], [LONG], sequence=3),
        file_of("new", [(3,)], [LONG], sequence=4),
        file_of("high", [(25,)] * 4, [LONG], sequence=9),
        file_of("foreign", [(12,), (25,)], [LONG], sequence=9),
    ]

    found = contents_of(tree, files, {"0": 3})

    low, empty, high = found.regions
    assert (low.clustered_rows, low.staged_rows, low.files, low.clustered_sequence) == (2, 1, 2, 3)
    assert (empty.rows, empty.files) == (0, 0)
    assert (high.clustered_bytes, high.staged_bytes, high.bytes) == (0, 40, 40)
    assert {path: [f.path for f in some] for path, some in found.astray.items()} == {"1": ["foreign"]}
    assert found.staged_share == pytest.approx(70 / 90)
    assert contents_of(tree, [], {}).staged_share == 0.0
