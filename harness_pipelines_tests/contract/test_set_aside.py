"""Which of the records that were quarantined are listed and counted, and whose bytes are moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from harness_pipelines.lakes.iceberg.read.scan import scan
from harness_pipelines.lakes.iceberg.write import quarantine
from harness_pipelines.ledgers.postgres.views import quarantine as listing
from harness_pipelines.ledgers.postgres.views.quarantine import counts_set_aside, kept, set_aside
from harness_pipelines.ports.errors import MovedMeanwhile
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.repair import Adoption
from harness_pipelines.ports.upkeep import BytesMoved
from harness_pipelines.protocol.changes.corrections import BEFORE_ALL, Coordinate, Wanted
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery, LakeStats
from harness_pipelines_tests.contract.stores_rig import RealRig

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HALF = 2**19  #: bytes; half of what a table may keep in Postgres here


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One that was quarantined, as the ledger has it."""

    at: Coordinate
    reason: str = "malformed"
    detail: str = "no JSON"
    state: str = "held"
    value: bytes | None = b"{"
    schema_id: int | None = None  #: noted when the bytes went to the lake
    sent: datetime | None = NOON  #: None: the record has no time
    recorded_at: datetime = NOON
    timed: bool = True  #: False: from before times were kept

    @property
    def time(self) -> datetime | None:
        return self.sent if self.timed else self.recorded_at

    @property
    def schema(self) -> int | None:
        if self.schema_id is not None or self.value is None or len(self.value) < 5 or self.value[0]:
            return self.schema_id
        return int.from_bytes(self.value[1:5])


RECORDS = [
    Record(at=(0, 1)),
    Record(at=(0, 2), reason="out_of_range", detail="column n is 3000000000"),
    Record(at=(0, 3), value=b"\0\0\0\0\7rest", sent=NOON - SECOND),
    Record(at=(0, 9), value=b"\0\0\0\0\x08rest", state="dropped", recorded_at=NOON + SECOND),
    Record(at=(1, 1), value=None, schema_id=7, sent=NOON + SECOND, recorded_at=NOON - SECOND),
    Record(at=(1, 2), state="replayed", sent=None, detail="column n is no number"),
    Record(at=(1, 3), reason="null_value", value=None, timed=False, recorded_at=NOON - SECOND),
    Record(at=(1, 7), timed=False),
    Record(at=(2, 1), reason="out_of_range", state="dropped", value=b"\1\0\0\0\7"),
]
FILTERS = [
    Wanted(),
    Wanted(partition=1),
    Wanted(offset=1),
    Wanted(partition=0, offset=3),
    Wanted(reasons=("out_of_range",)),
    Wanted(reasons=("out_of_range", "null_value")),
    Wanted(detail="column n"),
    Wanted(detail="no JSON"),  # all of it
    Wanted(schema_id=7),
    Wanted(schema_id=8),
    Wanted(since=NOON),
    Wanted(until=NOON),
    Wanted(since=NOON - SECOND, until=NOON),
    Wanted(set_aside_since=NOON),
    Wanted(set_aside_until=NOON),
    Wanted(set_aside_since=NOON, set_aside_until=NOON + SECOND),
]


def holds(one: Record, wanted: Wanted) -> bool:
    """What `Wanted` says."""
    return (
        (not wanted.reasons or one.reason in wanted.reasons)
        and wanted.partition in {None, one.at[0]}
        and wanted.offset in {None, one.at[1]}
        and (wanted.detail is None or wanted.detail in one.detail)
        and wanted.schema_id in {None, one.schema}
        and (wanted.since is None or (one.time is not None and one.time >= wanted.since))
        and (wanted.until is None or (one.time is not None and one.time < wanted.until))
        and (wanted.set_aside_since is None or one.recorded_at >= wanted.set_aside_since)
        and (wanted.set_aside_until is None or one.recorded_at < wanted.set_aside_until)
    )


def insert(real: RealRig, table: TableRow, records: Sequence[Record]) -> None:
    for one in records:
        sent = None if not one.timed else -1 if one.sent is None else int(one.sent.timestamp() * 1000)
        real.ask(
            'INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, state, value, schema_id, '
            "kafka_ms, recorded_at, in_lake) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [
                *(table.table_id, *one.at, one.reason, one.detail, one.state, one.value, one.schema_id, sent),
                *(one.recorded_at, one.schema_id is not None),
            ],
        )


@pytest.fixture
def table(real: RealRig) -> TableRow:
    made = real.table(partitions=3)
    insert(real, made, RECORDS)
    return made


def test_records_that_are_asked_for_are_listed_in_order_and_counted(real: RealRig, table: TableRow):
    for wanted in FILTERS:
        expected = [one for one in RECORDS if holds(one, wanted)]
        assert expected
        listed = set_aside(real.readers, table, wanted, limit=100)
        assert [(one["partition"], one["offset"]) for one in listed] == [one.at for one in expected], wanted
        counts = counts_set_aside(real.readers, table, wanted)
        assert {(c["state"], c["reason"], c["partition"]): c["records"] for c in counts} == Counter(
            (one.state, one.reason, one.at[0]) for one in expected
        ), wanted


def test_records_of_a_state_are_listed_and_those_behind_one_that_was_seen(real: RealRig, table: TableRow):
    def listed(**words: Any) -> list[Coordinate]:
        found = set_aside(real.readers, table, Wanted(), **{"limit": 100, **words})
        return [(one["partition"], one["offset"]) for one in found]

    for state in ("held", "dropped", "replayed"):
        assert listed(state=state) == [one.at for one in RECORDS if one.state == state]
    every = [one.at for one in RECORDS]
    assert listed(limit=4) == every[:4]
    for at, seen in enumerate(every):
        assert listed(after=seen) == every[at + 1 :]
        assert listed(after=seen, limit=1) == every[at + 1 : at + 2]
    assert listed(after=BEFORE_ALL) == every


def test_counts_have_what_is_held_first_then_by_reason_and_partition(real: RealRig, table: TableRow):
    found = [(one["state"], one["reason"], one["partition"]) for one in counts_set_aside(real.readers, table, Wanted())]
    order = ["held", "replayed", "dropped"]
    assert found == sorted(found, key=lambda one: (order.index(one[0]), *one[1:]))
    assert {state for state, _, _ in found} == set(order)


def test_a_record_whose_key_or_value_is_larger_than_is_decoded_is_not_whole(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(listing, "WHOLE_BYTES_MAX", 9)
    for offset, sizes in ((11, (10, 1)), (12, (1, 10)), (13, (9, 9))):
        real.ask(
            'INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, key, value) '
            "VALUES (%s, 2, %s, 'malformed', 'no JSON', %s, %s)",
            [table.table_id, offset, *(bytes(size) for size in sizes)],
        )
    listed = set_aside(real.readers, table, Wanted(partition=2), after=(2, 10), limit=9)
    assert [(one["offset"], one["whole"]) for one in listed] == [(11, False), (12, False), (13, True)]


def test_what_is_kept_and_where_is_said_of_the_table_alone(real: RealRig, table: TableRow):
    found = kept(real.readers, table)
    sizes = real.ask("SELECT bytes FROM harness.quarantine_in_postgres WHERE table_id = %s", [table.table_id])
    assert (found["in_lake"], found["in_postgres"]) == (1, len(RECORDS) - 1)
    assert found["bytes"] == sum(one["bytes"] for one in sizes)
    assert (found["metadata"], found["name"]) == (None, None)


# -- bytes that go to the lake ------------------------------------------------------------------------------


@pytest.fixture
def full(real: RealRig) -> TableRow:
    """A table with six records of half a megabyte each, of which one may stay; the oldest has the highest offset."""
    made = real.table(files=True, quarantine_mb=1)
    ages = [Record(at=(n % 2, 10 + n), recorded_at=NOON - n * SECOND) for n in range(6)]
    insert(real, made, ages)
    sized(real, made, HALF)
    return made


def sized(real: RealRig, table: TableRow, size: int, *, offset: int | None = None) -> None:
    """Let records have *size* bytes exactly."""
    real.ask(
        "UPDATE harness.quarantine SET "
        "value = convert_to(rpad(\"offset\" || ':', (%(size)s - pg_column_size(headers))::int, 'x'), 'UTF8') "
        'WHERE table_id = %(table)s AND (%(offset)s::bigint IS NULL OR "offset" = %(offset)s)',
        {"size": size, "table": table.table_id, "offset": offset},
    )


def in_postgres(real: RealRig, table: TableRow) -> set[int]:
    found = real.ask(
        'SELECT "offset" FROM harness.quarantine WHERE table_id = %s AND value IS NOT NULL', [table.table_id]
    )
    return {int(one["offset"]) for one in found}


@pytest.fixture
def claim(real: RealRig, full: TableRow) -> Claim:
    return real.claim(full, Stage.EXPIRE)


def test_the_oldest_go_until_half_of_the_limit_is_left_and_not_one_more(
    real: RealRig, full: TableRow, claim: Claim, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(quarantine, "BATCH_RECORDS", 2)
    told = real.raw_bytes.move(full, claim, dry_run=True)
    assert told == BytesMoved(records=5, bytes=5 * HALF)
    assert real.raw_bytes.move(full, claim) == told
    assert in_postgres(real, full) == {10}
    insert(real, full, [Record(at=(0, 30), recorded_at=NOON + SECOND), Record(at=(0, 31), recorded_at=NOON - SECOND)])
    for offset in (30, 31):
        sized(real, full, HALF, offset=offset)
    assert real.raw_bytes.move(full, claim).records == 2, "they have one folder"
    assert in_postgres(real, full) == {30}


def test_rows_of_a_file_are_in_order_so_that_few_are_read_for_one_record(real: RealRig, full: TableRow, claim: Claim):
    real.raw_bytes.move(full, claim)
    [found] = real.ask("SELECT quarantine_metadata AS m FROM harness.tables WHERE table_id = %s", [full.table_id])
    columns = [LakeColumn(name=n, field_id=None) for n in ("_kafka_partition", "_kafka_offset")]
    query = LakeQuery(table=full.name, version=0, ranges={0: (0, 99), 1: (0, 99)}, columns=columns)
    for part in scan(found["m"], query, LakeStats()):
        places = list(zip(*(part[c.name].to_pylist() for c in columns), strict=True))
        assert places == sorted(places)


def test_records_that_are_too_large_to_be_moved_stay_and_the_largest_that_is_not_goes(
    real: RealRig, full: TableRow, claim: Claim, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(quarantine, "RECORD_BYTES_MAX", HALF)
    for offset in (13, 14):
        sized(real, full, HALF + 1, offset=offset)
    told = real.raw_bytes.move(full, claim, dry_run=True)
    assert told == BytesMoved(records=3, bytes=3 * HALF, stay=("0:14", "1:13"))
    assert real.raw_bytes.move(full, claim) == told
    assert in_postgres(real, full) == {10, 13, 14}
    insert(real, full, [Record(at=(0, 30))])
    sized(real, full, HALF - 1, offset=30)
    assert real.raw_bytes.move(full, claim).records == 0, "what cannot be moved does not count"


def test_bytes_that_went_to_the_lake_after_their_records_were_listed_are_read_there(
    real: RealRig, full: TableRow, claim: Claim
):
    """Another table has records at the same coordinates."""
    listed = set_aside(real.readers, full, Wanted(), limit=9)
    before = {one["offset"]: one["value"] for one in real.with_bytes(full, listed)}
    assert set(before) == set(range(10, 16)) and all(len(value) > HALF // 2 for value in before.values())
    real.raw_bytes.move(full, claim)
    assert {one["offset"]: one["value"] for one in real.with_bytes(full, listed)} == before


def test_a_record_that_somebody_else_has_moved_is_not_moved_again(real: RealRig, full: TableRow, claim: Claim):
    mover = real.raw_bytes
    place = mover._place(full)
    key = {"table_id": full.table_id, "one_max": HALF, "bytes": HALF, "records": 1}
    batch = real.database.rows("quarantine/oldest", key, binary=True)
    new = mover._with(full, place, batch)
    mover._move(full, claim, batch)
    late = replace(place, metadata=mover._place(full).metadata)
    for old in (place, late):  # who does not know of it, and who does
        with pytest.raises(MovedMeanwhile):
            mover.ledger.publish(full, claim, batch, old=old, new=new, schema_ids=[None])
    assert in_postgres(real, full) == {10, 11, 12, 13, 14}


def test_bytes_are_moved_on_top_of_what_was_moved_before_and_of_nothing_older(
    real: RealRig, full: TableRow, claim: Claim
):
    """Else the metadata that is published lacks what somebody else moved meanwhile."""
    mover, key = real.raw_bytes, {"table_id": full.table_id, "one_max": HALF, "records": 2}
    place = mover._place(full)
    first, second = ([one] for one in real.database.rows("quarantine/oldest", {**key, "bytes": 2 * HALF}, binary=True))
    late = mover._with(full, place, second)
    mover._move(full, claim, first)
    with pytest.raises(MovedMeanwhile):
        mover.ledger.publish(full, claim, second, old=place, new=late, schema_ids=[None])
    assert len(in_postgres(real, full)) == 5


def test_each_quarantine_has_its_own_folder_which_is_forgotten_when_its_table_is_adopted(
    real: RealRig, full: TableRow, claim: Claim
):
    other = real.table(files=True)

    def folders() -> dict[int, str | None]:
        found = real.ask("SELECT table_id, quarantine_folder AS folder FROM harness.tables")
        return {one["table_id"]: one["folder"] for one in found}

    real.raw_bytes.move(full, claim)
    chosen = folders()
    assert chosen[full.table_id] and chosen[other.table_id] is None
    real.ledger.release(claim)
    head = real.ledger.head(full)
    adoption = Adoption(
        pointer=real.ledger.pointer(full, "stream"), head=head.stream, starts={0: 0}, stream_hi={0: 0}, buffer_hi={0: 0}
    )
    real.reconciler.adopt(full, adoption, lost=(), retained_from=1)
    assert folders() == {**chosen, full.table_id: None}
    insert(real, full, [*(Record(at=(0, 30 + n)) for n in range(3)), Record(at=(1, 31), recorded_at=NOON + SECOND)])
    for n in range(3):
        sized(real, full, HALF, offset=30 + n)
    assert real.raw_bytes.move(full, real.claim(full, Stage.EXPIRE)).records
    assert folders()[full.table_id] is None, "expire looks for no orphans there any more"
