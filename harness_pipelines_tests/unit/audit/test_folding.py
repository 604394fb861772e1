"""The fold of a changelog, against a dictionary."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.audit.proof import folding
from harness_pipelines.audit.proof.folding import Versions, folded, key_digests, met_again

KEYS = st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from(["", "a"]))
SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("_op", pa.string()), ("_kafka_offset", pa.int64())])


def versions(changes: list[tuple[tuple[int | None, str | None], bool]], first: int) -> Versions:
    rows = [
        {"id": id_, "region": region, "_op": "put" if put else "delete", "_kafka_offset": first + at}
        for at, ((id_, region), put) in enumerate(changes)
    ]
    return Versions.from_arrow(pa.Table.from_pylist(rows, SCHEMA), ["id", "region"])


@given(batches=st.lists(st.lists(st.tuples(KEYS, st.booleans()), max_size=6), max_size=4), held=st.integers(1, 9))
def test_the_newest_put_of_each_key_is_left_whatever_the_batches(batches, held):
    expected: dict[object, int] = {}
    parts, offset = [], 0
    for batch in batches:
        parts.append(versions(batch, offset))
        for key, put in batch:
            expected.pop(key, None)
            if put:
                expected[key] = offset
            offset += 1

    with mock.patch.object(folding, "FOLD_ROWS", held):
        assert folded(parts).offsets.tolist() == sorted(expected.values())


def test_null_is_a_value_of_a_key():
    rows = pa.table({"id": [1, None, None, 1], "region": ["a", "a", None, None]}, schema=pa.schema(list(SCHEMA)[:2]))
    assert len(set(key_digests(rows, ["id", "region"]).tolist())) == 4


def test_a_key_that_is_met_again_is_told_by_its_later_places():
    assert met_again(np.array([7, 5, 7, 9, 5, 7], np.uint64)).tolist() == [2, 4, 5]
