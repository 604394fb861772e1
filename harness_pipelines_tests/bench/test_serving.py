"""The judges of the bench of `harness serve`, and that it measures what needs neither Kafka nor Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

import harness_pipelines as hp
from harness_pipelines.app.installation import Stores
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.bench import engines
from harness_pipelines_tests.bench.base import Run
from harness_pipelines_tests.bench.freshness import Seen
from harness_pipelines_tests.bench.records import value
from harness_pipelines_tests.bench.serving import freshness, loads, queries, readers
from harness_pipelines_tests.bench.serving.client import repeated
from harness_pipelines_tests.bench.serving.freshness import Select, Watched
from harness_pipelines_tests.bench.serving.readers import Reader
from harness_pipelines_tests.bench.serving.table import Filled, columns_of
from harness_pipelines_tests.bench.steady import Produced
from harness_pipelines_tests.producer import wait_until


def test_rows_that_are_made_by_columns_are_those_of_the_records():
    ids = np.arange(0, 40_000_000, 999_983)
    for found, number in zip(columns_of(ids, np.zeros_like(ids)).to_pylist(), ids.tolist(), strict=True):
        record = orjson.loads(value(number))
        wanted = {"amount": Decimal(str(record["amount"])), "at": datetime.fromisoformat(record["at"])}
        assert found == record | wanted


def test_a_later_round_has_other_notes_and_amounts_and_nothing_else():
    ids = np.arange(9)
    rows, again = (columns_of(ids, np.full(9, round_)) for round_ in (0, 2))
    other = [name for name in rows.column_names if rows.column(name) != again.column(name)]
    assert other == ["amount", "note"]
    assert again.column("note")[3].as_py() == "round 2 of 3"


def produced(acked_at: list[float], *, first: int = 0) -> Produced:
    count = len(acked_at)
    return Produced(
        offsets=np.arange(first, first + count), ids=np.arange(count), acked_at=np.array(acked_at, np.float64)
    )


def test_the_wait_of_a_select_is_the_age_of_the_first_record_that_it_lacks_and_its_own_time():
    log = {0: produced([1, 2, 3, 9], first=10), 1: produced([1, 2.5, 9])}
    selects = [
        Select(sent=4, answered=4.5, lacks={0: 13, 1: 2}),  # both lack what came later
        Select(sent=5, answered=5.25, lacks={0: 13, 1: 1}),  # the record of 2.5
        Select(sent=6, answered=6.5, lacks={0: 12, 1: 1}),  # that of 3, and the older one
        Select(sent=8, answered=9.5, lacks={0: 14, 1: 3}),  # nothing: it came before it was acknowledged
    ]
    waits = Watched(Seen({0: 10, 1: 0}), selects).waits(log, skip_s=1)
    assert waits.tolist() == [0.5, 2.75, 4.0, 1.5]


def test_selects_of_the_beginning_and_after_the_last_record_do_not_count():
    log = {0: produced([1, 2, 7])}
    at = [Select(sent=sent, answered=sent + 0.5, lacks={0: 3}) for sent in (1.5, 6.5, 7.5)]
    assert len(Watched(Seen({0: 0}), at).waits(log, skip_s=2)) == 1


def test_an_answer_without_rows_has_columns_of_whole_numbers():
    asked = list[str]()

    def query(sql: str) -> pa.Table:
        asked.append(sql)
        return pa.table({"p": [], "o": [], "id": []})  # as Trino's answers come, which are JSON

    def name(*_: object) -> str:
        return "h.t"

    reader = Reader(query=query, fresh=name, lake=name, peer=name)
    found = freshness._newest(reader, lambda: "h.t", ("p", "o"), {0: 5, 1: 7})
    assert asked == ["SELECT p, o, id FROM h.t WHERE (p = 0 AND o >= 5) OR (p = 1 AND o >= 7)"]
    seen = Seen({0: 5, 1: 7})
    seen.take(found, at=1.0)
    assert seen.next == {0: 5, 1: 7}


class Finished:
    """A producer that has ended."""

    running = False

    def stop(self) -> dict[int, Produced]:
        return {0: produced([1, 2, 3]), 1: produced([1])}


def test_an_engine_is_asked_from_where_its_last_answer_ended_until_all_came_back():
    asked = list[dict[int, int]]()
    answers = iter([[(0, 0), (0, 1)], [], [(0, 2), (1, 0)]])

    def newest(above: Mapping[int, int]) -> pa.Table:
        asked.append(dict(above))
        rows = next(answers)
        return pa.table({name: pa.array([row[i] for row in rows], pa.int64()) for i, name in enumerate("po")})

    watched, log = freshness._watch(newest, Finished(), {0: 0, 1: 0})  # type: ignore[arg-type]
    assert asked == [{0: 0, 1: 0}, {0: 2, 1: 0}, {0: 2, 1: 0}]
    assert [select.lacks for select in watched.selects] == [{0: 2, 1: 0}, {0: 2, 1: 0}, {0: 3, 1: 1}]
    assert all(select.sent <= select.answered for select in watched.selects)
    assert len(log[0].offsets) == 3


def test_what_is_repeated_and_fails_is_raised_at_the_end():
    ended = threading.Event()

    def fails() -> None:
        ended.set()
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"), repeated(fails, every_s=0.01) as took:
        assert ended.wait(60)
    assert took == []


def test_what_is_repeated_says_how_long_each_took():
    with repeated(lambda: None, every_s=0.01) as took:
        wait_until(lambda: len(took) >= 3, "it was repeated")
    assert all(one >= 0 for one in took)


# -- a run on Postgres and files ----------------------------------------------------------------------------------


@pytest.fixture
def run(make_database: Callable[[], str], tmp_path: Path) -> Iterator[Run]:
    dsn = make_database()
    migrate(dsn)
    settings = Settings(home=tmp_path, dsn=dsn, warehouse=(tmp_path / "lake").as_uri())
    with hp.Harness(Stores(settings)) as harness:
        made = Run(harness=harness, quick=True, say=lambda _: None)
        yield made
        made.close()
    assert not [path for path in (tmp_path / "lake").rglob("*") if path.is_file()], "tables leave files behind"


PARQUET = "ignore:Parquet writer option.*not implemented:UserWarning"  # Spark writes the batch view, and PyIceberg here


@pytest.mark.filterwarnings(PARQUET)
@pytest.mark.parametrize("spec", [{}, {"key": ["id"]}])
def test_a_table_that_is_filled_without_kafka_has_its_rows_in_all_tiers(run: Run, spec: dict[str, Any]):
    table = Filled(run, **spec)
    table.load(np.arange(40), files=2)
    table.tier(8)
    table.ingest(6)
    if spec:
        table.put(np.array([3, 41, 50]))
    read = hp.Table(run.harness, table.row).read(columns=["id", "note"])
    found = dict(zip(read.column("id").to_pylist(), read.column("note").to_pylist(), strict=True))
    newer = (3, 41, 50) if spec else ()
    assert found == {i: f"round 1 of {i}" if i in newer else f"order {i}" for i in range(54)}
    bounds = {(b.batch_hi, b.stream_hi) for b in table.head.bounds.values()}
    assert bounds == {(10, 12)}


@pytest.mark.long
@pytest.mark.filterwarnings(PARQUET)
def test_the_bench_measures_what_needs_neither_kafka_nor_spark(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(readers, "JARS", tmp_path / "jars")  # where no Trino is
    for module, name, size in (
        (loads, "QUICK_BUFFERED", 500), (loads, "QUICK_KEYS", 4_000), (loads, "QUICK_HOT", 2_000), (loads, "COLD", 1),
        (queries, "QUICK_ROWS", 4_000),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, size)
    figures = [
        figure
        for group in ("loads", "keyed", "hot", "bytes", "flight", "queries", "freshness_spark", "freshness_trino")
        for figure in engines.FIGURES[group](run)
    ]
    found = {one.figure: one for one in figures}
    assert [*found] == [
        "loads.unchanged.p50", "loads.1000_new.p50", "loads.100000_cold.p50", "loads.per_s", "loads.per_s_moving",
        "loads.keyed_10000_hot.p50", "loads.keyed_1000000_hot.p50",
        "bytes.cuts_to_buffered", "bytes.without_loads", "flight.rows_per_s", "flight.first_row_p50",
        *(f"queries.{kind}.duckdb.cut_to_batch_view" for kind in ("append", "keyed")),
    ]  # fmt: skip
    assert found["bytes.without_loads"].value == 0
    assert all(one.value for one in figures if one.figure != "bytes.without_loads")
