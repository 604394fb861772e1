"""Records that Kafka dropped: judged by the ledger's counts once read, accepted by name if they never were."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from click.testing import CliRunner

from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.audit.proof.report import Status
from harness_pipelines.audit.repair.accept_loss import NothingLost, accept_loss, find_loss
from harness_pipelines.cli.main import cli
from harness_pipelines.ports.errors import RecordsLost
from harness_pipelines.protocol.claims import Stage, StageHeld
from harness_pipelines_tests.integration.audit.conftest import ONLY_INGEST, records


def audited(rig):
    return audit_table(rig.harness.stores, rig.table.row)


@pytest.fixture
def read_and_dropped(fresh):
    """60 records in the buffer, of which Kafka has dropped the first 40."""
    fresh.kafka.produce(fresh.topic, 0, records(0, 60))
    fresh.work(ONLY_INGEST)
    fresh.kafka.delete_records(fresh.topic, 0, 40)
    return fresh


@pytest.fixture
def lost(fresh):
    """20 records read, 30 more of which Kafka dropped 25 before they were read."""
    fresh.kafka.produce(fresh.topic, 0, records(0, 20))
    fresh.work(ONLY_INGEST)
    fresh.kafka.produce(fresh.topic, 0, records(20, 30))
    fresh.kafka.delete_records(fresh.topic, 0, 45)
    return fresh


def test_what_kafka_dropped_after_it_was_read_is_unverifiable_and_no_fault(read_and_dropped):
    report = audited(read_and_dropped)

    assert report.ok, report.to_json()
    assert [(r.low, r.high, r.status, r.rows, r.quarantined) for r in report.ranges] == [
        (0, 40, Status.RETENTION, 39, 1),
        (40, 60, Status.VERIFIED, 20, 0),
    ]
    assert report.to_json()["ranges"][0]["kafka_digest"] is None


def test_a_row_missing_below_kafkas_log_start_is_found_by_the_ledgers_count(read_and_dropped):
    rig = read_and_dropped
    rig.sql(f"DELETE FROM {rig.segment()} WHERE _kafka_offset IN (11, 12)")

    (account,) = audited(rig).to_json()["accounting"]

    assert (account["rows"], account["found"]) == (59, 57)
    assert account["holes"] == [{"partition": 0, "low": 11, "high": 13}]


def test_a_row_doubled_below_kafkas_log_start_is_named(read_and_dropped):
    rig = read_and_dropped
    rig.sql(f"INSERT INTO {rig.segment()} SELECT * FROM {rig.segment()} WHERE _kafka_offset = 9")

    report = audited(rig).to_json()

    assert [(d["partition"], d["offset"], d["tier"]) for d in report["duplicated"]] == [(0, 9, "buffer")]
    assert report["accounting"] == []


def test_a_loss_stops_the_table_is_accepted_by_name_and_stays_visible(lost):
    home = ["--home", str(lost.harness.settings.home)]
    options = ["accept-loss", lost.table.name, "--partition", "0", "--to", "45"]
    with pytest.raises(RecordsLost, match=r"\[20, 45\).*harness accept-loss TABLE --partition 0 --to 45 --yes"):
        lost.work(ONLY_INGEST)
    before = audited(lost)

    assert not before.ok
    assert [(m["offset"], m["to"], m["tier"]) for m in before.to_json()["missing"]] == [(20, 45, "tail")]

    looked = CliRunner().invoke(cli, [*home, *options, "--dry-run", "--json"])
    assert json.loads(looked.stdout) == {
        "table": lost.table.name,
        "partition": 0,
        "low": 20,
        "high": 45,
        "log_start": 45,
        "move": None,
    }
    assert not audited(lost).ok

    done = CliRunner().invoke(cli, [*home, *options, "--yes"])
    assert done.exit_code == 0, done.output
    assert "[20, 45) are recorded as lost" in done.stdout
    (move,) = [m for m in lost.harness.stores.ledger.moves(lost.table.row) if m["trigger"] == "accept-loss"]
    assert (move["stage"], move["state"], move["rows"], move["lo"], move["hi"]) == (
        "ingest",
        "COMMITTED",
        0,
        {"0": 20},
        {"0": 45},
    )

    lost.work(ONLY_INGEST)
    after = audited(lost)
    assert after.ok, after.to_json()
    assert [(r.low, r.high, r.status) for r in after.ranges] == [
        (0, 20, Status.RETENTION),
        (20, 45, Status.ACCEPTED),
        (45, 50, Status.VERIFIED),
    ]


def test_only_what_is_lost_can_be_accepted(lost):
    stores, row = lost.harness.stores, lost.table.row

    with pytest.raises(NothingLost, match="Kafka still has all from 45 on"):
        accept_loss(stores, row, partition=0, to=46)
    with pytest.raises(NothingLost, match="all below 20 was read"):
        accept_loss(stores, row, partition=0, to=20)
    with pytest.raises(NothingLost, match="no partition 7"):
        accept_loss(stores, row, partition=7, to=30)
    assert find_loss(stores, row, partition=0, to=30).high == 30


def test_a_loss_is_not_accepted_while_a_worker_holds_ingest(lost):
    stores, row = lost.harness.stores, lost.table.row
    lease = timedelta(minutes=10)
    claim = stores.ledger.claim(row, Stage.INGEST, shard=0, holder="0" * 32, lease=lease)
    assert claim is not None

    with pytest.raises(StageHeld, match=r"a worker holds ingest; nothing was written"):
        accept_loss(stores, row, partition=0, to=45)

    assert lost.table.positions()[0].bounds.buffer_hi == 20


def test_giving_records_up_needs_a_word(lost):
    home = ["--home", str(lost.harness.settings.home)]
    result = CliRunner().invoke(cli, [*home, "accept-loss", lost.table.name, "--partition", "0", "--to", "45"])

    assert result.exit_code == 2
    assert "--yes" in result.stderr
