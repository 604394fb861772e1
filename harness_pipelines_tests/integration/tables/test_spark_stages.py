"""Stages work in a session of their own: whatever somebody sets in another one, they stage the same rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

import harness_pipelines as hp
from harness_pipelines.engines.spark import stage_session
from harness_pipelines.engines.spark.stage_session import SETTINGS, SessionUnfit, settle
from harness_pipelines.ports.errors import StagedWrong
from harness_pipelines_tests.rig import OTREE, TableRig

MakeRig = Callable[..., TableRig]
WRONG = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.iceberg.distribution-mode": "range",
    "spark.sql.shuffle.partitions": "3",
}
FIRST = dt.datetime(2024, 7, 1)
COLUMNS = {"at": "timestamp", "n": "int", "d": "date", "tz": "timestamptz"}


@contextmanager
def wrong_session(rig: TableRig) -> Iterator[Any]:
    """The users' session of the same process, with settings of a user."""
    spark = rig.stores.spark()
    before = {name: spark.conf.get(name, None) for name in WRONG}
    for name, wrong in WRONG.items():
        spark.conf.set(name, wrong)
    try:
        yield spark
        assert {name: spark.conf.get(name) for name in WRONG} == WRONG, "what a user set stays"
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def row(hour: int, n: int) -> bytes:
    at = (FIRST + dt.timedelta(hours=hour)).isoformat()
    return orjson.dumps({"at": at, "n": n, "d": at[:10], "tz": f"{at}Z"})


def put(rig: TableRig, hours: range, n: int) -> None:
    rig.kafka.produce(rig.topic, 0, [row(hour, n) for hour in hours])


def keyed(make_rig: MakeRig) -> TableRig:
    return make_rig(partitions=1, columns=COLUMNS, key=["at"], views="both", layout={"columns": ["at"]})


def rows_of(rig: TableRig) -> list[tuple[dt.datetime, int]]:
    found = rig.table.read(columns=["at", "n", "d", "tz"]).to_pylist()
    for one in found:
        assert one["d"] == one["at"].date()
        assert one["tz"] == one["at"].replace(tzinfo=dt.UTC)
    return sorted((one["at"], one["n"]) for one in found)


def expected(n: Mapping[int, int]) -> list[tuple[dt.datetime, int]]:
    return [(FIRST + dt.timedelta(hours=hour), value) for hour, value in sorted(n.items())]


def test_a_merge_beside_a_session_of_another_zone_leaves_one_row_per_key(make_rig: MakeRig):
    rig = keyed(make_rig)
    put(rig, range(48), 0)
    rig.worker(until_idle=True).run()
    put(rig, range(44, 48), 1)
    rig.ingest()
    rig.tier()
    with wrong_session(rig):
        rig.worker(OTREE, until_idle=True).run()
        rig.relayout()
    assert rows_of(rig) == expected({hour: int(hour >= 44) for hour in range(48)})
    assert rig.table.audit(full=True).to_json()["ok"]


def test_tier_without_a_buffer_beside_a_session_of_another_zone_writes_the_values(make_rig: MakeRig):
    rig = make_rig(partitions=1, columns=COLUMNS, buffer="none")
    put(rig, range(5), 7)
    with wrong_session(rig):
        rig.tier()
    assert rig.status()[0][0] == 5
    assert rows_of(rig) == expected(dict.fromkeys(range(5), 7))


@pytest.mark.usefixtures("by_spark")
def test_a_merge_that_overlooks_a_key_publishes_nothing(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    """Were the session wrong all the same: the count of the keys that were compared tells."""
    rig = keyed(make_rig)
    put(rig, range(48), 0)
    rig.worker(until_idle=True).run()
    version = rig.stores.ledger.head(rig.table.row).version
    put(rig, range(44, 48), 1)
    rig.ingest()
    rig.tier()
    merged = rig.stores.ledger.head(rig.table.row).version
    assert merged > version
    zone = {**SETTINGS, "spark.sql.session.timeZone": "America/New_York"}
    monkeypatch.setattr(stage_session, "SETTINGS", zone)
    with pytest.raises(StagedWrong, match="compared .* of the 48 keys"):
        stage_merge(rig)
    assert rig.stores.ledger.head(rig.table.row).version == merged
    monkeypatch.undo()
    rig.worker(OTREE, until_idle=True).run()
    assert rows_of(rig) == expected({hour: int(hour >= 44) for hour in range(48)})


def stage_merge(rig: TableRig) -> None:
    from harness_pipelines.protocol.claims import Stage
    from harness_pipelines.stages.otree import otree

    claim = rig.claim(Stage.OTREE)
    try:
        move = otree.plan(rig.stores, rig.table.row, claim, trigger="test", run_id=None)
        assert move is not None
        otree.stage(rig.stores, rig.table.row, move)
    finally:
        rig.stores.ledger.release(claim)


def test_what_stages_rely_on_is_set_again_before_each_piece_of_work(harness: hp.Harness):
    with harness.stores.spark_sessions.working() as session:
        assert session is not harness.stores.spark()
        for name in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.caseSensitive"):
            session.conf.set(name, WRONG[name])
        session.conf.set("spark.wap.branch", "elsewhere")
    with harness.stores.spark_sessions.working() as session:
        assert {name: session.conf.get(name) for name in SETTINGS} == dict(SETTINGS)
        assert session.conf.get("spark.wap.branch", None) is None


def test_a_session_that_does_not_keep_a_setting_is_named():
    class Conf:
        def set(self, name: str, value: str) -> None: ...

        def get(self, name: str, default: str | None) -> str | None:
            return "GMT+1" if name == "spark.sql.session.timeZone" else SETTINGS.get(name, default)

    class Session:
        conf = Conf()

    session: Any = Session()
    with pytest.raises(SessionUnfit, match=r"session.timeZone being 'UTC', the session says 'GMT\+1'"):
        settle(session)


IN_A_PROCESS_WITH_A_SESSION = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from harness_pipelines.spec.settings import Settings
from harness_pipelines.engines.spark.sessions import SparkSessions

theirs = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
theirs.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
theirs.conf.set("spark.sql.ansi.enabled", "false")
before = dict(theirs.conf.getAll)
for opener in (None, lambda options: theirs):
    sessions = SparkSessions(Settings(home=Path(sys.argv[1]), spark="local[1]"))
    if opener is not None:
        sessions.use(opener)
    with sessions.working() as session:
        assert session is not theirs
        at = "timestamp '2024-07-01 12:00:00'"
        [row] = session.sql(f"SELECT unix_micros({at}) AS at, current_timezone() AS zone").collect()
        assert (row["at"], row["zone"]) == (1719835200000000, "UTC"), row
    assert sessions.current() is not theirs
    assert dict(theirs.conf.getAll) == before
    sessions.close()
theirs.sql("SELECT 1").collect()
print("as it was")
"""


@pytest.mark.long
def test_a_masters_session_of_the_same_process_is_left_as_it_is(tmp_path: Any):
    import os
    import subprocess
    import sys

    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS_WITH_A_SESSION, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip().endswith("as it was"), done.stderr[-2000:]
