"""The files that the worker writes itself have dictionaries where Spark's writer would keep them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from harness_pipelines.lakes.iceberg.parquet import PROBE_BYTES, PROBE_ROWS, RowGroups, parquet_file, worth_dictionaries

ROWS = 2_000
GROUP_BYTES = 2**20


def rows_of(count: int) -> pa.Table:
    """Some columns with values that repeat, and some without."""
    numbers = range(count)
    keys = pa.array([n.to_bytes(16, "big") for n in numbers], pa.binary(16))
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "status": pa.array(["paid", "sent"] * (count // 2), pa.string()),
            "note": pa.array([f"order {n}" for n in numbers], pa.string()),
            "inside": pa.array([{"own": n, "same": n % 3} for n in numbers]),
            "list": pa.array([[n, n + count] for n in numbers], pa.list_(pa.int64())),
            "tags": pa.array([["a", "b"]] * count, pa.list_(pa.string())),
            "key": pa.ExtensionArray.from_storage(pa.uuid(), keys),
        }
    )


def written(rows: pa.Table, *, group_bytes: int = GROUP_BYTES, at_once: int = 500) -> tuple[pa.Buffer, Any]:
    """The file that `RowGroups` makes of *rows*, and its footer."""
    out = pa.BufferOutputStream()
    groups = RowGroups(out, rows.schema, group_bytes=group_bytes)
    for low in range(0, rows.num_rows, at_once):
        groups.write(rows.slice(low, at_once))
    footer = groups.close()
    return out.getvalue(), footer


def with_dictionaries(footer: Any, group: int = 0) -> set[str]:
    columns = [footer.row_group(group).column(number) for number in range(footer.num_columns)]
    return {column.path_in_schema for column in columns if column.has_dictionary_page}


def test_values_that_repeat_have_a_dictionary_and_others_do_not():
    rows = rows_of(ROWS)
    data, footer = written(rows)
    assert with_dictionaries(footer) == {"status", "inside.same", "tags.list.element"}
    assert parquet_file(pa.BufferReader(data)).read().equals(rows)


def test_the_first_rows_of_a_file_decide_for_all_of_its_groups():
    first, later = rows_of(PROBE_ROWS), rows_of(ROWS)
    same = later.set_column(0, "id", pa.array([7] * ROWS, pa.int64()))
    _, footer = written(pa.concat_tables([first, same]), group_bytes=2**16, at_once=PROBE_ROWS)
    assert footer.num_row_groups > 1
    assert with_dictionaries(footer, footer.num_row_groups - 1) == with_dictionaries(footer)


@pytest.mark.parametrize("count", [0, 2])
def test_a_file_of_few_rows_or_none_can_be_read(count: int):
    rows = rows_of(count)
    data, footer = written(rows)
    assert footer.num_rows == count
    assert parquet_file(pa.BufferReader(data)).read().num_rows == count


def test_wide_rows_are_judged_by_few_of_them():
    assert worth_dictionaries(pa.table({"note": ["x"] * 100})) == ["note"]
    assert worth_dictionaries(pa.table({"note": ["x" * PROBE_BYTES] * 3})) == [], (
        "the first one is all that is looked at"
    )


def test_without_rows_no_column_is_worth_a_dictionary():
    assert worth_dictionaries(rows_of(0)) == []
