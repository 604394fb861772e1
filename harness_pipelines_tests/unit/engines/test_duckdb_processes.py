"""The process of a query: what DuckDB does not count is bounded, and whatever ends it, the next query runs."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from harness_pipelines.engines.duckdb import processes
from harness_pipelines.engines.duckdb.child import STACK_BYTES, UNCOUNTED_BYTES
from harness_pipelines.engines.duckdb.database import BATCH_ROWS, Limits, QueryTooLarge, QueryTooSlow
from harness_pipelines.engines.duckdb.processes import Spares
from harness_pipelines.engines.duckdb.session import QueryDied, Session
from harness_pipelines.engines.duckdb.tables import TableDataset
from harness_pipelines.protocol.reading.selection import ReadColumn, Selection
from harness_pipelines.spec.types import Primitive
from harness_pipelines_tests.producer import wait_until

MEMORY_BYTES = 64 << 20
BASE_BYTES = 256 << 20  #: of a process that has run nothing yet
#: DuckDB counts nothing, or a part, of what these take.
UNCOUNTED = {
    "text that a function makes": "SELECT length(repeat('x', 1000000000))",
    "text of many rows": "SELECT max(length(repeat('x', 1000000 + i))) FROM range(2000) t(i)",
    "padded text": "SELECT length(printf('%1000000000d', 1))",
    "replaced text": "SELECT length(replace(repeat('x', 10000000), 'x', repeat('y', 100)))",
    "states of aggregates": "SELECT median(i), quantile_cont(i, 0.3) FROM range(50000000) t(i)",
    "the largest state": "SELECT mode(i) FROM range(30000000) t(i)",
    "doubled text": "WITH RECURSIVE t(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM t) SELECT max(length(s)) FROM t",
    "a list": "SELECT length(range(200000000))",
    "split text": "SELECT length(string_split(repeat('x,', 50000000), ','))",
    "rows on their way": "SELECT repeat('x', 1000000) || i FROM range(3000) t(i)",
}


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(Limits(memory_bytes=MEMORY_BYTES, threads=1)) as made:
        yield made


def ask(session: Session, sql: str) -> list[tuple[object, ...]]:
    with session.run(session.read(sql)) as found:
        return [tuple(one.values()) for one in found.read_all().to_pylist()]


def pid_of(session: Session) -> int:
    assert session._child is not None
    return session._child._pid


def data_limit(pid: int) -> int:
    [found] = re.findall(r"Max data size +(\d+)", Path(f"/proc/{pid}/limits").read_text())
    return int(found)


@pytest.mark.parametrize("what", UNCOUNTED)
def test_what_duckdb_does_not_count_is_bounded_and_the_next_query_runs(session, what):
    assert ask(session, "SELECT 1") == [(1,)]
    assert data_limit(pid_of(session)) < BASE_BYTES + MEMORY_BYTES + UNCOUNTED_BYTES + STACK_BYTES
    with pytest.raises((QueryTooLarge, QueryDied), match="64 MiB") as refused:
        ask(session, UNCOUNTED[what])
    assert "--memory" in refused.value.todo()
    assert ask(session, "SELECT 2") == [(2,)]


def test_wide_rows_come_in_batches_that_fit_into_the_memory_of_a_query():
    with Session(Limits(memory_bytes=512 << 20, threads=1)) as session:
        statement = session.read("SELECT repeat('x', 30000) || i AS s FROM range(10000) t(i)")
        with session.run(statement) as found:
            counts = [batch.num_rows for batch in found]
    assert sum(counts) == 10_000
    assert max(counts) <= BATCH_ROWS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_a_process_that_dies_is_named_and_the_next_query_gets_another(session, number):
    with pytest.raises(QueryDied, match=number.name), session.run(session.read("FROM range(10000000000)")) as found:
        os.kill(pid_of(session), number)
        for _ in found:
            pass
    assert ask(session, "SELECT 1") == [(1,)]


def test_a_query_that_is_not_read_to_its_end_leaves_no_process(session):
    with session.run(session.read("FROM range(10000000000)")) as found:
        pid = pid_of(session)
        next(iter(found))
    assert not Path(f"/proc/{pid}").exists()
    assert ask(session, "SELECT 1") == [(1,)]


def test_processes_get_no_settings_and_end_with_the_one_that_starts_them(monkeypatch):
    monkeypatch.setenv("HARNESS_DSN", "postgresql://reader:secret@db")
    template = processes.Template()
    monkeypatch.setattr(processes, "_TEMPLATE", template)
    with Session(Limits(threads=1)) as session:
        statement = session.read("SELECT sum(i) FROM range(1000000000000) t(i)")  # sends nothing for long
        pid = pid_of(session)
        assert b"HARNESS_" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert template._started is not None
        template._started[1].kill()
        with pytest.raises(QueryDied), session.run(statement):
            pass
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the process of the query ends")
        assert ask(session, "SELECT 2") == [(2,)]
    template.close()


def test_a_query_that_is_ended_when_it_is_over_ends_no_later_one(session):
    assert ask(session, "SELECT 1") == [(1,)]
    session.end(QueryTooSlow("late"))
    assert ask(session, "SELECT 2") == [(2,)]


def test_a_system_that_allows_no_more_processes_is_named(session, monkeypatch):
    monkeypatch.setattr(processes._TEMPLATE, "asked", lambda *_, **__: -11)
    with pytest.raises(processes.EngineAway, match="no process"):
        session.read("SELECT 1")


def test_a_scan_whose_read_fails_is_no_shorter_table(session):
    columns = [ReadColumn(name="i", type=Primitive("long"), required=True, field_id=1)]

    def reads(selection: Selection) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"i": pa.array([1, 2, 3], pa.int64())})
        raise OSError("the disk is gone")

    with (
        session.tables({"shop.orders": TableDataset(columns, reads)}),
        pytest.raises(OSError, match="the disk is gone"),
        session.run(session.read("SELECT count(*) FROM shop.orders")) as found,
    ):
        found.read_all()
    assert ask(session, "SELECT 1") == [(1,)]


def test_several_sessions_run_at_once(session):
    others = [Session(Limits(threads=1)) for _ in range(3)]
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda one=one: found.append(ask(one, "SELECT sum(i) FROM range(100000) t(i)")))
        for one in others
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [int(rows[0][0]) for rows in found] == [4_999_950_000] * 3  # type: ignore[index]
    for one in others:
        one.close()


def test_a_query_takes_a_process_that_waits_and_the_next_one_starts_meanwhile():
    limits = Limits(memory_bytes=MEMORY_BYTES, threads=1)
    spares = Spares(limits, count=1)
    with closing(spares):
        spares.fill()
        [waiting] = spares._waiting
        with Session(limits, spares=spares) as session:
            assert ask(session, "SELECT 1") == [(1,)]
            assert pid_of(session) == waiting._pid
        wait_until(lambda: bool(spares._waiting), "the next one waits")
        [waiting] = spares._waiting
        os.kill(waiting._pid, signal.SIGKILL)
        wait_until(lambda: not waiting.is_alive, "it has ended")
        with Session(limits, spares=spares) as session:
            assert ask(session, "SELECT 2") == [(2,)]
            assert pid_of(session) != waiting._pid
    assert not spares._waiting


def test_a_process_that_starts_while_the_spares_close_is_none_of_them():
    spares = Spares(Limits(memory_bytes=MEMORY_BYTES, threads=1))
    spares.close()
    spares.fill()
    assert not spares._waiting
