"""The batch view of a keyed table: one row per live key. Judged by a replay of the producer's own log."""

from __future__ import annotations

from typing import Any

import pytest

from harness_pipelines_tests.keyed_log import KeyedRig


@pytest.fixture
def rig(harness: Any, kafka: Any) -> KeyedRig:
    return KeyedRig(harness, kafka)


def row(id_: int | None, region: str | None = "eu", *, n: int = 0) -> dict[str, Any]:
    return {"id": id_, "region": region, "n": n, "s": f"row {id_} {region} {n}"}


def test_a_key_that_is_put_again_has_one_row_and_it_is_the_newest(rig: KeyedRig):
    rig.put(*(row(i, n=i) for i in range(40)))
    rig.to_stream()
    assert rig.merge() is not None
    rig.assert_merged()
    rig.put(*(row(i, n=50 + i) for i in range(0, 40, 4)), row(99))
    rig.delete((1, "eu"), (2, "eu"))
    rig.to_stream()
    assert rig.merge() is not None
    rig.assert_merged()
    assert rig.batch_rows().num_rows == 39
