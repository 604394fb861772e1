"""A table with records in its topic, and `harness` as a person calls it."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import harness_pipelines as hp
from harness_pipelines.cli.main import cli
from harness_pipelines.cli.operate.serve import serving_here
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.services import Services
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import engine_of_test

GOOD, PARTITIONS = 60, 2


class Cli:
    """Calls of one home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *words: str, code: int = 0, env: dict[str, str] | None = None) -> Result:
        """Run a command in this process; fail when it does not end with *code*."""
        result = CliRunner().invoke(cli, [f"--home={self.home}", *words], env=env)
        assert result.exit_code == code, f"{result.exit_code}: {result.output}\n{result.exception!r}"
        return result

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command as a process of its own."""
        command = [sys.executable, "-m", "harness_pipelines.cli.main", f"--home={self.home}", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="session")
def harness(services: Services) -> Cli:
    dsn = services.current().owner
    assert dsn is not None
    migrate(dsn)
    return Cli(services.home)


@pytest.fixture(scope="session")
def rig(services: Services) -> Iterator[KafkaRig]:
    running = services.current()
    assert running.kafka is not None
    found = KafkaRig(running.kafka, properties=running.kafka_login)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What moves the rows of tables whose spec does not say it."""
    monkeypatch.setenv("HARNESS_ENGINE", engine_of_test())


@pytest.fixture
def spec(harness: Cli, rig: KafkaRig, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Name and file of a spec whose topic has good records 0..59 and, last in partition 0, one that is no JSON."""
    with applicable(harness, rig, tmp_path) as found:
        yield found


@contextmanager
def applicable(harness: Cli, rig: KafkaRig, folder: Path) -> Iterator[tuple[str, Path]]:
    """That spec and its topic while the block lasts; the table, if it was made, is dropped."""
    topic = rig.create(PARTITIONS)
    for partition in range(PARTITIONS):
        values = [b'{"id":%d,"amount":%d.50}' % (i, i) for i in range(partition, GOOD, PARTITIONS)]
        rig.produce(topic, partition, values)
    rig.produce(topic, 0, [b'{"bad'])
    name = f"cli.t_{uuid.uuid4().hex[:10]}"
    file = folder / "table.yaml"
    file.write_text(
        f"table: {name}\ntopic: {topic}\ncolumns: {{id: {{type: long, required: true}}, amount: 'decimal(9,2)'}}\n"
    )
    yield name, file
    if name in harness("table", "list").stdout:
        harness("table", "drop", name, "--yes", "--purge")


@pytest.fixture
def table(harness: Cli, spec: tuple[str, Path]) -> str:
    """The table of that spec, with everything ingested and nothing in the lake."""
    return ingested(harness, *spec)


@pytest.fixture(scope="module")
def kept_table(harness: Cli, rig: KafkaRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same for tests that change nothing of it."""
    with applicable(harness, rig, tmp_path_factory.mktemp("kept")) as found:
        yield ingested(harness, *found)


def ingested(harness: Cli, name: str, file: Path) -> str:
    harness("table", "apply", str(file))
    harness("run", name, "--stage", "ingest", "--until-idle")
    return name


@pytest.fixture
def page_url(harness: Cli) -> Iterator[str]:
    """Where the status page of that home is served."""
    with hp.connect(home=harness.home) as opened, serving_here(opened, None) as (url, _):
        yield url
