"""Files of a consumer's own mover with the right rows, which say of themselves other than they hold.

Reads would leave rows out or find other values, so such a file is never published.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

import harness_pipelines as hp
from harness_pipelines.stages.run.own_mover import OwnMove, ProofWrong
from harness_pipelines_tests.rig import TableRig

MakeRig = Callable[..., TableRig]
Said = dict[str, Any]
COLUMNS = {
    "id": {"type": "long", "required": True},
    "n": "long",
    "x": "double",
    "price": "decimal(9,2)",
    "at": "timestamptz",
    "s": "string",
    "place": "struct<a: int, b: int>",
    "tags": "list<string>",
}
WITH_NAN = {"derive": {"x": "CASE WHEN id = 20 THEN CAST('NaN' AS DOUBLE) WHEN id < 20 THEN 1.5 * id END"}}


@pytest.fixture
def buffered(make_rig: MakeRig) -> TableRig:
    rig = make_rig(columns=COLUMNS, partitions=1, transform=WITH_NAN)
    full = [
        {
            "id": i,
            "n": i * 10,
            "price": f"{i}.25",
            "at": f"2024-01-01T00:00:{i:02}Z",
            "s": f"s{i}",
            "place": {"a": i, "b": -i},
            "tags": [f"t{i}"],
        }
        for i in range(20)
    ]
    rig.kafka.produce(rig.topic, 0, [orjson.dumps(one) for one in (*full, {"id": 20}, {"id": 21})])
    rig.ingest()
    assert rig.table.read().num_rows == 22, rig.quarantine()
    return rig


def as_it_is(rows: pa.Table, stream: Any) -> None:
    pq.write_table(rows, stream, row_group_size=11, store_decimal_as_integer=True)  # as Spark does


def truth(said: Said, _schema: Schema) -> None:
    """The manifest says what is so."""


def mover(
    rig: TableRig,
    *,
    file: Callable[[pa.Table, Any], None] = as_it_is,
    say: Callable[[Said, Schema], None] = truth,
) -> Callable[[OwnMove], hp.Moved]:
    """Writes all rows to a file by *file*; its manifest says of an honest one what *say* makes of the truth."""

    def write(move: OwnMove) -> hp.Moved:
        lake, table = rig.stores.lake, rig.stores.ledger.table(rig.name)
        view = lake.current(table, "stream")
        old, schema = view.metadata_location, view.schema()
        rows = pa.concat_tables(move.batches()).cast(schema.as_arrow())
        path = f"{view.location()}/data/{uuid4()}.parquet"
        with view.io.new_output(path).create() as stream:
            file(rows, stream)
        honest = pa.BufferOutputStream()
        as_it_is(rows, honest)
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=pq.read_metadata(pa.BufferReader(honest.getvalue())),
            stats_columns=compute_statistics_plan(schema, view.metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        ).to_serialized_dict()
        said = {
            "content": DataFileContent.DATA,
            "file_path": path,
            "file_format": FileFormat.PARQUET,
            "partition": Record(0),
            "file_size_in_bytes": len(view.io.new_input(path)),
            "sort_order_id": None,
            "spec_id": view.metadata.default_spec_id,
            "equality_ids": None,
            "key_metadata": None,
            **statistics,
        }
        if file is not as_it_is:
            said["split_offsets"] = None
        say(said, schema)
        with view.transaction() as transaction:
            snapshot = transaction.update_snapshot(snapshot_properties=move.snapshot_properties, branch=move.branch)
            with snapshot.fast_append() as append:
                append.append_data_file(DataFile.from_args(**said))
        assert lake.pointers.move(table, "stream", old=old, new=view.metadata_location)
        return hp.Moved(ranges=move.ranges, rows=move.rows)

    return write


def refused(rig: TableRig, write: Callable[[OwnMove], hp.Moved], *, said: str) -> None:
    before = rig.table.read(where="id <= 19")
    with rig.table.mover() as own, pytest.raises(ProofWrong, match=said):
        own.move(write)
    assert rig.table.read(where="id <= 19").equals(before)
    assert all(b.bounds.stream_hi == 0 for b in rig.table.positions())


def test_a_file_that_says_what_is_so_is_published(buffered: TableRig):
    questions = ("n = 50", "x = 1.5", "x is nan", "n is null", "price = 3.25", "s = 's4'", "place.a = 7")
    before = [buffered.table.read(where=where) for where in questions]
    assert all(found.num_rows for found in before)
    with buffered.table.mover() as own:
        assert own.move(mover(buffered)) is not None
    for where, found in zip(questions, before, strict=True):
        assert str(buffered.table.read(where=where).to_pylist()) == str(found.to_pylist()), where


# -- the manifest -------------------------------------------------------------------------------------------


def only(count: str, column: str) -> Callable[[Said, Schema], None]:
    """A manifest by which the column has nothing else."""

    def say(said: Said, schema: Schema) -> None:
        field = schema.find_field(column).field_id
        for bounds in ("lower_bounds", "upper_bounds"):
            said[bounds] = {one: bound for one, bound in said[bounds].items() if one != field}
        said[count] = {**(said[count] or {}), field: said["value_counts"][field]}

    return say


def none(count: str, column: str) -> Callable[[Said, Schema], None]:
    def say(said: Said, schema: Schema) -> None:
        said[count] = {**(said[count] or {}), schema.find_field(column).field_id: 0}

    return say


def changed(**words: Callable[[Any], Any]) -> Callable[[Said, Schema], None]:
    def say(said: Said, _schema: Schema) -> None:
        said.update({word: change(said[word]) for word, change in words.items()})

    return say


LIES: dict[str, tuple[Callable[[Said, Schema], None], str]] = {
    "only NULL": (only("null_value_counts", "n"), "column n has values, which its manifest denies"),
    "no NULL": (none("null_value_counts", "n"), "column n has NULL, which its manifest denies"),
    "only NaN": (only("nan_value_counts", "x"), "column x has numbers, which its manifest denies"),
    "no NaN": (none("nan_value_counts", "x"), "column x has NaN, which its manifest denies"),
    "another size": (changed(file_size_in_bytes=lambda size: size + 7), "its manifest says"),
    "other row groups": (changed(split_offsets=lambda begin: begin[1:]), "row groups begin elsewhere"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_denies_what_its_file_holds_is_refused(buffered: TableRig, lie: str):
    say, said = LIES[lie]
    refused(buffered, mover(buffered, say=say), said=said)


# -- the file -----------------------------------------------------------------------------------------------


def bare(kind: pa.DataType) -> pa.DataType:
    """The type without ids of what is inside of it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, bare(f.type), f.nullable) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", bare(kind.value_type)))
    return kind


def rewritten(schema: pa.Schema) -> Callable[[pa.Table, Any], None]:
    def file(rows: pa.Table, stream: Any) -> None:
        columns = [column.cast(f.type) for column, f in zip(rows.columns, schema, strict=True)]
        pq.write_table(pa.table(columns, schema=schema), stream)

    return file


def without_ids(rows: pa.Table, stream: Any) -> None:
    rewritten(pa.schema([pa.field(f.name, bare(f.type), f.nullable) for f in rows.schema]))(rows, stream)


def without_ids_inside(rows: pa.Table, stream: Any) -> None:
    rewritten(pa.schema([f.with_type(bare(f.type)) for f in rows.schema]))(rows, stream)


def with_another_column(rows: pa.Table, stream: Any) -> None:
    """Its id is one that the next new column of the table may get."""
    more = pa.field("ghost", pa.int64(), metadata={"PARQUET:field_id": "77"})
    pq.write_table(rows.append_column(more, pa.array(range(rows.num_rows))), stream)


def with_false_statistics(rows: pa.Table, stream: Any) -> None:
    """The greatest `n` is said to be 40 instead of 190."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="none")
    content = sink.getvalue().to_pybytes()
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    greatest, said = (number.to_bytes(8, "little") for number in (190, 40))
    assert greatest in content[end:]
    stream.write(content[:end] + content[end:].replace(greatest, said))


FILES = {
    "no ids": (without_ids, "cannot be found by ids"),
    "no ids inside of columns": (without_ids_inside, "cannot be found by ids"),
    "a column more": (with_another_column, r"ids that the view has not: 77 \(ghost\)"),
    "false statistics": (with_false_statistics, "column n has values outside of the statistics of row group 0"),
}


@pytest.mark.parametrize("which", FILES)
def test_a_file_that_readers_would_read_otherwise_is_refused(buffered: TableRig, which: str):
    file, said = FILES[which]
    refused(buffered, mover(buffered, file=file), said=said)
