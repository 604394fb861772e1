"""In one worker each way in which one of many tables can be sick: it is named, and the others do not notice.

`test_many_tables` has the ways that need nothing applied: a topic, a lake or a spec that is gone, a move that is stuck.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandera.pandas as pandera
import psycopg
import pytest
from psycopg import sql

import harness_pipelines as hp
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec import table as words_of_spec
from harness_pipelines.spec.locations import local_path
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.registry import RegistryServer
from harness_pipelines_tests.rig import TableRig, await_trouble, running
from harness_pipelines_tests.wire import framed

MODULE = "contract_that_goes"
STAGES = frozenset({Stage.INGEST, Stage.TIER, Stage.EXPIRE})
WELL = 6
AVRO = '{"type": "record", "name": "o", "fields": [{"name": "id", "type": "long"}]}'
SOON: Any = {"engine": "arrow", "partitions": 1, "tier": {"max_rows": 1}}  #: a row is moved at once, without Spark


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    made = RegistryServer()
    yield made
    made.close()


@pytest.fixture
def harness(settings: Settings, registry: RegistryServer) -> Iterator[hp.Harness]:
    """One with a registry."""
    with hp.connect(replace(settings, registry=registry.url)) as opened:
        yield opened


@pytest.fixture
def make(harness: hp.Harness, kafka: KafkaRig) -> Any:
    return lambda **words: TableRig(harness, kafka, **{**SOON, **words})


def no_module(make: Any, _registry: RegistryServer) -> tuple[TableRig, Stage, str]:
    """The Python module of its contract is not on this machine."""
    made = sys.modules[MODULE] = types.ModuleType(MODULE)
    made.Orders = pandera.DataFrameSchema({"n": pandera.Column(checks=pandera.Check.ge(0))})  # type: ignore[attr-defined]
    rig = make(contract={"module": MODULE, "name": "Orders"})
    del sys.modules[MODULE]
    return rig, Stage.INGEST, MODULE


def refuses(make: Any, _registry: RegistryServer) -> tuple[TableRig, Stage, str]:
    """Its contract stops the table."""
    rig = make(contract={"columns": {"n": {"ge": 0}}, "severity": "stop"})
    rig.kafka.produce(rig.topic, 0, [b'{"id":1,"n":-1,"s":"x"}'])
    return rig, Stage.INGEST, "n.ge"


def no_schema(make: Any, registry: RegistryServer) -> tuple[TableRig, Stage, str]:
    """The registry that has the schema of its records does not answer."""
    number = registry.register(
        "orders-value", '{"type": "record", "name": "o", "fields": [{"name": "id", "type": "long"}]}'
    )
    rig = make(format="avro", columns={"id": {"type": "long", "required": True}})
    rig.kafka.produce(rig.topic, 0, [framed(b"\x02", number)])
    registry.fail_with = 503
    return rig, Stage.INGEST, registry.url


def unwritable(make: Any, _registry: RegistryServer) -> tuple[TableRig, Stage, str]:
    """Its folder in the lake takes no data files."""
    rig = make()
    folder = local_path(rig.stores.ledger.pointer(rig.table.row, "stream").rsplit("/", 2)[0])
    assert folder is not None
    (Path(folder) / "data").write_text("in the way")
    rig.kafka.produce(rig.topic, 0, rig.values(1))
    return rig, Stage.TIER, "data"


def full(make: Any, _registry: RegistryServer) -> tuple[TableRig, Stage, str]:
    """Its buffer has reached its limit, and nothing empties it."""
    rig = make(tier={"max_rows": 10**6, "max_age": "1h"})
    rig.produce(5)
    rig.ingest()
    spec = rig.table.spec.model_dump(mode="json", by_alias=True)
    rig.harness.apply(hp.TableSpec.model_validate({**spec, "buffer": {"max_bytes": 1024}}))
    rig.kafka.produce(rig.topic, 0, rig.values(1))
    return rig, Stage.INGEST, "max_bytes"


def no_right(make: Any, _registry: RegistryServer) -> tuple[TableRig, Stage, str]:
    """The role of workers may not write to its segment."""
    rig = make()
    [segment] = rig.stores.segments.all(rig.table.row) or [rig.stores.segments.open_segment(rig.table.row)]
    assert rig.stores.settings.dsn is not None
    with psycopg.connect(rig.stores.settings.dsn, autocommit=True) as connection:
        name = sql.Identifier("harness_buffer", segment.name)
        connection.execute(sql.SQL("REVOKE ALL ON {} FROM harness_worker").format(name))
    rig.kafka.produce(rig.topic, 0, rig.values(1))
    return rig, Stage.INGEST, segment.name


@pytest.mark.folder("a folder of the lake is made unwritable")
def test_a_table_that_is_sick_in_any_way_is_named_and_costs_the_others_nothing(
    make: Any, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(words_of_spec, "BUFFER_BYTES_MIN", 1)
    sick = [how(make, registry) for how in (no_module, refuses, no_schema, unwritable, full, no_right)]
    well = [make() for _ in range(WELL)]
    rows = [rig.harness.table(rig.name).row for rig in (*(rig for rig, _, _ in sick), *well)]
    worker = Worker(well[0].stores, rows, WorkerOptions(stages=STAGES))
    with running(worker):
        for number, (_, stage, why) in enumerate(sick):
            assert why in await_trouble(worker, stage, table=number)
        for _ in range(3):
            for rig in well:
                rig.produce(2)
                rig.await_exact()
        wait_until(lambda: all(rig.status() == {0: (6, 6)} for rig in well), "all is in the lake")
        shown = {one.name: one.trouble for one in worker.progress}
        assert [shown[rig.name] for rig in well] == [{}] * WELL
        assert all(shown[rig.name] for rig, _, _ in sick)
