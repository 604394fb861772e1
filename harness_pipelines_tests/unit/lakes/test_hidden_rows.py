"""Rows that position deletes hide, read out of files of many row groups; and the delete files themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from harness_pipelines.errors import HarnessError
from harness_pipelines.lakes.iceberg.read.deletes import deleted_from, positions_of, split
from harness_pipelines.lakes.iceberg.read.file_columns import PATH_ID
from harness_pipelines.lakes.iceberg.read.scan import POSITION, _not_hidden, named_errors
from harness_pipelines.ports.errors import DeletesBroken, ForeignDeletes, LakeFileBroken
from harness_pipelines.ports.lake import DeleteFile, reachable
from harness_pipelines.protocol.reading.queries import LakeQuery
from harness_pipelines.spec.predicate import TRUE, Compare, Op, Ref
from harness_pipelines.spec.types import Primitive

ROWS = 60


@given(
    hidden=st.sets(st.integers(0, ROWS - 1)),
    group=st.integers(1, ROWS),
    least=st.none() | st.integers(-1, ROWS + 1),
    columns=st.sampled_from([["a"], ["b"], ["b", "a"], []]),
)
def test_what_is_left_is_what_is_not_hidden_and_fits(
    tmp_path_factory: pytest.TempPathFactory, hidden: set[int], group: int, least: int | None, columns: list[str]
):
    path = tmp_path_factory.mktemp("hidden") / "f.parquet"
    rows = pa.table({"a": range(ROWS), "b": [str(i) for i in range(ROWS)]})
    pq.write_table(rows, path, row_group_size=group)
    where = TRUE if least is None else Compare(Ref(("a",), Primitive("long")), Op.GE, least)

    with pa.OSFile(str(path)) as stream:
        fragment = ds.ParquetFileFormat().make_fragment(stream)
        found = _not_hidden(fragment, columns, where, np.array(sorted(hidden), np.int64))

    left = [i for i in range(ROWS) if i not in hidden and (least is None or i >= least)]
    assert found.num_rows == len(left)
    assert found.column_names == [*columns, POSITION]
    assert found.column(POSITION).to_pylist() == left
    for name in columns:
        assert found.column(name).to_pylist() == rows.column(name).take(pa.array(left, pa.int64())).to_pylist()


def file(
    path: str, content: DataFileContent, *, low: bytes | None = None, high: bytes | None = None, rows: int = 1
) -> DataFile:
    return DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=1,
        lower_bounds=None if low is None else {PATH_ID: low},
        upper_bounds=None if high is None else {PATH_ID: high},
    )


DATA = file("a", DataFileContent.DATA)
DELETES = file("d", DataFileContent.POSITION_DELETES, low=b"a", high=b"a")


def test_a_delete_file_is_found_by_the_one_data_file_that_it_names():
    assert split([DELETES, DATA]) == ([DATA], {"a": DELETES})
    assert deleted_from(DATA) is None


@pytest.mark.parametrize(
    "foreign",
    [
        file("e", DataFileContent.EQUALITY_DELETES, low=b"a", high=b"a"),
        file("e", DataFileContent.POSITION_DELETES, low=b"a", high=b"b"),
        file("e", DataFileContent.POSITION_DELETES),
        file("e", DataFileContent.POSITION_DELETES, low=b"a", high=b"a"),
    ],
    ids=["of equality", "of several files", "of any file", "a second one of a file"],
)
def test_deletes_that_the_harness_did_not_write_are_refused(foreign: DataFile):
    with pytest.raises(ForeignDeletes, match=r"^e holds deletes"):
        split([DATA, DELETES, foreign])


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([1, 5, 5], "expected 3 rows, each once, found 2"),
        ([1, 5], "expected 3 rows, each once, found 2"),
        ([1, 5, ROWS], "it names row 60 of a file of 60 rows"),
        ([-1, 1, 5], "it names row -1 of a file of 60 rows"),
        (None, "Parquet"),
    ],
    ids=["one twice", "one too few", "beyond the file", "before it", "cut off"],
)
def test_a_delete_file_that_was_damaged_is_named(tmp_path: Path, positions: list[int] | None, message: str):
    path = tmp_path / "d.parquet"
    sound = pa.table({"file_path": ["a"] * 3, "pos": [59, 0, 7]})
    pq.write_table(sound, path)
    deletes = DeleteFile(path=str(path), rows=3, bytes=1)
    assert positions_of(PyArrowFileIO(), deletes, rows=ROWS).tolist() == [0, 7, 59]

    if positions is None:
        path.write_bytes(path.read_bytes()[:-20])
    else:
        pq.write_table(pa.table({"file_path": ["a"] * len(positions), "pos": positions}), path)
    with pytest.raises(DeletesBroken, match=f"d.parquet does not tell which rows are hidden: .*{message}"):
        positions_of(PyArrowFileIO(), deletes, rows=ROWS)


def test_a_data_file_that_was_cut_off_is_named(tmp_path: Path):
    path = tmp_path / "cut.parquet"
    pq.write_table(pa.table({"a": range(ROWS)}), path)
    path.write_bytes(path.read_bytes()[:-20])
    query = LakeQuery(table="shop.orders", version=3, ranges={}, columns=[])
    told = rf"^shop\.orders, version 3: {path} is damaged: .*harness fsck"
    with pytest.raises(LakeFileBroken, match=told), named_errors(query, str(path)):
        pq.read_table(path)


@pytest.mark.parametrize("kind", [ForeignDeletes, DeletesBroken])
def test_what_is_wrong_with_deletes_is_told_with_the_table_and_what_was_done(kind: type[HarnessError]):
    query = LakeQuery(table="shop.orders", version=3, ranges={}, columns=[])
    with pytest.raises(kind, match=r"^shop\.orders, version 3: e holds"), named_errors(query, "e"):
        raise kind("e holds what it should not")
    with pytest.raises(kind, match=r"^shop\.orders: merging: e holds"), reachable("shop.orders", "merging"):
        raise kind("e holds what it should not")
