"""Rows of a batch view by their keys: over real files, with deletes that the view has, and in bounded memory."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.lakes.iceberg.cuts import keys as module
from harness_pipelines.lakes.iceberg.cuts.key_bounds import may_hold
from harness_pipelines.lakes.iceberg.cuts.key_indexes import ROW_BYTES, KeyIndex, KeyIndexes
from harness_pipelines.lakes.iceberg.cuts.keys import IcebergKeys
from harness_pipelines.lakes.iceberg.read.scan import PinnedView, opened_file, pinned
from harness_pipelines.ports.lake import LakeFile
from harness_pipelines.ports.serving.keys import CutOverLimits
from harness_pipelines.protocol.key_hashes import KeyHasher, in_order, matches
from harness_pipelines.protocol.keyed_cuts import Cold
from harness_pipelines.protocol.reading.queries import LakeQuery
from harness_pipelines.protocol.reading.selection import table_columns
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.unit.lakes.cut_rig import CutRig, with_coordinates

HASHER = KeyHasher(b"k" * 32)
KEYED: Mapping[str, Any] = {"views": "both", "format": "json", "layout": {"columns": ["id"], "sample": 0}}


def rig_of(folder: Path, ids: Sequence[Sequence[int]], *, kind: str = "long", **words: Any) -> CutRig:
    """A keyed table whose batch view has a file for each of *ids*, one offset after the other."""
    rig = CutRig(folder, {"id": {"type": kind, "required": True}, "s": "string"}, key=["id"], **{**KEYED, **words})
    at = 0
    for mine in ids:
        rig.append("batch", rows(mine, at), reaches={0: at + len(mine)})
        at += len(mine)
    rig.at(0, 0, at, at, at)
    return rig


def rows(ids: Sequence[int], first: int = 0, kind: pa.DataType | None = None) -> pa.Table:
    user = {"id": pa.array(ids, kind or pa.int64()), "s": pa.array([f"row {i}" for i in ids], pa.string())}
    return with_coordinates(user, [(0, first + n) for n in range(len(ids))])


def finder(**words: Any) -> IcebergKeys:
    return IcebergKeys(HASHER, KeyIndexes(**words))


def find(keys: IcebergKeys, rig: CutRig, ids: Sequence[Any], *, among: Sequence[int] | None = None) -> Cold:
    kind = table_columns(rig.plan())[rig.table.spec.key[0]].arrow.type
    values = pa.table({rig.table.spec.key[0]: pa.array(list(ids), kind)})
    numbers = HASHER.of(values.columns)
    return keys.find(rig.plan(), values, np.ascontiguousarray(numbers[:, in_order(numbers)]), among=among)


def places(cold: Cold) -> list[tuple[int, int, bool]]:
    return sorted(zip(cold.files.tolist(), cold.places.tolist(), cold.live.tolist(), strict=True))


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of data files that are read."""
    found: list[str] = []

    def noted(view: PinnedView, file: LakeFile, query: LakeQuery) -> Any:
        found.append(file.path)
        return opened_file(view, file, query)

    monkeypatch.setattr(module, "opened_file", noted)
    return found


def test_a_row_is_found_where_it_is_and_said_to_be_hidden_if_the_view_hides_it(tmp_path: Path):
    rig, keys = rig_of(tmp_path, [[5, 3, 9], [7, 1]]), finder()
    assert places(find(keys, rig, [1, 3, 8, 9])) == [(0, 1, True), (0, 2, True), (1, 1, True)]
    rig.hide("batch", {0: (1, 2)})
    found = find(keys, rig, [1, 3])
    assert places(found) == [(0, 1, False), (1, 1, True)]
    assert keys.live(rig.plan(), found).tolist() == found.live.tolist()
    files = keys.files(rig.plan())
    assert [bool(deletes) for deletes in files.values()] == [True, False]
    assert list(files) == [file.path for file in pinned(rig.pointers.at["batch"]).files]


def test_a_file_is_read_once_and_only_if_a_key_can_be_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rig, keys, read = rig_of(tmp_path, [range(0, 10), range(10, 20), range(20, 30)]), finder(), opened(monkeypatch)
    find(keys, rig, [12, 15])
    assert len(read) == 1
    rig.hide("batch", {0: (11, 13)})  # the rows are the same, less are shown
    find(keys, rig, [11, 40])
    assert len(read) == 1
    find(keys, rig, [5, 25], among=[0])
    assert len(read) == 2
    find(keys, rig, [])
    find(keys, rig, [5], among=[])
    assert len(read) == 2


def test_files_of_an_older_schema_are_found_and_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rig, keys, read = rig_of(tmp_path, [[5, 3, 9]]), finder(), opened(monkeypatch)
    assert places(find(keys, rig, [3])) == [(0, 1, True)]
    rig.evolve(
        ColumnChanges(rename=(("s", "text"),), add=(Column(name="first", type=parse_type("int")),), order=("first",))
    )
    assert places(find(keys, rig, [3])) == [(0, 1, True)]
    assert len(read) == 1


def test_a_view_that_reaches_beyond_the_plan_is_named(tmp_path: Path):
    rig, keys = rig_of(tmp_path, [[5, 3, 9]]), finder()
    rig.at(0, 0, 2, 3, 3)
    with pytest.raises(CutOverLimits, match="shop.orders, version .* rows outside of the offsets"):
        keys.files(rig.plan())


def test_more_keys_than_there_is_room_for_are_named(tmp_path: Path):
    rig = rig_of(tmp_path, [range(100)])
    with pytest.raises(CutOverLimits, match=r"the keys of 1 files .* take 2,400 bytes; there is room for 2,000"):
        find(finder(bytes_max=1_000, spilled_max=1_000), rig, [3])


def index(*numbers: int) -> KeyIndex:
    keys = HASHER.of([pa.chunked_array([pa.array(numbers, pa.int64())])])
    return KeyIndex.of(keys, np.arange(len(numbers)) % 3)


def test_what_has_no_room_in_memory_is_kept_in_the_folder_and_then_forgotten(tmp_path: Path):
    room = ROW_BYTES * 10
    indexes, made = KeyIndexes(bytes_max=room, spilled_max=room, folder=str(tmp_path)), list[str]()

    def get(name: str) -> KeyIndex:
        def make() -> KeyIndex:
            made.append(name)
            return index(*range(10))

        return indexes.get(name, make)

    first = get("a")
    get("b")
    assert indexes.held == (room, room)
    again = get("a")  # from the folder
    assert made == ["a", "b"]
    for column in ("keys", "places", "partitions"):
        assert np.array_equal(getattr(first, column), getattr(again, column))
    get("c")
    assert indexes.held == (room, room)
    get("a")
    assert made == ["a", "b", "c", "a"]
    assert list(tmp_path.iterdir()) == [], "the files have no names"
    assert matches(index(3).keys, again.keys)[1].tolist() == [int(np.flatnonzero(again.places == 3)[0])]


KINDS: Mapping[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    "string": st.text(st.sampled_from("ab\x7f\x80é￿\U0010ffff"), max_size=20),
    "binary": st.binary(max_size=20) | st.binary(min_size=15, max_size=18).map(lambda b: b"\xff" * 14 + b),
    "uuid": st.binary(min_size=16, max_size=16),
    "date": st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
    "timestamp": st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)),
    "timestamptz": st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(dt.UTC)),
    "time": st.times(),
    "boolean": st.booleans(),
    "decimal(9, 2)": st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    "decimal(38, 10)": st.integers(-(10**37), 10**37).map(lambda n: Decimal(n).scaleb(-10)),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=8)
@given(st.data())
def test_no_row_is_missed_by_the_bounds_of_its_file(tmp_path_factory: pytest.TempPathFactory, kind: str, data: Any):
    of = st.none() | KINDS[kind]
    files = data.draw(st.lists(st.lists(of, min_size=1, max_size=4), min_size=1, max_size=2))
    words: dict[str, Any] = {**KEYED, "layout": {"columns": ["n"], "sample": 0}}
    rig = CutRig(tmp_path_factory.mktemp("keys"), {"k": kind, "n": "long"}, key=["k"], **words)
    arrow, at = table_columns(rig.plan())["k"].arrow.type, 0
    for mine in files:
        user = {"k": pa.array(mine, arrow), "n": pa.array(range(len(mine)), pa.int64())}
        rig.append(
            "batch", with_coordinates(user, [(0, at + n) for n in range(len(mine))]), reaches={0: at + len(mine)}
        )
        at += len(mine)
    rig.at(0, 0, at, at, at)
    wanted = list(dict.fromkeys(data.draw(st.lists(of | st.sampled_from([v for mine in files for v in mine])))))
    view = pinned(rig.pointers.at["batch"])
    found = find(finder(), rig, wanted)
    first = [file.low for file in view.files]
    got = sorted(first[file] + at for file, at in zip(found.files.tolist(), found.places.tolist(), strict=True))
    assert got == [at for at, value in enumerate(v for mine in files for v in mine) if value in wanted]


def test_bounds_leave_out_files_of_texts_that_differ_late(tmp_path: Path):
    rig = CutRig(
        tmp_path,
        {"k": {"type": "string", "required": True}, "n": "long"},
        key=["k"],
        **dict(KEYED, layout={"columns": ["n"], "sample": 0}),
    )
    for number, names in enumerate((["customer-001", "customer-009"], ["customer-010", "customer-019"])):
        user = {"k": pa.array(names), "n": pa.array([1, 2], pa.int64())}
        rig.append("batch", with_coordinates(user, [(0, 2 * number), (0, 2 * number + 1)]), reaches={0: 2 * number + 2})
    rig.at(0, 0, 4, 4, 4)
    columns = [table_columns(rig.plan())["k"]]
    view = pinned(rig.pointers.at["batch"])
    for name, wanted in (
        ("customer-005", [True, False]),
        ("customer-015", [False, True]),
        ("customer-0095", [False, False]),
    ):
        assert may_hold(view, columns, pa.table({"k": pa.array([name])})).tolist() == wanted
