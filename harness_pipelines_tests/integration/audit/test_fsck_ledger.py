"""fsck names every row of the ledger that was changed by hand, by the invariant that it breaks."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from harness_pipelines.ledgers.postgres.named_snapshots import SnapshotChanged
from harness_pipelines.ports.errors import MetadataMissing
from harness_pipelines.protocol.changes.corrections import Wanted
from harness_pipelines.stages.replay.quarantine import drop
from harness_pipelines_tests.integration.audit.conftest import (
    Rig,
)
from harness_pipelines_tests.integration.audit.damage import (
    broken,
    of,
    restored,
)

# -- the ledger ---------------------------------------------------------------------------------------------

Planted = Callable[[Rig], str]


def _move(rig: Rig, version: int) -> str:
    return f"move_id = (SELECT move_id FROM harness.versions WHERE {of(rig)} AND version = {version})"


def _refused(said: str) -> tuple[Planted, dict[str, str]]:
    where = 'partition = 1 AND "offset" = 22'
    return (
        lambda rig: f"UPDATE harness.quarantine SET {said} WHERE {of(rig)} AND {where}",
        {"S32": "partition 1, offset 22: the record in quarantine is not what the harness wrote"},
    )


REFUSED_FAULTS = {
    "the headers": """headers = '[["trace", "00"]]'""",
    "the reason": "reason = 'null_key'",
    "the detail": "detail = detail || ' '",
    "the key": "key = 'k'",
    "the value": "value = value || ' '",
    "the time": "kafka_ms = kafka_ms + 1",
    "the day": "recorded_at = recorded_at - interval '1 day'",
    "the state": "state = 'dropped'",
}
LEDGER_FAULTS: dict[str, tuple[Planted, dict[str, str]]] = {
    "a version's row is deleted": (
        lambda rig: f"DELETE FROM harness.versions WHERE {of(rig)} AND version = 3",
        {"S3": "no row for 3; the head is 4", "S9": "is committed, but no version has it"},
    ),
    "the head's row is deleted": (
        lambda rig: f"DELETE FROM harness.versions WHERE {of(rig)} AND version = 4",
        {
            "S3": "version 3 published 0 and 40",
            "S7": "version 3 published",
            "S9": "no version has it",
            "S31": "its files in the head hold 0",
        },
    ),
    "a version's bounds are edited": (
        lambda rig: (
            f"UPDATE harness.versions SET bounds = jsonb_set(bounds, '{{0,stream_hi}}', '7') "
            f"WHERE {of(rig)} AND version = 3"
        ),
        {
            "S3": "version 3, partition 0: stream_hi falls from 20 to 7",
            "S9": "version 3 moves stream_hi by partition 0 [20, 7), partition 1 [20, 40), its move",
        },
    ),
    "a version's bounds are out of order": (
        lambda rig: (
            f"UPDATE harness.versions SET bounds = jsonb_set(bounds, '{{0,buffer_hi}}', '1') "
            f"WHERE {of(rig)} AND version = 4"
        ),
        {"S3": "version 4 says start 0, batch_hi 0, stream_hi 60, buffer_hi 1"},
    ),
    "the lake's position is lowered": (
        lambda rig: f"UPDATE harness.lake_positions SET stream_hi = 50 WHERE {of(rig)} AND partition = 1",
        {
            "S3": "partition 1: lake_positions has batch_hi 0, stream_hi 50; version 4 published 0 and 60",
            "S6": "partition 1: tier moves end at 60, the position is 50",
            "S13": "it holds 28",
            "S31": "57 rows, 3 in quarantine, 50 offsets: more records than there can be",
            "S37": "holds offset 59 of partition 1, stream_hi is 50",
        },
    ),
    "the lake's position is raised": (
        lambda rig: f"UPDATE harness.lake_positions SET stream_hi = 65 WHERE {of(rig)} AND partition = 0",
        {
            "S3": "version 4 published 0 and 60",
            "S6": "partition 0: tier moves end at 60, the position is 65",
            "S13": "it holds",
        },
    ),
    "the buffer's position is raised": (
        lambda rig: f"UPDATE harness.ingest_positions SET buffer_hi = 90 WHERE {of(rig)} AND partition = 0",
        {
            "S6": "partition 0: ingest moves end at 70, the position is 90",
            "S12": "ends at 70, read up to 90: it was truncated",
        },
    ),
    "the buffer's position is lowered": (
        lambda rig: f"UPDATE harness.ingest_positions SET buffer_hi = 65 WHERE {of(rig)} AND partition = 0",
        {
            "S1": "at offsets 65..69, which ingest has not committed",
            "S6": "partition 0: ingest moves end at 70, the position is 65",
            "S13": "it holds 13",
        },
    ),
    "a move's range is edited": (
        lambda rig: f"UPDATE harness.moves SET hi = jsonb_set(hi, '{{1}}', '33') WHERE {_move(rig, 3)}",
        {
            "S6": "it leaves a gap after move",
            "S9": "version 3 moves stream_hi by partition 0 [20, 40), partition 1 [20, 40), its move",
            "S28": "harness.ranges is '0:20-40,1:20-40' in the snapshot, '0:20-40,1:20-33' in the ledger",
            "S31": "no committed move brought them",
        },
    ),
    "a move's rows are edited": (
        lambda rig: f"UPDATE harness.moves SET rows = rows + 1 WHERE {_move(rig, 3)}",
        {
            "S13": "ingest brought",
            "S28": "added-records is '38' in the snapshot, '39' in the ledger",
            "S31": "brought 39 rows, its files in the head hold 38",
        },
    ),
    "a committed move is opened again": (
        lambda rig: f"UPDATE harness.moves SET state = 'PLANNED' WHERE {_move(rig, 4)}",
        {
            "S6": "tier moves end at 40, the position is 60",
            "S9": "of version 4 is PLANNED",
            "S13": "tier moved 76",
            "S31": "no committed move brought them",
        },
    ),
    "a move's attempt is edited": (
        lambda rig: f"UPDATE harness.moves SET attempt = 5 WHERE {_move(rig, 2)}",
        {"S28": "harness.attempt is '1' in the snapshot, '5' in the ledger"},
    ),
    "a move is marked as undone that was not": (
        lambda rig: f"UPDATE harness.moves SET undone_by = move_id WHERE {_move(rig, 3)}",
        {"S34": "which is no revert"},
    ),
    "one move is named by two versions": (
        lambda rig: (
            f"UPDATE harness.versions SET move_id = (SELECT move_id FROM harness.versions WHERE {of(rig)} "
            f"AND version = 2) WHERE {of(rig)} AND version = 3"
        ),
        {"S9": "took effect twice: in version 2 and in 3", "S28": "harness.move is"},
    ),
    "an event of the outbox is deleted": (
        lambda rig: f"DELETE FROM harness.outbox WHERE {of(rig)} AND seq IN (2, 3)",
        {"S33": "no events 2-3"},
    ),
    "the last event of the outbox is deleted": (
        lambda rig: f"DELETE FROM harness.outbox WHERE {of(rig)} AND seq = 4",
        {"S33": "the last event is 3, the table counts 4"},
    ),
    "a claim's epoch is set back": (
        lambda rig: f"UPDATE harness.claims SET epoch = 0 WHERE {of(rig)} AND stage = 'ingest'",
        {"S5": "the claim of ingest, shard 0, is at epoch 0"},
    ),
    "a partition's position is deleted": (
        lambda rig: f"DELETE FROM harness.lake_positions WHERE {of(rig)} AND partition = 1",
        {"S3": "partition 1 has no row in lake_positions"},
    ),
    "the schema is deleted": (
        lambda rig: f"DELETE FROM harness.schemas WHERE {of(rig)}",
        {"S21": "schema version 1 is gone"},
    ),
    "a segment is retired with rows that are only there": (
        lambda rig: (
            f"UPDATE harness.segments SET state = 'retired', max_hi = '{{\"0\": 70, \"1\": 70}}', "
            f"retired_at = clock_timestamp() WHERE {of(rig)}"
        ),
        {"S11": "is retired, ends at {0: 70, 1: 70}, the trim floor is", "S13": "it holds 0"},
    ),
    "a refused record is moved to where nothing was read": (
        lambda rig: f'UPDATE harness.quarantine SET "offset" = 900 WHERE {of(rig)} AND partition = 0 AND "offset" = 2',
        {
            "S1": "partition 0, offset 900 is in quarantine, but ingest has not committed it",
            "S32": "partition 0, offset 900: the record in quarantine is not what the harness wrote",
        },
    ),
    "a record is refused that is in the buffer": (
        lambda rig: f'UPDATE harness.quarantine SET "offset" = 65 WHERE {of(rig)} AND partition = 0 AND "offset" = 62',
        {
            "S1": "partition 0, offset 65: in the buffer and in quarantine",
            "S32": "partition 0, offset 65: the record in quarantine is not what the harness wrote",
        },
    ),
    **{f"of a refused record {word} is edited": _refused(said) for word, said in REFUSED_FAULTS.items()},
    "a claim ends in a year": (
        lambda rig: (
            f"UPDATE harness.claims SET lease_until = now() + interval '1 year' WHERE {of(rig)} AND stage = 'tier'"
        ),
        {"L2": "no lease is longer than 10 minutes"},
    ),
    "a lease begins in a year": (
        lambda rig: (
            "INSERT INTO harness.leases (lease_id, table_id, version, bounds, holder, until, born) SELECT "
            f"gen_random_uuid(), table_id, 4, '{{}}', 'a clock ahead', now() + interval '366 days', now() + interval "
            f"'365 days 1 hour' FROM harness.tables WHERE {of(rig)}"
        ),
        {"L4": "later than any may"},
    ),
    "the version's snapshot is edited": (
        lambda rig: f"UPDATE harness.versions SET stream_snapshot = 42 WHERE {of(rig)} AND version = 3",
        {"S28": "version 3 is snapshot 42, its metadata file has"},
    ),
    "the table's spec is gone": (
        lambda rig: f"UPDATE harness.tables SET spec = '{{}}' WHERE {of(rig)}",
        {"S10": "cannot be read"},
    ),
}


@pytest.mark.parametrize("fault", LEDGER_FAULTS)
def test_a_row_changed_by_hand_is_named(sound: Rig, fault: str):
    plant, expected = LEDGER_FAULTS[fault]
    with restored(sound):
        sound.sql(plant(sound))
        found = broken(sound)

    assert found.keys() == expected.keys(), found
    for invariant, text in expected.items():
        assert any(text in detail for detail in found[invariant]), found[invariant]


@pytest.mark.parametrize(
    "said",
    [
        """bounds = jsonb_set(bounds, '{0,buffer_hi}', '65')""",
        """bounds = '{"0": {"start": 0, "batch_hi": 0, "stream_hi": 20, "buffer_hi": 20}}'""",
        "bounds = bounds - '1'",
        """bounds = jsonb_set(bounds, '{0,buffer_hi}', '1')""",
        "bounds = '[]'",
        "version = 2",
    ],
)
def test_a_snapshot_that_was_changed_by_hand_is_named_and_refused_and_the_others_are_as_they_were(
    sound: Rig, said: str
):
    harness, name = sound.harness, f"pin-{uuid.uuid4().hex[:8]}"
    harness.snapshot(name, [sound.table.name])
    harness.snapshot(f"{name}.other", [sound.table.name])
    try:
        sound.sql(f"UPDATE harness.snapshot_tables SET {said} WHERE name = %s", name)
        found = broken(sound)
        assert found.keys() == {"S36"}
        assert f"snapshot {name} says version" in found["S36"][0]
        assert len(found["S36"]) == 1
        with pytest.raises(SnapshotChanged, match=name):
            sound.table.read(at=name)
        assert sound.table.read(at=f"{name}.other").num_rows == sound.table.read().num_rows
        assert {one.name for one in harness.snapshots()} >= {name, f"{name}.other"}
    finally:
        harness.drop_snapshot(name)
        harness.drop_snapshot(f"{name}.other")
    assert broken(sound) == {}


@pytest.mark.parametrize(
    "said",
    [
        "UPDATE harness.claims SET lease_until = 'infinity'",
        "UPDATE harness.claims SET lease_until = '-infinity'",
        "UPDATE harness.claims SET lease_until = '20000-01-01'",
    ],
)
def test_a_time_that_no_clock_shows_is_refused_by_the_database(sound: Rig, said: str):
    with pytest.raises(psycopg.errors.CheckViolation):
        sound.sql(f"{said} WHERE {of(sound)}")


def test_a_record_that_was_changed_by_hand_stays_named_after_the_harness_has_changed_it_too(sound: Rig):
    with restored(sound):
        sound.sql(f"""UPDATE harness.quarantine SET headers = '[["a", "00"]]' WHERE {of(sound)} AND "offset" = 22""")
        assert len(broken(sound)["S32"]) == 2
        drop(sound.harness.stores, sound.table.row, Wanted(partition=1, offset=22))
        assert len(broken(sound)["S32"]) == 2


def test_the_repaired_table_is_sound_again(sound: Rig):
    with restored(sound), suppress(MetadataMissing):
        sound.sql(f"DELETE FROM harness.versions WHERE {of(sound)}")
        assert "the table has no version" in broken(sound)["S3"][0]

    assert broken(sound) == {}
