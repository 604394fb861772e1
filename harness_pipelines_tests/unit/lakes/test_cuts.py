"""Cuts of tables whose views are files in a folder: what is written, what is named again, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadataV1

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.drivers.files import listed
from harness_pipelines.lakes.iceberg.checked_io import KEPT, opened_io
from harness_pipelines.lakes.iceberg.cuts.chunks import data_file_of
from harness_pipelines.lakes.iceberg.parquet import data_files
from harness_pipelines.lakes.iceberg.read.deletes import deleted_from
from harness_pipelines.lakes.iceberg.read.manifests import listed_in
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.ports.serving.cuts import CutDraft, CutImpossible
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests import lake_files
from harness_pipelines_tests.every_type import COMMON, DEEP
from harness_pipelines_tests.unit.lakes.cut_rig import (
    COLUMNS,
    NOW_MS,
    CutRig,
    Places,
    assert_same,
    full,
    in_order,
    rows,
    run,
    whole,
    with_coordinates,
)
from harness_pipelines_tests.unit.read.values import values


def manifests(draft: CutDraft) -> list[ManifestFile]:
    [snapshot] = StaticTable.from_metadata(draft.metadata).metadata.snapshots
    return listed_in(snapshot.manifest_list, opened_io())


def entries(draft: CutDraft, content: ManifestContent) -> list[ManifestEntry]:
    found = [one for one in manifests(draft) if one.content is content]
    return [entry for one in found for entry in one.fetch_manifest_entry(opened_io())]


@pytest.fixture
def rig(tmp_path: Path) -> CutRig:
    return full(tmp_path / "lake")


# -- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [{}, {"layout": {"sample": 0.5}}], ids=["plain", "with a sample layer"])
def test_a_cut_is_what_the_plan_reads(tmp_path: Path, words: Mapping[str, Any]):
    rig = full(tmp_path / "lake", **words)
    draft = rig.cut()
    assert rig.read().num_rows == 60
    assert_same(rig, draft)
    assert "_sample" not in StaticTable.from_metadata(draft.metadata).schema().column_names


def test_of_an_empty_table_there_is_an_empty_cut(tmp_path: Path):
    rig = CutRig(tmp_path, COLUMNS)
    draft = rig.cut()
    assert rig.read().num_rows == 0
    assert_same(rig, draft)


def test_rows_of_the_buffer_alone(tmp_path: Path):
    rig = CutRig(tmp_path, COLUMNS)
    rig.at(1, 0, 0, 0, 5)
    rig.buffer = rows(run(1, 0, 5))
    assert_same(rig, rig.cut())


def test_a_table_without_a_batch_view(tmp_path: Path):
    rig = CutRig(tmp_path, COLUMNS, views="stream")
    rig.at(0, 0, 0, 12, 15)
    rig.append("stream", rows(run(0, 0, 7)))
    rig.append("stream", rows(run(0, 7, 12)))
    rig.hide("stream", {0: (5, 8)})
    rig.buffer = rows(run(0, 12, 15))
    draft = rig.cut()
    assert_same(rig, draft)
    specs = StaticTable.from_metadata(draft.metadata).specs()
    assert [len(specs[number].fields) for number in sorted(specs)] == [1, 0], "chunks have a partitioning: none"


def test_a_table_without_a_stream_view(tmp_path: Path):
    rig = CutRig(tmp_path, COLUMNS, views="batch")
    rig.at(0, 0, 12, 12, 15)
    rig.append("batch", rows(run(0, 0, 7)))
    rig.append("batch", rows(run(0, 7, 12)))
    rig.hide("batch", {0: (5, 8)})
    rig.buffer = rows(run(0, 12, 15))
    assert_same(rig, rig.cut())


def test_a_partition_of_which_the_batch_view_has_nothing_yet(tmp_path: Path):
    rig = CutRig(tmp_path, COLUMNS)
    rig.at(0, 0, 5, 5, 5)
    rig.at(1, 0, 0, 4, 4)
    rig.append("batch", rows(run(0, 0, 5)))
    rig.append("stream", rows(run(0, 0, 5) + run(1, 0, 4)))
    with lake_files.moved_away(*(file.path for file in pinned(rig.pointers.at["batch"]).files)):
        draft = rig.cut()
    assert_same(rig, draft)
    assert not entries(draft, ManifestContent.DELETES)


EVOLVED = {
    "id": {"type": "long", "required": True},
    "s": "string",
    "n": "int",
    "gone": "double",
    "place": "struct<city: string, pos: struct<lat: double>>",
    "tags": "list<struct<`a b`: int>>",
}


def of_schema(names: Mapping[str, Any], places: Places) -> pa.Table:
    return with_coordinates({name: make(places) for name, make in names.items()}, places)


def test_columns_that_were_added_renamed_widened_and_dropped(tmp_path: Path):
    rig = CutRig(tmp_path, EVOLVED, layout={"sample": 0.5, "columns": ["id"]})
    common = {
        "id": lambda at: pa.array([o for _, o in at], pa.int64()),
        "place": lambda at: pa.array(
            [None if o % 4 == 0 else {"city": "x", "pos": None if o % 3 else {"lat": 1.5}} for _, o in at],
            pa.struct([("city", pa.string()), ("pos", pa.struct([("lat", pa.float64())]))]),
        ),
        "tags": lambda at: pa.array(
            [None if o % 3 == 0 else [{"a b": o}, None] for _, o in at],
            pa.list_(pa.struct([("a b", pa.int32())])),
        ),
    }
    old = common | {
        "s": lambda at: pa.array([str(o) for _, o in at]),
        "n": lambda at: pa.array([o for _, o in at], pa.int32()),
        "gone": lambda at: pa.array([0.5] * len(at)),
    }
    rig.at(0, 0, 6, 12, 12)
    rig.append("batch", of_schema(old, run(0, 0, 6)))
    rig.append("stream", of_schema(old, run(0, 0, 4)))
    rig.append("stream", of_schema(old, run(0, 4, 9)))
    rig.evolve(
        ColumnChanges(
            rename=(("s", "größer text"),),
            drop=("gone",),
            widen=(("n", parse_type("long")),),
            add=(Column(name="new", type=parse_type("decimal(9, 2)")),),
        )
    )
    new = common | {
        "größer text": lambda at: pa.array([f"new {o}" for _, o in at]),
        "n": lambda at: pa.array([2**40 + o for _, o in at], pa.int64()),
        "new": lambda at: pa.array([o for _, o in at], pa.decimal128(9, 2)),
    }
    rig.append("stream", of_schema(new, run(0, 9, 12)))
    rig.at(0, 0, 6, 12, 20)
    rig.buffer = of_schema(new, run(0, 12, 20)).select(rig.schema.names)
    draft = rig.cut()
    wanted = rig.read()
    assert wanted.num_rows == 20
    assert whole(rig, draft).equals(wanted)
    found = StaticTable.from_metadata(draft.metadata).schema()
    view = pinned(rig.version().stream.metadata).schema
    assert {f.name: f.field_id for f in found.fields} == {f.name: f.field_id for f in view.fields}
    assert rig.cuts.read_chunk(rig.table, rig.plan(), draft.chunks[0]).equals(rig.buffer.cast(rig.schema))


TYPES = {name: parse_type(text) for name, text in (COMMON | DEEP).items()}


@settings(max_examples=6)
@given(
    values=st.lists(st.fixed_dictionaries({name: values(kind) for name, kind in TYPES.items()}), min_size=9, max_size=9)
)
def test_values_of_every_type(tmp_path_factory: pytest.TempPathFactory, values: list[Mapping[str, Any]]):
    rig = CutRig(tmp_path_factory.mktemp("lake"), COMMON | DEEP, layout={"columns": ["c1"]})

    def typed(low: int, high: int) -> pa.Table:
        columns = {n: pa.array([row[n] for row in values[low:high]], arrow_type(kind)) for n, kind in TYPES.items()}
        return with_coordinates(columns, run(0, low, high)).select(rig.schema.names)

    rig.at(0, 0, 3, 6, 9)
    rig.append("batch", typed(0, 3))
    rig.append("stream", typed(2, 6))
    rig.buffer = typed(6, 9)
    draft = rig.cut()
    wanted = rig.read().to_pylist()
    assert repr(whole(rig, draft).to_pylist()) == repr(wanted)  # NaN is not itself
    again = rig.cuts.read_chunk(rig.table, rig.plan(), draft.chunks[0])
    assert repr(again.to_pylist()) == repr(wanted[6:])


# -- what is written, and what is not ------------------------------------------------------------------------


def test_manifests_of_the_base_view_are_named_as_they_are_and_no_file_of_it_is_opened(rig: CutRig):
    view = pinned(rig.pointers.at["batch"])
    head = view.metadata.current_snapshot()
    assert head is not None
    own = {one.manifest_path: one for one in listed_in(head.manifest_list, opened_io())}
    with lake_files.moved_away(*(file.path for file in view.files), *own):
        KEPT.clear()
        draft = rig.cut()
    found = {one.manifest_path: one for one in manifests(draft)}
    assert own.keys() <= found.keys()
    for path, one in own.items():
        names = ("sequence_number", "min_sequence_number", "partition_spec_id", "added_snapshot_id", "content")
        assert [getattr(found[path], name) for name in names] == [getattr(one, name) for name in names]


def test_a_file_that_straddles_has_one_delete_file_with_the_rows_that_were_hidden_before(rig: CutRig):
    straddling = next(f for f in pinned(rig.pointers.at["stream"]).files if f.partition == 0 and f.low == 10)
    assert straddling.deletes is not None
    draft = rig.cut()
    [found] = [
        entry for entry in entries(draft, ManifestContent.DELETES)
        if deleted_from(entry.data_file) == straddling.path
    ]  # fmt: skip
    assert found.data_file.content is DataFileContent.POSITION_DELETES
    assert found.data_file.file_path in draft.files
    assert lake_files.parquet(found.data_file.file_path).column("pos").to_pylist() == [0, 1, 2, 3, 4, 7, 8]
    assert set(lake_files.parquet(found.data_file.file_path).column("file_path").to_pylist()) == {straddling.path}
    assert found.sequence_number == draft.sequence
    hidden = [deleted_from(entry.data_file) for entry in entries(draft, ManifestContent.DELETES)]
    assert len(set(hidden)) == len(hidden) == 3, "the batch view's, the one that straddles, and partition 1"


def test_files_below_the_batch_view_are_not_named(rig: CutRig):
    draft = rig.cut()
    paths = {entry.data_file.file_path for entry in entries(draft, ManifestContent.DATA)}
    stream = pinned(rig.pointers.at["stream"]).files
    assert {file.path for file in stream} - paths == {file.path for file in stream if file.high <= 10}


def test_existing_files_keep_their_own_sequence_numbers_and_snapshots(rig: CutRig):
    view = pinned(rig.pointers.at["stream"])
    head = view.metadata.current_snapshot()
    assert head is not None
    own = {
        entry.data_file.file_path: entry
        for one in listed_in(head.manifest_list, opened_io())
        for entry in one.fetch_manifest_entry(opened_io())
    }
    draft = rig.cut()
    found = {e.data_file.file_path: e for e in entries(draft, ManifestContent.DATA)}
    named = found.keys() & own.keys()
    assert len(named) == 3
    for path in named:
        for name in ("sequence_number", "file_sequence_number", "snapshot_id"):
            assert getattr(found[path], name) == getattr(own[path], name)
        names = ("lower_bounds", "upper_bounds", "record_count", "column_sizes", "split_offsets")
        assert [getattr(found[path].data_file, n) for n in names] == [getattr(own[path].data_file, n) for n in names]


@pytest.mark.parametrize("hidden", [False, True], ids=["nothing hidden before", "with deletes"])
def test_rows_of_the_base_view_beyond_the_plan_are_hidden(tmp_path: Path, hidden: bool):
    rig = CutRig(tmp_path, COLUMNS)
    rig.at(0, 0, 12, 12, 12)
    rig.append("batch", rows(run(0, 0, 5)))
    rig.append("batch", rows(run(0, 5, 9) + run(1, 0, 3)), reaches={1: 3})
    rig.append("batch", rows(run(0, 9, 12)), reaches={1: 3})
    if hidden:
        rig.hide("batch", {0: (1, 2)}, reaches={1: 3})
        rig.hide("batch", {0: (6, 7)}, reaches={1: 3})
    rig.at(0, 0, 7, 7, 7)
    draft = rig.cut()
    assert_same(rig, draft)
    deletes = [deleted_from(entry.data_file) for entry in entries(draft, ManifestContent.DELETES)]
    assert len(deletes) == len(set(deletes)) == (3 if hidden else 2)


def test_the_files_of_a_cut_are_all_that_is_in_its_folder(rig: CutRig):
    draft = rig.cut()
    folder = draft.metadata.rpartition("/metadata/")[0]
    assert {file.path for file in listed(folder)} == set(draft.files)
    assert len(draft.files) == len(set(draft.files))
    assert folder.rpartition("/")[2].startswith("orders__fresh-")


# -- one cut after the other ---------------------------------------------------------------------------------


def test_parts_of_the_cut_before_are_named_again_and_nothing_of_the_views_is_opened(rig: CutRig):
    first = rig.cut(chunks=[])
    rig.at(0, 0, 15, 30, 45)
    rig.buffer = rows(run(0, 30, 45) + run(1, 20, 25))
    stream = pinned(rig.pointers.at["stream"])
    with lake_files.moved_away(*stream.manifests, *(file.path for file in stream.files)):
        KEPT.clear()
        second = rig.cut(previous=first)
    assert second.parts == first.parts
    assert second.sequence == first.sequence + 1
    assert set(second.files) & set(first.files), "manifests of the stream view's part, and its delete files"
    assert_same(rig, second)


def test_another_version_of_a_view_or_another_bound_is_another_part(rig: CutRig):
    first = rig.cut()
    rig.at(0, 0, 15, 33, 40)
    rig.append("stream", rows(run(0, 30, 33)))
    second = rig.cut(previous=first)
    assert second.parts["base"] == first.parts["base"]
    assert second.parts["other"] != first.parts["other"]
    assert_same(rig, second)


def test_the_same_views_with_other_bounds_are_another_part(rig: CutRig):
    first = rig.cut()
    rig.at(0, 0, 15, 26, 26)
    second = rig.cut(previous=first)
    assert second.parts["other"] != first.parts["other"]
    assert_same(rig, second)


def test_chunks_are_added_once_then_kept_with_their_sequence_then_dropped(rig: CutRig):
    one, two = rig.chunk({0: (30, 35)}), rig.chunk({0: (35, 40), 1: (20, 25)})
    rig.at(0, 0, 15, 30, 35)
    rig.at(1, 0, 10, 20, 20)
    first = rig.cut(chunks=[one])
    assert_same(rig, first)
    rig.at(0, 0, 15, 30, 40)
    rig.at(1, 0, 10, 20, 25)
    second = rig.cut(chunks=[*first.chunks, two], previous=first)
    assert_same(rig, second)
    assert [chunk.sequence for chunk in second.chunks] == [first.sequence, second.sequence]
    found = {e.data_file.file_path: e for e in entries(second, ManifestContent.DATA)}
    kept, new = found[one.path], found[two.path]
    assert (kept.status.name, kept.sequence_number, kept.snapshot_id) == ("EXISTING", first.sequence, first.snapshot_id)
    assert (new.status.name, new.sequence_number, new.snapshot_id) == ("ADDED", second.sequence, second.snapshot_id)

    together = rig.chunk({0: (30, 40), 1: (20, 25)})
    third = rig.cut(chunks=[together], previous=second)
    assert_same(rig, third)
    assert not {one.path, two.path} & {e.data_file.file_path for e in entries(third, ManifestContent.DATA)}
    assert not {one.path, two.path} & set(third.files)


def test_a_chunk_without_rows_is_no_file_of_the_table(rig: CutRig):
    rig.at(0, 0, 15, 30, 50)
    rig.at(1, 0, 10, 20, 20)
    chunks = [rig.chunk({0: (30, 40)}), rig.chunk({0: (40, 50)})]
    draft = rig.cut(chunks=chunks)
    assert_same(rig, draft)
    assert chunks[1].rows == 0
    assert chunks[1].path in draft.files
    assert rig.cuts.read_chunk(rig.table, rig.plan(), chunks[1]).num_rows == 0


def test_times_sequences_and_the_uuid_of_cuts(rig: CutRig):
    first = rig.cut()
    second = rig.cut(chunks=first.chunks, previous=first)
    later = rig.cut(chunks=first.chunks, previous=replace(second, timestamp_ms=NOW_MS + 5, sequence=10**13))
    assert first.timestamp_ms == NOW_MS - 10_000
    assert second.timestamp_ms == first.timestamp_ms + 1
    assert (later.timestamp_ms, later.sequence) == (NOW_MS + 6, 10**13 + 1)
    told = [StaticTable.from_metadata(draft.metadata).metadata for draft in (first, second, later)]
    assert len({one.table_uuid for one in told}) == 1
    heads = [pinned(at).metadata.current_snapshot() for at in rig.pointers.at.values()]
    assert first.sequence > max(head.sequence_number or 0 for head in heads if head)
    for draft, one in zip((first, second, later), told, strict=True):
        [snapshot] = one.snapshots
        assert not isinstance(one, TableMetadataV1)
        assert one.last_sequence_number == snapshot.sequence_number == draft.sequence
        assert one.last_updated_ms == snapshot.timestamp_ms == draft.timestamp_ms
        assert (one.metadata_log, one.snapshot_log, snapshot.parent_snapshot_id) == ([], [], None)


def test_a_cut_has_the_descriptions_of_its_table(tmp_path: Path):
    columns = {"id": {"type": "long", "description": "Its number"}, "n": "int"}
    words: dict[str, Any] = {"owners": ["ada@example.com", "team:shop"], "tags": {"tier": "gold", "pii": "no"}}
    rig = CutRig(tmp_path, columns, description="Orders of all shops.", **words)
    told = StaticTable.from_metadata(rig.cut().metadata)
    assert told.properties["comment"] == "Orders of all shops."
    assert told.properties["harness.owners"] == "ada@example.com, team:shop"
    assert told.properties["harness.tags"] == "tier=gold, pii=no"
    assert [told.schema().find_field(name).doc for name in ("id", "n")] == ["Its number", None]


def test_what_a_cut_says_of_itself(rig: CutRig):
    draft = rig.cut()
    told = StaticTable.from_metadata(draft.metadata).metadata
    assert told.location == f"{rig.warehouse}/shop"
    assert all(file.startswith(f"{told.location}/") for file in draft.files)
    folder = draft.metadata.rpartition("/metadata/")[0]
    assert told.properties == {
        "gc.enabled": "false",
        "harness.table": "shop.orders",
        "write.data.path": f"{folder}/refused/data",
        "write.metadata.path": f"{folder}/refused/metadata",
    }
    [snapshot] = told.snapshots
    assert snapshot.summary is not None
    assert dict(snapshot.summary.additional_properties) == {
        "harness.version": str(draft.version),
        "harness.bounds": orjson.dumps({"0": [0, 15, 30, 40], "1": [0, 10, 20, 25]}).decode(),
        "harness.freshness": "fresh",
        "total-records": "70",
        "total-data-files": "6",
        "total-delete-files": "3",
        "total-position-deletes": "10",
        "total-equality-deletes": "0",
    }
    data = entries(draft, ManifestContent.DATA)
    assert sum(entry.data_file.record_count for entry in data) == 70
    assert told.sort_orders[0].is_unsorted


# -- chunks -------------------------------------------------------------------------------------------------


def test_a_chunk_tells_what_pyiceberg_would_tell_of_its_file(rig: CutRig, tmp_path: Path):
    chunk = rig.chunk({0: (30, 40), 1: (20, 25)})
    metadata = pinned(rig.pointers.at["stream"]).metadata
    elsewhere = metadata.model_copy(update={
        "partition_specs": [replace_spec() for _ in metadata.partition_specs], "location": (tmp_path / "x").as_uri(),
    })  # fmt: skip
    schema = metadata.schema().as_arrow()
    kept = rig.cuts.read_chunk(rig.table, rig.plan(), chunk)
    [other] = data_files(elsewhere, conformed(kept.select(schema.names), schema), opened_io())
    found = data_file_of(chunk.entry)
    for name in ("record_count", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds", "content"):
        assert getattr(found, name) == getattr(other, name), name
    assert found.file_size_in_bytes == chunk.bytes == lake_files.content(chunk.path).__len__()


def replace_spec() -> Any:
    from pyiceberg.partitioning import PartitionSpec

    return PartitionSpec(spec_id=0)


def test_a_chunk_is_read_back_as_it_was_written(rig: CutRig):
    chunk = rig.chunk({0: (20, 40), 1: (15, 25)})
    assert rig.buffer is not None
    wanted = in_order(rig.buffer).select(rig.schema.names).cast(rig.schema)
    assert rig.cuts.read_chunk(rig.table, rig.plan(), chunk).equals(wanted)


def test_rows_of_a_chunk_are_in_order_whatever_order_they_come_in(rig: CutRig):
    places = [(1, 22), (0, 31), (1, 20), (0, 30)]
    chunk = rig.cuts.write_chunk(
        rig.table, rig.version(), rows(places), ranges={0: (30, 40), 1: (20, 25)}, maker="m", sequence=1
    )
    found = rig.cuts.read_chunk(rig.table, rig.plan(), chunk)
    assert list(zip(found["_kafka_partition"].to_pylist(), found["_kafka_offset"].to_pylist(), strict=True)) == sorted(
        places
    )


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ([(0, 30), (0, 40)], "partition 0, offset 40;"),
        ([(0, 30), (1, 30)], "partition 1, offset 30;"),
        ([(0, 31), (0, 30), (0, 31)], "partition 0, offset 31, twice;"),
    ],
    ids=["above", "another partition", "twice"],
)
def test_rows_at_other_places_than_a_chunks_are_refused(rig: CutRig, places: Places, told: str):
    with pytest.raises(CutImpossible, match=told):
        rig.cuts.write_chunk(rig.table, rig.version(), rows(places), ranges={0: (30, 40)}, maker="m", sequence=1)


def test_unmerged_rows_of_a_keyed_table_are_refused_and_its_merged_state_says_what_it_is(tmp_path: Path):
    rig = CutRig(tmp_path, COLUMNS, key=["id"], format="json")
    rig.at(0, 0, 4, 6, 6)
    rig.append("batch", rows(run(0, 0, 4)))
    rig.append("stream", rows(run(0, 4, 6)))
    with pytest.raises(CutImpossible, match="is keyed"):
        rig.cut()
    rig.at(0, 0, 4, 4, 4)
    draft = rig.cut()
    assert_same(rig, draft)
    [snapshot] = StaticTable.from_metadata(draft.metadata).metadata.snapshots
    assert snapshot.summary is not None
    assert snapshot.summary["harness.freshness"] == "fresh"
    ahead = replace(rig.plan(), bounds={**rig.bounds, 0: Bounds(start=0, batch_hi=4, stream_hi=6, buffer_hi=9)})
    told = {p: (b.start, b.batch_hi, b.stream_hi, b.buffer_hi) for p, b in rig.bounds.items()}
    behind = rig.cuts.write_cut(
        rig.table, rig.version(), ahead, chunks=[], previous=draft, bounds=told, makers=(), now_ms=NOW_MS
    )
    [snapshot] = StaticTable.from_metadata(behind.metadata).metadata.snapshots
    assert snapshot.summary is not None
    assert (snapshot.summary["harness.freshness"], snapshot.summary["harness.behind"]) == ("merged", "5")
