"""Ingest pauses at a limit of the buffer and continues by itself, over the reference and over Postgres."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from harness_pipelines.buffers.postgres.writer import Segments
from harness_pipelines.ledgers.postgres.views.growth import growth
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.pressure import BufferFull, Fill
from harness_pipelines.spec.table import BUFFER_BYTES_MIN, BufferRules
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines_tests.contract.stores_rig import RealRig, StoresRig

MB = 2**20


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def may_take(segments: Segments, table: TableRow, *, taken: int = 0) -> bool:
    try:
        segments.check_room(table, taken=taken)
    except BufferFull:
        return False
    return True


def used(real: RealRig, table: TableRow) -> int:
    [row] = real.ask("SELECT bytes FROM harness.buffer_use WHERE table_id = %s", [table.table_id])
    return int(row["bytes"])


def pauses(real: RealRig, *tables: TableRow) -> dict[int, str]:
    found = real.ask("SELECT table_id, limited FROM harness.buffer_pauses")
    return {row["table_id"]: row["limited"] for row in found if row["table_id"] in [t.table_id for t in tables]}


def limited(real: RealRig, table: TableRow, bytes_max: int) -> None:
    """Give *table* a limit in the ledger that no spec could have."""
    real.ask(
        "UPDATE harness.tables SET spec = jsonb_set(spec, '{buffer}', jsonb_build_object('max_bytes', %s::bigint)) "
        "WHERE table_id = %s RETURNING 1 AS done",
        [bytes_max, table.table_id],
    )


def give_back(real: RealRig, table: TableRow) -> None:
    """What tier and expire do: every closed segment is dropped."""
    real.ask(
        "UPDATE harness.segments SET state = 'retired', retired_at = clock_timestamp() WHERE table_id = %s AND "
        "state = 'closed' RETURNING 1 AS done",
        [table.table_id],
    )
    real.upkeep.drop_retired(table, retired_for=timedelta(0))


def test_a_table_without_a_limit_takes_what_comes(stores: StoresRig):
    table = stores.table()
    claim = stores.claim(table, Stage.INGEST)
    stores.ingest(table, {0: (0, 500)}, claim=claim)
    stores.segments.check_room(table, taken=10**9)


def test_a_limited_table_takes_what_fits(stores: StoresRig):
    table = stores.table(buffer={"max_bytes": BUFFER_BYTES_MIN})
    claim = stores.claim(table, Stage.INGEST)
    stores.ingest(table, {0: (0, 500)}, claim=claim)
    stores.segments.check_room(table, taken=0)


def test_a_full_table_pauses_by_name_and_continues_once_a_segment_was_dropped(real: RealRig):
    table, clock = real.table(), Clock()
    segments = Segments(real.database, bytes_max=10**12, clock=clock)
    real.ingest(table, {0: (0, 500)}, claim=real.claim(table, Stage.INGEST))
    full_at = used(real, table)
    limited(real, table, full_at)

    with pytest.raises(BufferFull, match=rf"{table.name}: ingest is paused: its buffer has .*`buffer.max_bytes`"):
        segments.check_room(table, taken=0)
    assert pauses(real, table) == {table.table_id: "table"}
    assert [s.state for s in segments.all(table)] == ["closed", "open"], "what is closed can be given back"
    shown = growth(real.readers, room_gb=1e6)[table.name]
    assert shown.paused is not None
    assert shown.to_json()["paused"]["max_bytes"] == full_at

    clock.now += 5
    assert not may_take(segments, table)
    assert len(segments.all(table)) == 2, "a pause closes one segment, however often it is asked"
    give_back(real, table)
    assert not may_take(segments, table), "sizes that were read a moment ago are not read again"
    clock.now += 5
    assert may_take(segments, table)
    assert pauses(real, table) == {}
    assert growth(real.readers, room_gb=1e6)[table.name].paused is None


def test_a_pause_goes_on_between_the_limit_and_the_share_at_which_it_ends(real: RealRig):
    table, clock = real.table(), Clock()
    segments = Segments(real.database, bytes_max=10**12, clock=clock)
    real.ingest(table, {0: (0, 500)}, claim=real.claim(table, Stage.INGEST))
    limited(real, table, used(real, table))
    assert not may_take(segments, table)

    for share, takes in ((1.1, False), (1.3, True), (1.1, True)):
        clock.now += 20
        limited(real, table, int(used(real, table) * share))
        assert may_take(segments, table) is takes, share


def test_another_limit_in_a_spec_holds_at_once(real: RealRig):
    table = real.table()
    segments = Segments(real.database, bytes_max=10**12, clock=Clock())
    real.ingest(table, {0: (0, 500)}, claim=real.claim(table, Stage.INGEST))
    assert may_take(segments, table)
    for bytes_max, takes in ((used(real, table), False), (2 * used(real, table), True)):
        limited(real, table, bytes_max)
        changed = table.spec.model_copy(update={"buffer": BufferRules.model_construct(max_bytes=bytes_max)})
        assert may_take(segments, replace(table, spec=changed)) is takes, bytes_max


def test_a_successor_goes_on_with_a_pause(real: RealRig):
    table = real.table()
    real.ingest(table, {0: (0, 500)}, claim=real.claim(table, Stage.INGEST))
    limited(real, table, used(real, table))
    first = Segments(real.database, bytes_max=10**12)
    assert not may_take(first, table)
    limited(real, table, int(used(real, table) * 1.1))

    successor = Segments(real.database, bytes_max=10**12)
    assert not may_take(successor, table)
    assert len(successor.all(table)) == 2, "the pause did not begin with the successor"


def test_the_limit_of_the_server_pauses_every_table_that_has_something_to_take(real: RealRig):
    large, small, clock = real.table(), real.table(), Clock()
    real.ingest(large, {0: (0, 500)}, claim=real.claim(large, Stage.INGEST))
    real.ingest(small, {0: (0, 5)}, claim=real.claim(small, Stage.INGEST))
    everything = sum(row["bytes"] for row in real.ask("SELECT bytes FROM harness.buffer_use"))
    segments = Segments(real.database, bytes_max=everything, clock=clock)

    with pytest.raises(
        BufferFull, match=rf"{small.name}: ingest is paused: the buffers of all tables.*HARNESS_BUFFER_GB"
    ):
        segments.check_room(small, taken=0)
    assert not may_take(segments, large)
    assert pauses(real, large, small) == {large.table_id: "server", small.table_id: "server"}

    roomy = Segments(real.database, bytes_max=everything * 10, clock=clock)
    assert may_take(roomy, small)
    assert may_take(roomy, large)
    assert pauses(real, large, small) == {}


def test_many_tables_share_one_look_at_the_sizes(real: RealRig, monkeypatch: pytest.MonkeyPatch):
    tables, clock = [real.table() for _ in range(3)], Clock()
    segments = Segments(real.database, bytes_max=10**12, clock=clock)
    asked: list[str] = []
    rows = real.database.rows

    def counted(name: str) -> list[dict[str, Any]]:
        asked.append(name)
        return rows(name)

    monkeypatch.setattr(real.database, "rows", counted)
    for _ in range(20):
        for table in tables:
            segments.check_room(table, taken=MB)
        clock.now += 0.4
    assert asked == ["buffer/room"]


def test_what_was_taken_lets_the_sizes_be_read_again(real: RealRig):
    table, clock = real.table(), Clock()
    segments = Segments(real.database, bytes_max=10**12, clock=clock)
    real.ingest(table, {0: (0, 5)}, claim=real.claim(table, Stage.INGEST))
    limited(real, table, 100 * MB)
    assert may_take(segments, table)
    limited(real, table, 1)
    clock.now += 0.5
    assert may_take(segments, table, taken=5 * MB)
    assert not may_take(segments, table, taken=10 * MB)


def test_a_limit_that_was_taken_away_ends_the_pause(real: RealRig):
    table, clock = real.table(), Clock()
    segments = Segments(real.database, bytes_max=10**12, clock=clock)
    limited(real, table, 1)
    real.ingest(table, {0: (0, 5)}, claim=real.claim(table, Stage.INGEST))
    assert not may_take(segments, table)
    real.ask(
        "UPDATE harness.tables SET spec = jsonb_set(spec, '{buffer}', to_jsonb('postgres'::text)) WHERE table_id = %s "
        "RETURNING 1 AS done",
        [table.table_id],
    )
    clock.now += 1
    assert may_take(segments, table)


def test_the_error_of_a_pause_says_the_same_until_it_ends(real: RealRig):
    table, clock = real.table(), Clock()
    segments = Segments(real.database, bytes_max=10**12, clock=clock)
    claim = real.claim(table, Stage.INGEST)
    real.ingest(table, {0: (0, 5)}, claim=claim)
    limited(real, table, 1)
    with pytest.raises(BufferFull) as first:
        segments.check_room(table, taken=0)
    real.ingest(table, {0: (5, 500)}, claim=claim)
    clock.now += 2
    with pytest.raises(BufferFull) as later:
        segments.check_room(table, taken=0)
    assert str(first.value) == str(later.value)
    assert Fill(limit="table", bytes=1, bytes_max=1).left == 0


def test_expire_closes_the_segment_of_a_table_that_gets_no_more_records(real: RealRig):
    stores: Any = real
    table = real.table(partitions=1, files=True)
    real.ingest(table, {0: (0, 2_000)}, claim=real.claim(table, Stage.INGEST))
    claim = real.claim(table, Stage.EXPIRE)

    def states(*, minutes: int) -> list[str]:
        real.ask(
            "UPDATE harness.segments SET created_at = created_at - make_interval(mins => %s) WHERE table_id = %s "
            "RETURNING 1 AS done",
            [minutes, table.table_id],
        )
        expire_once(stores, real.again(table), claim, look=False)
        return [s.state for s in real.segments.all(table)]

    assert states(minutes=0) == ["open"], "it is young"
    assert states(minutes=11) == ["open"], "its rows are not in the lake yet"
    real.move(table, {0: 0}, {0: 2_000})
    assert states(minutes=0)[-1:] == ["open"]
    assert len(real.segments.all(table)) == 2
    assert states(minutes=11)[-1:] == ["open"]
    assert len(real.segments.all(table)) == 2, "a segment without rows is not closed"
