"""With `engine: arrow` every stage and command works where neither Spark nor PySpark is."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
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


def call(settings: Settings, *commands: Sequence[str]) -> None:
    """Run commands in a process that cannot import PySpark, nor any other extra."""
    done = subprocess.run(
        [sys.executable, "-m", "harness_pipelines_tests.without_extras", "commands", json.dumps(commands)],
        env=environment(settings, HARNESS_ENGINE=settings.engine),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_stage_and_command_works_without_pyspark(alone: Settings, kafka: KafkaRig, tmp_path: Path):
    names, files = dict[str, str](), list[str]()
    for word, spec in SPECS.items():
        topic = kafka.create(2, topic=f"f_{uuid.uuid4().hex[:10]}")
        for partition in range(2):
            kafka.produce(topic, partition, [good(i) for i in range(partition, 200, 2)])
        names[word] = f"faults.{topic}"
        path = tmp_path / f"{word}.yaml"
        path.write_text(json.dumps({"table": names[word], "topic": topic, **spec}))
        files.append(str(path))
    all_of_them = names.values()

    call(
        alone,
        *(("table", "apply", file) for file in files),
        ("run", *all_of_them, "--until-idle"),
        ("run", *all_of_them, "--for", "2s"),  # expire too
        *(("read", name, "--limit", "3") for name in all_of_them),
        *(("audit", name, "--full") for name in all_of_them),
        ("fsck", *all_of_them),
    )

    with hp.connect(alone) as harness:
        for word, name in names.items():
            table = harness.table(name)
            assert sorted(table.read(columns=["id"]).column("id").to_pylist()) == list(range(200))
            stages = {move["stage"] for move in harness.stores.ledger.moves(table.row) if move["state"] == "COMMITTED"}
            assert "tier" in stages
            assert ("otree" in stages) == (word != "unbuffered")


def test_a_table_that_spark_moves_is_refused_there_by_name(alone: Settings, kafka: KafkaRig):
    topic = kafka.create(1, topic=f"f_{uuid.uuid4().hex[:10]}")
    with hp.connect(alone) as harness:
        table = harness.apply(hp.TableSpec(table=f"faults.{topic}", topic=topic, columns=COLUMNS, views="stream"))
        options = WorkerOptions(until_idle=True, ingest_on="spark")
        with pytest.raises(UsageError, match="ingest on executors needs Spark"):
            Worker(harness.stores, [table.row], options).run()
