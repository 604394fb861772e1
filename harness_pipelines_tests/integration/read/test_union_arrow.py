"""The union read in Arrow: exactly the rows below the bounds, and no more work than they need."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from harness_pipelines.drivers.postgres import SegmentMissing
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.ports.errors import LakeFileMissing
from harness_pipelines.protocol.reading.plan import LakePart, ReadPlan, SegmentRef, TailPart
from harness_pipelines.protocol.reading.queries import ReadStats
from harness_pipelines.protocol.reading.selection import Selection, UnknownColumn
from harness_pipelines.read.union import ArrowReader, ReadResult, read_arrow
from harness_pipelines_tests.integration.read.world import (
    COORDINATE_NAMES,
    IN_A_FOLDER,
    KEY,
    STANDARD,
    World,
    coordinates_of,
    standard_rows,
)

pytestmark = IN_A_FOLDER

PARTITIONS = (0, 1, 2)


class LeaseEnded(HarnessError):
    """Stands for the ledger's."""


def alive() -> None:
    """A lease that lives."""


def whole_plan(world: World) -> ReadPlan:
    return world.plan(lake=dict.fromkeys(PARTITIONS, (0, 300)), buffer=dict.fromkeys(PARTITIONS, (300, 400)))


def rows_of(world: World, keep: Callable[[int, int], bool] = lambda p, o: True) -> list[tuple[int, int]]:
    return [(p, o) for p in PARTITIONS for o in range(400) if keep(p, o)]


def reader_of(union: Any) -> ArrowReader:
    return ArrowReader(buffer=union.buffer_reader, lake=union.lake_reads)


def test_each_row_below_the_bounds_is_there_once_whatever_else_the_tiers_hold(union):
    found = read_arrow(whole_plan(union), union, coordinates=True, check_lease=alive).rows

    assert coordinates_of(found) == rows_of(union)
    expected = pa.concat_tables([standard_rows(union, p, 0, 400) for p in PARTITIONS])
    assert found.sort_by(KEY).drop_columns(["ratio"]).equals(expected.sort_by(KEY).drop_columns(["ratio"]))
    assert str(found.sort_by(KEY)["ratio"].to_pylist()) == str(expected.sort_by(KEY)["ratio"].to_pylist())


def test_bounds_differ_per_partition(union):
    plan = union.plan(lake={0: (10, 150), 2: (0, 300)}, buffer={0: (260, 260), 1: (250, 251), 2: (300, 420)})

    found = read_arrow(plan, union, columns=[], coordinates=["_kafka_partition", "_kafka_offset"], check_lease=alive)

    expected = [(0, o) for o in range(10, 150)] + [(1, 250)] + [(2, o) for o in range(420)]
    assert coordinates_of(found.rows) == expected
    assert found.rows.column_names == ["_kafka_partition", "_kafka_offset"]


def test_two_lake_parts_make_an_old_version(union):
    plan = whole_plan(union)
    [first] = plan.lake
    parts = (
        replace(first, low=dict.fromkeys(PARTITIONS, 0), high=dict.fromkeys(PARTITIONS, 120)),
        LakePart(metadata=first.metadata, low=dict.fromkeys(PARTITIONS, 120), high=dict.fromkeys(PARTITIONS, 310)),
    )

    found = read_arrow(replace(plan, lake=parts, buffer=None), union, coordinates=True, check_lease=alive).rows

    assert coordinates_of(found) == rows_of(union, lambda p, o: o < 310)


def test_columns_come_in_the_order_asked_for_and_coordinates_behind_them(union):
    plan = whole_plan(union)

    def names(**options: Any) -> list[str]:
        return list(read_arrow(plan, union, check_lease=alive, limit=1, **options).rows.column_names)

    assert names() == list(STANDARD)
    assert names(coordinates=True) == [*STANDARD, *COORDINATE_NAMES]
    assert names(columns=["note", "_kafka_offset", "id"]) == ["note", "_kafka_offset", "id"]
    assert names(columns=["id"], coordinates=["_op"]) == ["id", "_op"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["idd"]}, "no column 'idd' \\(did you mean 'id'\\?\\); columns: id, amount"),
        ({"columns": ["id", "id"]}, "'id' is requested twice"),
        ({"coordinates": ["id"]}, "'id' is not a coordinate; coordinates: _kafka_partition"),
    ],
)
def test_columns_that_are_not_there_are_named(union, options, message):
    with pytest.raises(UnknownColumn, match=message):
        read_arrow(whole_plan(union), union, check_lease=alive, **options)


@pytest.mark.parametrize(
    ("where", "keep"),
    [
        ("_kafka_offset >= 395", lambda p, o: o >= 395),
        ("_kafka_partition = 1 and _kafka_offset < 5", lambda p, o: p == 1 and o < 5),
        ("id = 3001", lambda p, o: (p, o) == (1, 300)),
        ("amount > 380.255", lambda p, o: o % 11 != 10 and o + 0.25 > 380.255),
        ("status = 'new' and ratio >= 49", lambda p, o: o % 3 and o >= 392 and o % 7 != 3 and o % 11 != 10),
        ("ratio is nan and _kafka_offset between 290 and 310",
         lambda p, o: 290 <= o <= 310 and o % 7 == 3 and o % 11 != 10),
        ("status is null", lambda p, o: o % 11 == 10),
        ("status != 'new'", lambda p, o: o % 3 == 0 and o % 11 != 10),
        ("not (status in ('new'))", lambda p, o: o % 3 == 0 and o % 11 != 10),
        ("status like 'd%'", lambda p, o: o % 3 == 0 and o % 11 != 10),
        ("at >= '2020-09-13T12:33:10Z' and at < '2020-09-13T12:33:20Z'",
         lambda p, o: 390 <= o < 400 and o % 11 != 10),
        ("clock < '00:00:00.000005'", lambda p, o: o < 5),
        ("key = '00000000-0000-0000-0000-00000000012c'", lambda p, o: o == 300),
        ("_op = 'delete'", lambda p, o: False),
        ("_schema_version = 1 and _kafka_timestamp < '2023-11-14T22:13:20.003Z'", lambda p, o: o < 3),
    ],
)  # fmt: skip
def test_a_where_means_the_same_in_every_tier(union, where, keep):
    found = read_arrow(whole_plan(union), union, where=where, coordinates=True, check_lease=alive).rows

    assert coordinates_of(found) == rows_of(union, keep)


def test_a_read_of_the_newest_offsets_opens_no_lake_file_and_takes_no_other_row(union):
    found = read_arrow(whole_plan(union), union, columns=["id"], where="_kafka_offset >= 390", check_lease=alive)

    assert found.rows.num_rows == 30
    assert found.stats.lake.files_opened == 0
    assert found.stats.lake.files == 0
    assert found.stats.buffer.rows_read == 30
    assert found.stats.offsets == {"stream": (900, 0), "buffer": (300, 30)}


def test_a_read_of_old_offsets_asks_postgres_nothing_and_skips_files_by_their_bounds(union):
    where = "_kafka_partition in (0, 2) and _kafka_offset between 20 and 119"

    found = read_arrow(whole_plan(union), union, columns=["id"], where=where, check_lease=alive)

    assert found.rows.num_rows == 200
    assert found.stats.buffer.segments == 0
    assert found.stats.lake.files_opened == 4
    assert found.stats.lake.skipped == {"ranges": 5}
    assert found.stats.lake.rows_read == 200


def test_files_are_skipped_by_the_statistics_of_user_columns(union):
    found = read_arrow(whole_plan(union), union, where="id between 1500 and 1509", check_lease=alive)

    assert found.rows.num_rows == 3
    assert found.stats.lake.files_opened == 3
    assert found.stats.lake.skipped == {"statistics": 6}
    assert found.stats.lake.rows_read == 3
    assert found.stats.buffer.rows_read == 0


def test_a_file_that_must_not_be_opened_may_be_missing(union, tmp_path):
    plan = whole_plan(union)
    victim = next(f for f in pinned(union.view.metadata_location).files if f.partition == 1 and f.low == 100)
    path = Path(victim.path.removeprefix("file://"))
    aside = tmp_path / "aside"
    path.rename(aside)
    try:
        for where in ("_kafka_partition <> 1", "_kafka_offset >= 200", "id >= 2000"):
            assert read_arrow(plan, union, where=where, check_lease=alive).rows.num_rows > 0
        with pytest.raises(LakeFileMissing, match=f"{plan.table}, version 1: .*{path.name} is gone"):
            read_arrow(plan, union, check_lease=alive)
    finally:
        aside.rename(path)


def test_columns_that_are_not_asked_for_are_not_read(union):
    plan = whole_plan(union)

    wide, bytes_wide = _bytes_taken(lambda: read_arrow(plan, union, check_lease=alive))
    narrow, bytes_narrow = _bytes_taken(lambda: read_arrow(plan, union, columns=["id"], check_lease=alive))

    assert narrow.stats.lake.bytes_read < wide.stats.lake.bytes_read / 2
    assert narrow.stats.buffer.bytes_read < wide.stats.buffer.bytes_read / 5
    assert bytes_narrow < bytes_wide


def _bytes_taken(read: Callable[[], ReadResult]) -> tuple[ReadResult, int]:
    """The result of *read* and the bytes that this process read while it ran."""

    def taken() -> int:
        return int(Path(f"/proc/{os.getpid()}/io").read_text().split()[1])

    read()  # what is parsed once is parsed
    before = taken()
    return read(), taken() - before


def test_a_missing_segment_fails_by_name(union):
    plan = whole_plan(union)
    assert plan.buffer is not None
    broken = replace(plan.buffer, segments=(*plan.buffer.segments, SegmentRef(name="seg_gone", schema_version=1)))

    with pytest.raises(SegmentMissing, match=f"{plan.table}: a segment of this read is gone.*seg_gone"):
        read_arrow(replace(plan, buffer=broken), union, check_lease=alive)


def test_a_missing_metadata_file_fails_by_name(union):
    plan = whole_plan(union)
    gone = replace(plan.lake[0], metadata=plan.lake[0].metadata + ".gone")

    with pytest.raises(LakeFileMissing, match="version 1: .*metadata.json.gone is gone"):
        read_arrow(replace(plan, lake=(gone,)), union, check_lease=alive)


def test_nothing_is_returned_when_the_lease_has_ended(union):
    def ended() -> None:
        raise LeaseEnded("lease ended")

    with pytest.raises(LeaseEnded):
        read_arrow(whole_plan(union), union, check_lease=ended)
    with pytest.raises(LeaseEnded):
        list(reader_of(union).batches(whole_plan(union), Selection(), check_lease=ended))


def test_a_lease_that_ends_between_batches_ends_the_read(union):
    calls = iter([None, None, LeaseEnded("lease ended")])

    def check() -> None:
        error = next(calls)
        if error is not None:
            raise error

    batches = reader_of(union).batches(whole_plan(union), Selection(), check_lease=check)

    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(LeaseEnded):
        next(batches)


def test_batches_hold_the_same_rows_as_a_table(union):
    selection = Selection(columns=["id"], coordinates=True, where="ratio < 48")
    reader = reader_of(union)

    batches = list(reader.batches(whole_plan(union), selection, check_lease=alive))
    table = reader.read(whole_plan(union), selection, check_lease=alive)

    assert coordinates_of(pa.Table.from_batches(batches)) == coordinates_of(table)


def test_a_limit_stops_the_read_early(union):
    stats = ReadStats()

    found = reader_of(union).read(whole_plan(union), Selection(limit=150), check_lease=alive, stats=stats)

    assert found.num_rows == 150
    assert stats.lake.files_opened == 2
    assert stats.buffer.segments == 0
    assert read_arrow(whole_plan(union), union, limit=0, check_lease=alive).rows.num_rows == 0


def test_a_reader_that_is_left_halfway_leaves_its_connection_in_order(union):
    plan = replace(whole_plan(union), lake=())
    batches = reader_of(union).batches(plan, Selection(), check_lease=alive)
    next(batches)
    batches.close()  # type: ignore[attr-defined]

    assert read_arrow(plan, union, check_lease=alive).rows.num_rows == 300


def test_connections_that_the_server_ended_are_replaced(union, dsn):
    plan = replace(whole_plan(union), lake=())
    read_arrow(plan, union, check_lease=alive)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND query LIKE %s AND state = 'idle'",
            [f"%seg\\_{union.table_id}\\_%"],
        )

    assert read_arrow(plan, union, check_lease=alive).rows.num_rows == 300


def test_many_threads_read_at_once(union):
    plan = whole_plan(union)
    counts: list[int] = []

    def read() -> None:
        counts.append(read_arrow(plan, union, columns=["id"], check_lease=alive).rows.num_rows)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert counts == [1200] * 8


def test_a_large_range_is_read_through_and_a_small_one_by_the_index(world):
    world.add_segment(standard_rows(world, 0, 0, 50), standard_rows(world, 5, 1_000_000, 1_000_050))

    plan = world.plan(lake={}, buffer={0: (10, 20), 5: (0, 1_000_010)})
    found = read_arrow(plan, world, coordinates=True, check_lease=alive).rows

    assert coordinates_of(found) == [(0, o) for o in range(10, 20)] + [(5, o) for o in range(1_000_000, 1_000_010)]


def test_rows_of_the_tail_are_filtered_and_projected_like_all_others(union):
    plan = replace(
        whole_plan(union),
        tail=TailPart(topic="t", schema_version=1, low=dict.fromkeys(PARTITIONS, 400), high={0: 410, 1: 400, 2: 405}),
    )
    asked: list[TailPart] = []

    def tail_rows(part: TailPart) -> pa.Table:
        asked.append(part)
        return pa.concat_tables([standard_rows(union, p, part.low[p], part.high[p]) for p in part.low])

    found = read_arrow(
        plan, union, columns=["_kafka_partition", "_kafka_offset"], where="_kafka_offset >= 399 and id <> 4042",
        check_lease=alive, tail_rows=tail_rows,
    ).rows  # fmt: skip

    expected = [(0, o) for o in range(399, 410)] + [(1, 399)] + [(2, o) for o in range(399, 405) if o != 404]
    assert coordinates_of(found) == expected
    assert asked == [TailPart(topic="t", schema_version=1, low={0: 400, 2: 400}, high={0: 410, 2: 405})]
    with pytest.raises(UsageError, match="has a Kafka part"):  # rather than fewer rows
        read_arrow(plan, union, check_lease=alive)


def test_an_empty_table_has_its_columns(world):
    found = read_arrow(world.plan(lake={}, buffer={}), world, check_lease=alive).rows

    assert found.num_rows == 0
    assert found.schema.names == list(STANDARD)


def test_the_figures_of_a_read_say_what_was_read_and_what_was_not(union):
    stats = read_arrow(whole_plan(union), union, where="_kafka_offset < 50", check_lease=alive).stats

    assert stats.offsets == {"stream": (900, 150), "buffer": (300, 0)}
    assert (stats.lake.files, stats.lake.files_opened, stats.lake.files_straddling) == (9, 3, 3)
    assert (stats.lake.skipped, stats.lake.rows_in_opened) == ({"ranges": 6}, 300)
    assert stats.buffer.segments == 0


def test_the_figures_of_a_read_agree_with_its_rows(union):
    found = read_arrow(whole_plan(union), union, where="id < 100", check_lease=alive)

    lake, buffer = found.stats.lake, found.stats.buffer

    assert (lake.files_opened, lake.files, lake.rows_read, lake.rows_in_opened) == (3, 9, 30, 300)
    assert (buffer.segments, buffer.rows_read, buffer.bytes_read) == (2, 0, 0)
    assert found.stats.rows == found.rows.num_rows == 30
