"""With `engine: arrow` every stage and command works where neither Spark nor PySpark is."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.keyed import COLUMNS as KEYED
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import COLUMNS, environment, good

SPECS: Mapping[str, Mapping[str, Any]] = {
    "appended": {"columns": COLUMNS, "views": "both"},
    "only": {"columns": COLUMNS, "views": "batch"},
    "keyed": {"columns": KEYED, "key": ["id"], "delete": {"field": "op", "values": ["d"]}, "views": "both"},
    "unbuffered": {"columns": COLUMNS, "buffer": "none", "views": "stream"},
}


@pytest.fixture
def alone(settings: Settings, tmp_path: Path) -> Settings:
    """The shared services without Spark."""
    return replace(settings, spark=None, spark_dsn=None, home=tmp_path, engine="arrow")


def called(settings: Settings, *command: str) -> str:
    """What a command prints in a process that cannot import PySpark, nor any other extra."""
    done = subprocess.run(
        [sys.executable, "-m", "harness_pipelines_tests.without_extras", "harness", *command],
        env=environment(settings, HARNESS_ENGINE=settings.engine),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_stage_and_command_works_without_pyspark(alone: Settings, kafka: KafkaRig, tmp_path: Path):
    names = {}
    for word, spec in SPECS.items():
        topic = kafka.create(2, topic=f"f_{uuid.uuid4().hex[:10]}")
        for partition in range(2):
            values = [good(i) for i in range(partition, 200, 2)]
            kafka.produce(topic, partition, values)
        names[word] = f"faults.{topic}"
        path = tmp_path / f"{word}.yaml"
        path.write_text(json.dumps({"table": names[word], "topic": topic, **spec}))
        called(alone, "table", "apply", str(path))

    called(alone, "run", *names.values(), "--until-idle")
    called(alone, "run", *names.values(), "--for", "3s")  # expire too

    for name in names.values():
        called(alone, "read", name, "--limit", "3")
        assert json.loads(called(alone, "audit", name, "--full", "--json"))["ok"], name
    called(alone, "fsck", *names.values())
    with hp.connect(alone) as harness:
        for word, name in names.items():
            table = harness.table(name)
            assert len(set(table.read(columns=["id"]).column("id").to_pylist())) == 200
            stages = {move["stage"] for move in harness.stores.ledger.moves(table.row) if move["state"] == "COMMITTED"}
            assert {"tier"} <= stages
            assert ("otree" in stages) == (word in ("appended", "keyed"))


def test_a_table_that_spark_moves_is_refused_there_by_name(alone: Settings, kafka: KafkaRig):
    topic = kafka.create(1, topic=f"f_{uuid.uuid4().hex[:10]}")
    with hp.connect(alone) as harness:
        table = harness.apply(hp.TableSpec(table=f"faults.{topic}", topic=topic, columns=COLUMNS, views="stream"))
        options = WorkerOptions(until_idle=True, ingest_on="spark")
        with pytest.raises(UsageError, match="ingest on executors needs Spark"):
            Worker(harness.stores, [table.row], options).run()
