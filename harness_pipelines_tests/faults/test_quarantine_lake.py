"""A quarantine that is large: its bytes go to an Iceberg table, and all that asks for them finds them there."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.cli.main import cli
from harness_pipelines.ports.errors import LakeFileMissing
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.changes.corrections import Wanted
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.replay.quarantine import replay
from harness_pipelines.stages.replay.ranges import replay_range
from harness_pipelines.stages.table.expire import Expired, expire_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.test_replay import again, lenient, offsets, settled, states
from harness_pipelines_tests.rig import TableRig, environment

ODD = b'{"id":%d,"n":7,"s":"' + b"x" * 400_000 + b'","more":1}'
AT = [(0, 10), (0, 11), (0, 12), (1, 10)]  #: of four such records, the last one alone in its partition


@pytest.fixture
def odd(make_rig: MakeRig) -> TableRig:
    """A table with 40 rows and 4 records that its spec does not take: more than may stay in Postgres."""
    rig = make_rig(unknown_fields="quarantine", quarantine_mb=1)
    rig.produce(10)
    for number, (partition, _) in enumerate(AT):
        rig.kafka.produce(rig.topic, partition, [ODD % (1000 + number)])
    rig.produce(10)
    settled(rig)
    return rig


def expire(rig: TableRig) -> Expired:
    claim = rig.claim(Stage.EXPIRE)
    try:
        return expire_once(rig.stores, rig.harness.table(rig.name).row, claim)
    finally:
        rig.stores.ledger.release(claim)


def is_sound(rig: TableRig) -> bool:
    row = rig.harness.table(rig.name).row
    return audit_table(rig.stores, row).ok and audit_table(rig.stores, row, full=True).ok and fsck(
        rig.stores, [rig.name]
    ).ok  # fmt: skip


def test_what_was_moved_is_shown_listed_put_back_once_and_taken_back_as_if_it_had_not_been(odd: TableRig):
    before = odd.stores.tables.head(odd.table.row).version
    run = CliRunner(env=environment(odd.stores.settings)).invoke

    def asked(*words: str) -> dict[str, object]:
        found = run(cli, ["quarantine", *words, "--json"], catch_exceptions=False)
        return dict(json.loads(found.stdout))

    whole = {at: asked("show", odd.name, *map(str, at)) for at in AT}
    assert audit_table(odd.stores, odd.table.row).ok
    assert expire(odd).quarantined.records == 3
    assert is_sound(odd)
    spark = odd.stores.spark().table(f"harness.faults.{odd.table.row.quarantine}")
    moved = {(row["_kafka_partition"], row["_kafka_offset"]) for row in spark.collect()}
    assert moved < set(AT)  # the oldest ones; which these are depends on the partition that was read first
    assert len(moved) == 3
    for at, was in whole.items():
        assert {**asked("show", odd.name, *map(str, at)), "in_lake": False} == was
    listed = asked("list", odd.name)["records"]
    assert isinstance(listed, list)
    assert sum(one["in_lake"] for one in listed) == 3

    lenient(odd)
    assert again(odd).replayed == 4
    assert set(AT) <= set(offsets(odd))
    assert len(offsets(odd)) == 44
    assert again(odd).records == 0
    assert is_sound(odd)
    revert_table(odd.stores, odd.harness.table(odd.name).row, to=before)
    assert states(odd) == {"held": 4}
    assert is_sound(odd)
    assert again(odd).replayed == 4


def test_a_decoder_for_once_reads_what_was_moved(odd: TableRig):
    expire(odd)
    decoder = odd.table.spec.model_copy(update={"unknown_fields": "ignore"})
    done = replay(odd.stores, odd.table.row, Wanted(partition=0, offset=10), decoder=decoder)
    assert (done.records, done.replayed) == (1, 1)
    assert (0, 10) in offsets(odd)


def test_a_range_that_kafka_has_dropped_is_decoded_from_what_was_moved(make_rig: MakeRig):
    columns = {"id": {"type": "long", "required": True}, "n": "int", "raw": {"type": "binary", "from": "raw_value"}}
    rig = make_rig(partitions=1, columns=columns, unknown_fields="quarantine", quarantine_mb=1)
    rig.kafka.produce(rig.topic, 0, [b'{"id":1,"n":1}', ODD % 2, ODD % 3, ODD % 4, b'{"id":5,"n":5}'])
    settled(rig)
    assert expire(rig).quarantined.records == 2
    rig.kafka.delete_records(rig.topic, 0, 4)
    rig.harness.apply(rig.table.spec.model_copy(update={"unknown_fields": "ignore"}))
    replay_range(rig.stores, rig.harness.table(rig.name).row, OffsetRange(partition=0, low=0, high=5))
    assert offsets(rig) == [(0, offset) for offset in range(5)]
    assert fsck(rig.stores, [rig.name]).ok


def test_fsck_and_a_full_audit_name_bytes_that_are_gone(odd: TableRig):
    assert audit_table(odd.stores, odd.table.row).ok
    expire(odd)
    table_id = odd.table.row.table_id
    database = odd.stores.database
    [place] = database.rows("quarantine/place", {"table_id": table_id})
    [file] = (Path(urlsplit(place["folder"]).path) / "data").glob("*.parquet")

    def broken() -> dict[str, str]:
        return {one.invariant: one.detail for one in fsck(odd.stores, [odd.name]).broken}

    with database.transaction() as connection:
        connection.execute("UPDATE harness.quarantine SET in_lake = true WHERE table_id = %s", [table_id])
        connection.execute("DELETE FROM public.iceberg_tables WHERE table_name = %s", [odd.table.row.quarantine])
    found = broken()
    assert "bytes of 1 quarantined records are gone" in found["S31"]
    assert "has no such table" in found["S7"]
    with database.transaction() as connection:
        connection.execute("UPDATE harness.quarantine SET in_lake = value IS NULL WHERE table_id = %s", [table_id])
    file.rename(f"{file}.away")
    assert "is gone" in broken()["S31"]
    assert audit_table(odd.stores, odd.table.row).ok, "what was signed off is not read again"
    with pytest.raises(LakeFileMissing, match=file.name):
        audit_table(odd.stores, odd.table.row, full=True)
    Path(f"{file}.away").rename(file)
    assert broken().keys() == {"S7"}
