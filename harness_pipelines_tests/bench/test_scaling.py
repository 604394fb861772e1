"""The judges of the bench of many tables."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import orjson
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from harness_pipelines.drivers.postgres import Database, sql
from harness_pipelines.protocol.moves import Move
from harness_pipelines_tests.bench import moves
from harness_pipelines_tests.bench.base import tree_cpu_s, tree_rss_bytes
from harness_pipelines_tests.bench.peer import _name_of
from harness_pipelines_tests.bench.publish import Files
from harness_pipelines_tests.bench.records import COLUMNS
from harness_pipelines_tests.bench.scaling.expire import Locks
from harness_pipelines_tests.bench.scaling.growth import ACTS, _growth
from harness_pipelines_tests.bench.scaling.producer import _due
from harness_pipelines_tests.bench.scaling.watching import Positions, taken
from harness_pipelines_tests.bench.steady import Produced


def produced(acked_at: list[float], *, first: int = 0) -> Produced:
    count = len(acked_at)
    return Produced(
        offsets=np.arange(first, first + count), ids=np.arange(count), acked_at=np.array(acked_at, np.float64)
    )


def test_a_record_can_be_read_once_the_position_is_above_its_offset():
    seen = Positions("", {}, seen={"a": [(10.0, 1), (12.0, 3)], "b": [(10.0, 0), (11.0, 1)]})
    log = {"a": produced([9.0, 9.5, 12.5]), "b": produced([10.5])}
    assert sorted(seen.ages(log, skip_s=0.0)) == [0.0, 0.5, 1.0, 2.5]
    assert sorted(seen.ages(log, skip_s=1.0)) == [0.0, 0.5]
    assert seen.reached({"a": 3, "b": 1})
    assert not seen.reached({"a": 4, "b": 1})
    assert not seen.reached({"c": 1})


def test_a_record_that_was_never_seen_is_no_figure():
    seen = Positions("", {}, seen={"a": [(10.0, 1)]})
    with pytest.raises(AssertionError, match="a: not all records became readable"):
        seen.ages({"a": produced([9.0, 9.5])}, skip_s=0.0)


def test_topics_take_turns_and_none_gets_more_than_all_of_its_records():
    began = time.monotonic() - 1000.0  # so that a machine that is late changes nothing
    dues = [_due(began, 0.01, number, 4, total=77) for number in range(4)]
    assert dues == sorted(dues, reverse=True)
    assert _due(began, 10.0, 0, 4, total=77) == 77


def test_what_this_process_takes():
    found = taken(os.getpid())
    assert found.threads >= 1
    assert found.rss_bytes > 2**20
    assert found.cpu_s > 0.0


def test_a_process_tree_takes_at_least_what_its_root_takes():
    assert tree_cpu_s(os.getpid()) > 0.0
    assert tree_rss_bytes(os.getpid()) >= taken(os.getpid()).rss_bytes / 2


def test_growth_is_the_longest_to_the_shortest_whatever_lies_between():
    found = {100: dict.fromkeys(ACTS, 2.0), 20_000: dict.fromkeys(ACTS, 3.0), 2_000: dict.fromkeys(ACTS, 9.0)}
    figure = _growth("steps", "look", found)
    assert (figure.value, figure.holds) == (1.5, False)


class Session:
    """One that takes any statement."""

    def execute(self, _statement: str, _given: Mapping[str, Any] | None = None) -> None:
        return


class Sessions:
    """A database of such sessions."""

    @contextmanager
    def transaction(self, *, table: str | None = None) -> Iterator[Session]:
        yield Session()


def test_only_a_transaction_with_the_trim_lock_has_held_it():
    locks = Locks(cast("Database", Sessions()))
    with locks.transaction() as connection:
        connection.execute("SELECT 1")
    assert locks.held_s == []

    with locks.transaction() as connection:
        connection.execute(sql("reads/take_trim_lock"), {"table_id": 1})
        connection.execute("SELECT 1")
    [held_s] = locks.held_s
    assert held_s >= 0.0


def test_the_files_of_a_move_share_its_offsets():
    template = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="file:///t/data/one.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(0),
        record_count=100,
        file_size_in_bytes=1_000,
        lower_bounds={7: b""},
        upper_bounds={7: b""},
    )
    move = cast("Move", SimpleNamespace(move_id=3, lo={0: 10}, hi={0: 17}))
    staged = Files({0: template}, offset_id=7).of_move(move, each=3)
    ends = [(file.lower_bounds[7], file.upper_bounds[7]) for file in staged.written]
    bounds: list[Any] = [[from_bytes(LongType(), end) for end in both] for both in ends]
    assert bounds == [[10, 11], [12, 13], [14, 16]]
    assert len({file.path for file in staged.files}) == 3
    assert staged.rows == 300


def test_a_wide_record_fits_the_columns():
    records = [orjson.loads(moves.wide(number)) for number in (0, 1, 10**6)]
    assert all(set(record) == set(COLUMNS) for record in records)
    assert min(len(record["note"]) for record in records) > moves.NOTE_CHARS
    assert len({record["note"] for record in records}) == 3


def test_the_table_of_a_topic_in_the_namespace_has_its_name():
    assert _name_of("bench.t_1") == "t_1"
    assert _name_of("bench_1") != _name_of("bench_1")
