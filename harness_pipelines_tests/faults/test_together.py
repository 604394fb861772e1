"""Tables whose records are committed in one transaction: it fails, or its process dies, and no record is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from harness_pipelines import faults
from harness_pipelines.buffers.postgres.writer import SegmentWriter
from harness_pipelines.errors import OutcomeUnknown
from harness_pipelines.ports.buffer import WriterUnit
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST, TableRig, running

TABLES = 4
LEASE = timedelta(seconds=3)
Act = Callable[[SegmentWriter, Sequence[WriterUnit], Callable[[], list[int]]], list[int]]


class Together:
    """Does *act* in place of the first transaction of several tables, and counts what is like it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Act | None = None) -> None:
        self.tables = 0  #: of the largest transaction
        self.done = 0
        real, left = SegmentWriter.commit_all, [act] if act else []

        def commit_all(writer: SegmentWriter, units: Sequence[WriterUnit], *, confirm: Any) -> list[int]:
            def commit() -> list[int]:
                return real(writer, units, confirm=confirm)

            self.tables = max(self.tables, len(units))
            self.done += len(units) > 1
            if len(units) > 1 and left:
                return left.pop()(writer, units, commit)
            return commit()

        monkeypatch.setattr(SegmentWriter, "commit_all", commit_all)


def worker_of(rigs: Sequence[TableRig]) -> Worker:
    return Worker(rigs[0].stores, [rig.table.row for rig in rigs], WorkerOptions(stages=INGEST, lease=LEASE))


def produce_until(rigs: Sequence[TableRig], is_over: Callable[[], bool], what: str) -> None:
    """Produce to all tables until *is_over*."""

    def found() -> bool:
        for rig in rigs:
            rig.produce(1)
        return is_over()

    wait_until(found, what)


@pytest.fixture
def rigs(make_rig: MakeRig) -> list[TableRig]:
    return [make_rig(partitions=1) for _ in range(TABLES)]


def test_tables_that_get_records_at_once_share_transactions(rigs: list[TableRig], monkeypatch: pytest.MonkeyPatch):
    seen = Together(monkeypatch)
    with running(worker_of(rigs)):
        produce_until(rigs, lambda: seen.tables > 1 and seen.done > 3, "several tables are committed together")
        for rig in rigs:
            rig.await_exact()


@pytest.mark.parametrize("point", ["ingest.in_transaction", "ingest.after_commit"])
def test_a_process_that_dies_in_a_transaction_of_several_tables(
    rigs: list[TableRig], monkeypatch: pytest.MonkeyPatch, point: str
):
    def dies(_writer: SegmentWriter, _units: Sequence[WriterUnit], commit: Callable[[], list[int]]) -> list[int]:
        faults.arm_from({"HARNESS_FAULT": f"{point}=raise"})
        return commit()

    Together(monkeypatch, dies)
    first = worker_of(rigs)
    with suppress(faults.FaultInjected), running(first):
        produce_until(rigs, lambda: first.defect is not None, "it dies there")
    assert isinstance(first.defect, faults.FaultInjected)
    faults.disarm()
    with running(worker_of(rigs)):
        for rig in rigs:
            rig.produce(2)
            rig.await_exact()


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "rolled back"])
def test_the_answer_to_a_transaction_of_several_tables_is_lost(
    rigs: list[TableRig], monkeypatch: pytest.MonkeyPatch, is_kept: bool
):
    real = SegmentWriter._commit

    def loses(_writer: SegmentWriter, _units: Sequence[WriterUnit], commit: Callable[[], list[int]]) -> list[int]:
        def lost(writer: SegmentWriter, connection: Any) -> None:
            monkeypatch.setattr(SegmentWriter, "_commit", real)
            if is_kept:
                real(writer, connection)
            else:
                connection.rollback()
            writer.close()
            raise OutcomeUnknown("COMMIT was sent, its answer was lost")

        monkeypatch.setattr(SegmentWriter, "_commit", lost)
        return commit()

    seen = Together(monkeypatch, loses)
    with running(worker_of(rigs)):
        produce_until(rigs, lambda: seen.done > 1, "several tables are committed together again")
        for rig in rigs:
            rig.await_exact()


def test_a_table_that_is_locked_holds_up_no_other_one(rigs: list[TableRig], monkeypatch: pytest.MonkeyPatch):
    seen = Together(monkeypatch)
    held, *others = rigs
    assert held.stores.settings.dsn is not None
    with running(worker_of(rigs)), psycopg.connect(held.stores.settings.dsn) as connection:
        produce_until(rigs, lambda: seen.tables > 1, "several tables are committed together")
        connection.execute("SELECT FROM harness.segments WHERE table_id = %s FOR UPDATE", [held.table.row.table_id])
        for rig in rigs:
            rig.produce(2)
        for rig in others:
            rig.await_exact()
        connection.rollback()
        held.await_exact()
