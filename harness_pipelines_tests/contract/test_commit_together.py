"""Units of several tables in one transaction: all or none, each under its claim, over the reference and Postgres."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from harness_pipelines.drivers.postgres import LedgerBusy
from harness_pipelines.ports.buffer import WriterUnit
from harness_pipelines.ports.errors import TopicRecreated
from harness_pipelines.protocol.bounds import BoundaryGap
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.schema.schemas import SchemaMoved
from harness_pipelines.protocol.segments import SegmentClosed
from harness_pipelines_tests.contract.stores_rig import RealRig, StoresRig, agrees, decoded

SOON_S = 5.0  #: on a busy machine; locks of one table are waited for without end


class Group:
    """Two tables with their claims and writers."""

    def __init__(self, stores: StoresRig) -> None:
        self.stores = stores
        self.tables = [stores.table(), stores.table()]
        self.claims = [stores.claim(table, Stage.INGEST) for table in self.tables]
        self.writers = [stores.writer(*one) for one in zip(self.tables, self.claims, strict=True)]

    def unit(self, at: int, low: int, high: int) -> WriterUnit:
        table = self.tables[at]
        ranges = [decoded(table, 0, low, high)]
        return WriterUnit(writer=self.writers[at], segment=self.stores.segments.open_segment(table), ranges=ranges)

    def commit(self, *units: WriterUnit) -> list[int]:
        return self.writers[0].commit_all(units, confirm=agrees)

    def positions(self) -> list[int]:
        return [self.stores.segments.positions(table)[0].buffer_hi for table in self.tables]

    def rows(self) -> list[Counter[tuple[int, int]]]:
        return [sum(self.stores.buffered(table).values(), Counter()) for table in self.tables]

    def rows_of_moves(self) -> list[list[Any]]:
        return [[m["rows"] for m in self.stores.ledger.moves(t, stage=Stage.INGEST)] for t in self.tables]


@pytest.fixture
def group(stores: StoresRig) -> Iterator[Group]:
    made = Group(stores)
    with ExitStack() as closed:
        for writer in made.writers:
            closed.enter_context(closing(writer))
        yield made


def test_units_of_several_tables_are_committed_in_one_transaction(group: Group):
    assert group.commit(group.unit(0, 0, 5), group.unit(1, 0, 3)) == [5, 3]
    assert group.commit(group.unit(1, 3, 4), group.unit(0, 5, 7)) == [1, 2], "in the order in which they were given"

    assert group.positions() == [7, 4]
    assert group.rows() == [Counter((0, o) for o in range(7)), Counter((0, o) for o in range(4))]
    assert [sum(rows) for rows in group.rows_of_moves()] == [7, 4]


def test_after_a_common_commit_each_writer_goes_on_by_itself(group: Group):
    group.commit(group.unit(0, 0, 5), group.unit(1, 0, 3))
    alone = group.unit(1, 3, 6)

    assert group.writers[1].commit(alone.segment, alone.ranges, confirm=agrees) == 3
    assert group.positions() == [5, 6]
    assert [sum(rows) for rows in group.rows_of_moves()] == [5, 6]


def test_a_unit_that_does_not_fit_keeps_all_of_them_out(group: Group):
    with pytest.raises(BoundaryGap):
        group.commit(group.unit(0, 0, 5), group.unit(1, 2, 3))
    assert group.positions() == [0, 0]
    assert group.rows() == [Counter(), Counter()]
    assert group.commit(group.unit(0, 0, 5), group.unit(1, 0, 3)) == [5, 3], "the writers are still good"


def test_a_unit_whose_claim_was_taken_over_keeps_all_of_them_out(group: Group, stores: StoresRig):
    asleep, _ = stores.taken_over(table := stores.table(), Stage.INGEST)
    group.tables.append(table)
    group.writers.append(stores.writer(table, asleep))

    with pytest.raises(FencedOut):
        group.commit(group.unit(0, 0, 5), group.unit(2, 0, 3))
    assert group.positions() == [0, 0, 0]
    assert group.rows() == [Counter()] * 3
    group.writers[2].close()


def test_a_closed_segment_and_another_schema_keep_all_of_them_out(group: Group, stores: StoresRig):
    closed = group.unit(1, 0, 3)
    stores.segments.rotate(group.tables[1])
    with pytest.raises(SegmentClosed):
        group.commit(group.unit(0, 0, 5), closed)
    late = group.unit(1, 0, 3)
    stores.evolve(group.tables[1])
    with pytest.raises(SchemaMoved):
        group.commit(group.unit(0, 0, 5), late)
    assert group.positions() == [0, 0]
    assert group.rows()[0] == Counter()


def test_what_is_not_confirmed_is_not_committed(group: Group):
    def other() -> None:
        raise TopicRecreated("t", expected_id="i", found_id="j")

    with pytest.raises(TopicRecreated):
        group.writers[0].commit_all([group.unit(0, 0, 5), group.unit(1, 0, 3)], confirm=other)
    assert group.positions() == [0, 0]


# -- Postgres alone -----------------------------------------------------------------------------------------


@pytest.fixture
def real_group(real: RealRig) -> Iterator[Group]:
    made = Group(real)
    with ExitStack() as closed:
        for writer in made.writers:
            closed.enter_context(closing(writer))
        yield made


def test_a_table_that_is_held_up_does_not_hold_up_the_others(real_group: Group, real: RealRig):
    units = [real_group.unit(0, 0, 5), real_group.unit(1, 0, 3)]
    with real.owner.transaction() as connection:
        connection.execute("SELECT FROM harness.segments WHERE segment = %s FOR UPDATE", [units[1].segment.name])
        began = time.monotonic()
        with pytest.raises(LedgerBusy):
            real_group.commit(*units)
        assert time.monotonic() < began + SOON_S
        assert real_group.writers[0].commit(units[0].segment, units[0].ranges, confirm=agrees) == 5
    assert real_group.positions() == [5, 0]


def test_transactions_that_were_given_the_same_tables_in_two_orders_do_not_lock_each_other_out(
    real_group: Group, real: RealRig
):
    others = [real.writer(*one) for one in zip(real_group.tables, real_group.claims, strict=True)]
    failed: list[BaseException] = []

    def take(writers: list[Any], order: list[int]) -> None:
        for _ in range(10):
            found = [real_group.unit(at, position, position + 1) for at, position in enumerate(real_group.positions())]
            units = [WriterUnit(writer=writers[at], segment=found[at].segment, ranges=found[at].ranges) for at in order]
            try:
                writers[0].commit_all(units, confirm=agrees)
            except BoundaryGap:  # the other one was first
                pass
            except BaseException as error:
                failed.append(error)

    threads = [
        threading.Thread(target=take, args=(real_group.writers, [0, 1])),
        threading.Thread(target=take, args=(others, [1, 0])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for writer in others:
        writer.close()
    assert not failed
    first, second = real_group.positions()
    assert first == second >= 10
    assert real_group.rows() == [Counter((0, o) for o in range(first))] * 2


def test_each_table_of_a_common_commit_is_announced(real_group: Group, real: RealRig):
    with psycopg.connect(real.owner.dsn, autocommit=True) as connection:
        connection.execute("LISTEN harness")
        real_group.commit(real_group.unit(0, 0, 5), real_group.unit(1, 0, 3))
        wanted = {str(table.table_id) for table in real_group.tables}
        heard: set[str] = set()
        for note in connection.notifies(timeout=SOON_S):
            heard.add(note.payload)
            if heard >= wanted:
                break
    assert heard >= wanted
