"""What is kept of manifests as columns says of each file what PyIceberg's objects say, in a fraction of the memory."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from harness_pipelines.drivers.by_path import ByPath
from harness_pipelines.lakes.iceberg.private.tables import InclusiveMetricsEvaluator
from harness_pipelines.lakes.iceberg.read.file_columns import PATH_ID, FileColumns
from harness_pipelines.lakes.iceberg.read.live_files import OPEN, LiveFiles
from harness_pipelines.lakes.iceberg.read.predicates import to_iceberg
from harness_pipelines.ports.errors import ForeignDeletes
from harness_pipelines.ports.lake import DeleteFile
from harness_pipelines.spec.types import Primitive
from harness_pipelines.spec.where import parse_where

FOLDER = "s3://lake/ns/orders__stream-0123abcd/data/"
OFFSET_ID = 9
SCHEMA = Schema(*(NestedField(i, f"c{i}", LongType(), required=False) for i in (1, 2, OFFSET_ID)))
COLUMNS = {name: Primitive("long") for name in ("c1", "c2")}

longs = st.integers(-(2**62), 2**62)
counts = st.dictionaries(st.sampled_from([1, 2, OFFSET_ID]), st.integers(0, 2**40)) | st.none()
bounds = (
    st.dictionaries(st.sampled_from([1, 2, OFFSET_ID]), longs.map(lambda one: to_bytes(LongType(), one))) | st.none()
)


@st.composite
def data_files(draw: st.DrawFn) -> list[DataFile]:
    partitions = draw(st.lists(st.none() | st.integers(0, 5), max_size=6))
    return [
        DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{FOLDER}{number}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record() if partition is None else Record(partition),
            record_count=draw(st.integers(0, 2**40)),
            file_size_in_bytes=draw(st.integers(0, 2**40)),
            column_sizes=draw(counts),
            value_counts=draw(counts),
            null_value_counts=draw(counts),
            nan_value_counts=draw(counts),
            lower_bounds=draw(bounds),
            upper_bounds=draw(bounds),
        )
        for number, partition in enumerate(partitions)
    ]


@given(files=data_files())
def test_columns_say_of_each_file_what_its_manifest_entry_says(files: list[DataFile]):
    found = FileColumns(files)

    assert found.paths() == [file.file_path for file in files]
    for number, file in enumerate(files):
        assert found.path(number) == file.file_path
        assert (found.rows[number], found.bytes[number]) == (file.record_count, file.file_size_in_bytes)
        assert found.partition(number) == (file.partition[0] if len(file.partition) else None)
        for field_id in (1, 2, OFFSET_ID, 77):
            assert found.lower(field_id, number) == (file.lower_bounds or {}).get(field_id)
            assert found.upper(field_id, number) == (file.upper_bounds or {}).get(field_id)
            assert found.nulls_of(field_id)[number] == (file.null_value_counts or {}).get(field_id)
            assert found.nans_of(field_id)[number] == (file.nan_value_counts or {}).get(field_id)
            bounds = [(file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)]
            assert [side[number] for side in found.bounds(field_id)] == bounds
            if (whole := found.whole_bounds(field_id)) is not None:
                values = [side[number] for side in whole]
                assert [None if one is None else to_bytes(LongType(), one) for one in values] == bounds
        size = sum((file.column_sizes or {}).get(field_id, 0) for field_id in (1, 77, OFFSET_ID))
        assert found.sizes([1, 77, OFFSET_ID], np.array([number])).tolist() == [size]


@given(
    per_file=st.lists(
        st.none()
        | st.binary(max_size=12)
        | st.sampled_from([b"", b"\0" * 8, b"\xff" * 8, b"\0" * 7 + b"\x80", b"put", b"\0put"])
        | longs.map(lambda one: to_bytes(LongType(), one)),
        max_size=8,
    )
    | st.lists(st.none() | st.binary(min_size=8, max_size=8), max_size=8)
    | st.lists(st.none() | st.binary(min_size=4, max_size=4), max_size=8)
    | st.lists(st.none() | st.binary(max_size=7), max_size=8)
)
def test_a_bound_of_any_bytes_comes_back_as_it_was(per_file: list[bytes | None]):
    """Of doubles too, whose least one, -0.0, has the bytes of the least long."""
    files = [
        DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{FOLDER}{number}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=1,
            lower_bounds=None if bound is None else {5: bound},
            upper_bounds=None if bound is None else {5: bound, 7: b"a"},
        )
        for number, bound in enumerate(per_file)
    ]
    found = FileColumns(files)
    assert [found.lower(5, number) for number in range(len(files))] == per_file
    assert [found.upper(5, number) for number in range(len(files))] == per_file
    told = list(found.metrics([5, 9], range(len(files))))
    assert [one.upper_bounds.get(5) for one in told] == per_file


@given(files=data_files(), where=st.sampled_from(["c1 > 10", "c2 < -5 or c1 > 10", "c1 is not null", "c2 is null"]))
def test_the_same_files_are_skipped_as_by_the_manifest_entries(files: list[DataFile], where: str):
    evaluator = InclusiveMetricsEvaluator(SCHEMA, to_iceberg(parse_where(where, COLUMNS)))
    live = LiveFiles([FileColumns(files[:2]), FileColumns(files[2:])], OFFSET_ID)

    mask = live.matching(evaluator.eval, {1, 2}, among=np.ones(len(live), np.bool_))  # type: ignore[arg-type]

    assert {file.path for file in live.many(np.flatnonzero(mask))} == {f.file_path for f in files if evaluator.eval(f)}


@given(files=data_files(), ranges=st.dictionaries(st.integers(0, 5), st.tuples(longs, longs)))
def test_live_files_lie_by_partition_and_offset_and_are_found_by_their_bounds(
    files: list[DataFile], ranges: dict[int, tuple[int, int]]
):
    live = LiveFiles([FileColumns(files[:3]), FileColumns(files[3:])], OFFSET_ID)

    assert [(f.partition or 0, f.low) for f in live] == sorted((f.partition or 0, f.low) for f in live)
    assert {file.path: file.stored for file in live} == {file.file_path: file.record_count for file in files}
    overlapping = live.overlapping(ranges)
    for place, file in enumerate(live):
        wanted = [asked for of, asked in ranges.items() if file.partition in (None, of)]
        assert overlapping[place] == any(file.low < high and low < file.high for low, high in wanted)
        bounded = file.high != OPEN
        assert file == file
        assert bounded or file.low == 0


def deletes(path: str, *, of: bytes, content: DataFileContent = DataFileContent.POSITION_DELETES) -> DataFile:
    return DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=3,
        file_size_in_bytes=7,
        lower_bounds={PATH_ID: of},
        upper_bounds={PATH_ID: of},
    )


def data(path: str) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=10,
        file_size_in_bytes=100,
    )


def test_a_file_knows_what_hides_its_rows_wherever_that_is_listed():
    hides = DeleteFile(path="d", rows=3, bytes=7)
    live = LiveFiles([FileColumns([data("a"), data("b")]), FileColumns([deletes("d", of=b"a")])], OFFSET_ID)
    assert {file.path: (file.deletes, file.rows) for file in live} == {"a": (hides, 7), "b": (None, 10)}


@pytest.mark.parametrize(
    "foreign",
    [deletes("e", of=b"a"), deletes("e", of=b"b", content=DataFileContent.EQUALITY_DELETES)],
    ids=["a second one of a file", "of equality"],
)
def test_deletes_that_the_harness_did_not_write_are_refused(foreign: DataFile):
    with pytest.raises(ForeignDeletes, match=r"^e holds deletes"):
        LiveFiles([FileColumns([data("a"), deletes("d", of=b"a")]), FileColumns([foreign])], OFFSET_ID)


def test_a_file_of_twenty_columns_takes_two_hundred_bytes():
    files, ids = 300, range(1, 21)

    def entries() -> list[DataFile]:
        return [
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"{FOLDER}_kafka_partition=3/00000-{number}-5f1b7b2e-8f3c-4a39-9b7f-{number:012}-00001.parquet",
                file_format=FileFormat.PARQUET,
                partition=Record(3),
                record_count=100_000,
                file_size_in_bytes=2**20 + number,
                column_sizes={i: 40_000 + number for i in ids},
                value_counts=dict.fromkeys(ids, 100_000),
                null_value_counts=dict.fromkeys(ids, 0),
                nan_value_counts={},
                lower_bounds={i: to_bytes(LongType(), 2**40 + number) for i in ids},
                upper_bounds={i: to_bytes(LongType(), 2**40 + number + 99) for i in ids},
            )
            for number in range(files)
        ]

    def held(make: Any) -> tuple[Any, int]:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        made = make()
        gc.collect()
        return made, tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        written, as_objects = held(entries)
        columns, traced = held(lambda: FileColumns(written))
    finally:
        tracemalloc.stop()

    assert columns.nbytes < 200 * files
    assert traced <= columns.nbytes + 100_000  # what the cache counts is what it takes
    assert as_objects > 20 * columns.nbytes


def test_a_cache_holds_as_many_bytes_as_it_may_and_forgets_what_was_not_asked_for_longest():
    kept, made = ByPath(100), []

    def ask(path: str, size: int) -> str:
        return kept.get(path, lambda: made.append(path) or path * size, weigh=len)  # type: ignore[func-returns-value]

    ask("a", 40), ask("b", 40), ask("a", 40)
    ask("c", 40)  # b goes
    ask("a", 40), ask("b", 40)  # c goes
    assert made == ["a", "b", "c", "b"]
    assert ask("d", 500) == "d" * 500  # more than it may hold: alone, until the next one comes
    assert not kept.has("a")
    ask("e", 1)
    assert not kept.has("d")


def test_what_was_made_of_a_file_in_two_ways_is_kept_apart():
    kept = ByPath(10)
    assert kept.get("a", lambda: 1, kind="one") == 1
    assert kept.get("a", lambda: 2, kind="other") == 2
    assert kept.has("a", kind="one")
    assert not kept.has("a")
