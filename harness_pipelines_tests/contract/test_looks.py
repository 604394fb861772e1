"""What is looked at without a lease: rows of a few keys in the buffer, and the events of a table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from harness_pipelines.buffers.postgres.newest import Glances
from harness_pipelines.ledgers.postgres.events import Outbox
from harness_pipelines.ports.decoded import DecodedRange, with_coordinates
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.read.point import HotRows
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig, agrees

KEYED: dict[str, Any] = {"columns": {"id": {"type": "long", "required": True}, "s": "string"}, "key": ["id"]}


@pytest.fixture
def keyed(real: RealRig) -> TableRow:
    return real.table(partitions=2, **KEYED)


def put(real: RealRig, table: TableRow, partition: int, low: int, ids: list[int], *, into: Any = None) -> None:
    """A row at each offset from *low* on, which says where it is."""
    claim = real.claim(table, Stage.INGEST)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "s": pa.array([f"{partition}:{low + n}" for n in range(len(ids))]),
        "_op": pa.array(["put"] * len(ids)),
    }
    rows = with_coordinates(
        pa.table(columns),
        partition=partition,
        offsets=pa.array(range(low, low + len(ids)), pa.int64()),
        timestamps_ms=pa.array([1_700_000_000_000] * len(ids), pa.int64()),
        columns=table.spec.columns,
    )
    unit = DecodedRange(partition=partition, low=low, high=low + len(ids), rows=rows, refused=[], leader_epoch=None)
    writer = real.writer(table, claim)
    writer.commit(into or real.segments.open_segment(table), [unit], confirm=agrees)
    writer.close()
    real.ledger.release(claim)


def test_a_key_is_shown_as_its_newest_row_in_the_buffer_says(real: RealRig, keyed: TableRow):
    put(real, keyed, 0, 0, [1, 2, 3, 1])
    put(real, keyed, 1, 0, [7, 8, 7])
    real.segments.rotate(keyed)
    put(real, keyed, 0, 4, [2, 2, 4])
    real.move(keyed, {0: 0}, {0: 3})
    stores: Any = SimpleNamespace(glances=Glances(real.readers), tables=real.ledger)
    hot = HotRows(stores)
    for _ in range(2):  # the second time by what the first look has found
        found = hot.rows(keyed, [1, 2, 4, 7, 8])
        assert found is not None
        assert [row and row["s"] for row in found] == ["0:3", "0:5", "0:6", "1:2", "1:1"]
    assert hot.rows(keyed, [3]) is None, "it lies in the lake"


def test_a_look_without_a_lease_sees_what_a_read_sees(real: RealRig, keyed: TableRow):
    for number in range(11):  # more than a digit: names do not sort as numbers do
        put(real, keyed, 0, number, [number])
        real.segments.rotate(keyed)
    put(real, keyed, 1, 0, [20, 21])
    real.move(keyed, {0: 0}, {0: 3})
    real.move(keyed, {0: 3}, {0: 4})
    retired = real.segments.all(keyed)[6].name  # by somebody else: expire retires none that is read
    real.ask("UPDATE harness.segments SET state = 'retired' WHERE segment = %s", [retired])
    glanced, _ = Glances(real.readers).look(keyed)
    leased = real.leases.look(keyed, holder="me", lease=HOUR)
    assert (glanced.version, glanced.bounds) == (leased.version, leased.bounds)
    assert [one.name for one in glanced.segments] == [one.name for one in leased.segments]
    names = [one.name for one in real.segments.all(keyed)]
    assert [one.name for one in leased.segments] == [name for name in names[4:] if name != retired]


def test_events_come_in_order_behind_the_one_that_is_named(real: RealRig, keyed: TableRow):
    real.move(keyed, {0: 0}, {0: 0})
    for number in (1001, 1000):
        real.ask(
            "INSERT INTO harness.outbox (table_id, seq, event, payload) VALUES (%s, %s, 'a test', '{}')",
            [keyed.table_id, number],
        )
    news: Any = None  # nobody waits
    outbox, wanted = Outbox(real.readers, news), real.outbox(keyed)
    assert len(wanted) >= 3
    for after, found in ((0, wanted), (wanted[0][0], wanted[1:]), (1000, wanted[-1:]), (1001, [])):
        assert [(e.seq, e.event) for e in outbox.events(keyed, after=after, follow=False)] == found
