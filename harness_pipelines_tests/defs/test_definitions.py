"""Dagster runs the same stages as `harness run`, and what it shows is what the ledger committed."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    Definitions,
)

from harness_pipelines.app import checks
from harness_pipelines.defs.build import build
from harness_pipelines.defs.definitions import TABLES_FOLDER, load
from harness_pipelines.defs.tables import AUDIT, job_name
from harness_pipelines.defs.work import WHY_TAG
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.load import load_spec
from harness_pipelines.stages.run.due import due_upkeep
from harness_pipelines_tests.catalog_server import CatalogServer
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.rig import TableRig


@pytest.fixture
def definitions(rig: TableRig, environment: None) -> Definitions:
    return build([rig.table.spec])


def run(definitions: Definitions, rig: TableRig, stage: Stage, instance: DagsterInstance) -> Any:
    return definitions.resolve_job_def(job_name(stage)).execute_in_process(instance=instance)


def metadata(result: Any, key: AssetKey) -> dict[str, Any]:
    events = [e for e in result.get_asset_materialization_events() if e.asset_key == key]
    [event] = [e for e in events if e.partition is None]
    return {name: value.value for name, value in event.materialization.metadata.items()}


def test_a_folder_of_specs_loads_without_any_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TABLES_FOLDER, str(Path(__file__).parent / "tables"))
    stages = {f"shop/orders/{name}" for name in ("ingest", "buffer", "tier", "compact", "otree", "expire")}
    assert assets() == {"kafka/orders", "shop/orders", *stages}


def test_a_table_with_catalogs_has_an_asset_that_shows_what_they_show(
    make_rig: MakeRig, environment: None, tmp_path: Path
) -> None:
    with CatalogServer(tmp_path / "lakehouse").running() as server:
        rig = make_rig(catalogs=[{"name": "lakehouse", "type": "rest", "uri": server.uri, "namespace": "scratch"}])
        rig.produce(5)
        rig.ingest()
        rig.tier()
        definitions = build([rig.table.spec])
        key = AssetKey([*rig.name.split("."), "mirror"])
        with DagsterInstance.ephemeral() as instance:
            result = run(definitions, rig, Stage.MIRROR, instance)
        assert metadata(result, key)["lakehouse"] == rig.stores.tables.head(rig.table.row).version
        assert checks.mirrors_follow(rig.stores, rig.table.row).passed
        assert due_upkeep(rig.stores, rig.table.row, rig.stores.watch.work([rig.name])[0]).get(Stage.MIRROR) is None


def assets() -> set[str]:
    return {key.to_user_string() for key in load().resolve_asset_graph().get_all_asset_keys()}


def test_of_many_tables_a_broken_one_leaves_the_others_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = (Path(__file__).parent / "tables/orders.yaml").read_text()
    for number in range(200):
        (tmp_path / f"{number:03}.yaml").write_text(text.replace("shop.orders", f"shop.t{number:03}"))
    (tmp_path / "100.yaml").write_text("table: shop.t100\ncolums: {}\n")
    monkeypatch.setenv(TABLES_FOLDER, str(tmp_path))

    graph = load().resolve_asset_graph()
    tables = {key.path[1] for key in graph.get_all_asset_keys() if key.path[0] == "shop"}
    assert tables == {f"t{number:03}" for number in range(200) if number != 100}
    assert "100.yaml:2: colums" in (graph.get(AssetKey(["broken", "100"])).description or "")


def test_tables_of_one_topic_share_it_and_show_their_columns() -> None:
    spec = load_spec(Path(__file__).parent / "tables/orders.yaml")
    described = replace(spec.columns[0], description="Its number")
    spec = spec.model_copy(update={"columns": (described, *spec.columns[1:])})
    other = spec.model_copy(update={"table": "shop.same"})
    graph = build([spec, other]).resolve_asset_graph()
    assert {k.to_user_string() for k in graph.get_all_asset_keys() if k.path[0] == "kafka"} == {"kafka/orders"}
    shown = graph.get(AssetKey(["shop", "orders"])).metadata["dagster/column_schema"]
    assert [(c.name, c.type, c.constraints.nullable) for c in shown.columns] == [
        ("order_id", "long", False),
        ("amount", "decimal(12, 2)", True),
        ("ordered_at", "timestamptz", True),
    ]
    assert [c.description for c in shown.columns] == ["Its number", None, None]


def test_without_a_ledger_there_are_no_tables_and_loading_succeeds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("HARNESS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path))

    assert assets() == set()


@pytest.mark.long
def test_runs_of_ingest_and_tier_name_the_moves_that_the_ledger_committed(
    rig: TableRig, definitions: Definitions, instance: DagsterInstance
) -> None:
    rig.produce(100)
    prefix = [rig.table.spec.namespace, rig.table.spec.name]
    active = rig.stores.spark()  # which PySpark hands to the run of tier as well

    ingested = run(definitions, rig, Stage.INGEST, instance)
    assert ingested.success
    rig.assert_exact()
    tiered = run(definitions, rig, Stage.TIER, instance)

    assert tiered.success
    rig.assert_exact()
    committed = {m["move_id"]: m for m in rig.stores.ledger.moves(rig.table.row) if m["state"] == "COMMITTED"}
    for result, key in ((ingested, "ingest"), (ingested, "buffer"), (tiered, "tier")):
        assert metadata(result, AssetKey([*prefix, key]))["move"] in committed
    shown = metadata(tiered, AssetKey(prefix))
    assert shown["version"] == rig.stores.ledger.head(rig.table.row).version
    assert active.range(3).count() == 3  # and which that run therefore did not close
    [run_of_tier] = {m["run_id"] for m in committed.values() if m["stage"] == "tier"}
    assert run_of_tier == tiered.run_id


def test_a_run_that_a_sensor_started_moves_what_is_due_and_one_of_a_person_what_there_is(
    make_rig: MakeRig, environment: None, instance: DagsterInstance
) -> None:
    rig = make_rig(tier={"max_rows": 150})
    job = build([rig.table.spec]).resolve_job_def(job_name(Stage.TIER))

    def moved(**tags: str) -> int:
        assert job.execute_in_process(instance=instance, tags=tags).success
        return rig.status()[0][0]

    rig.produce(100)
    rig.ingest()
    assert moved(**{WHY_TAG: "rows"}) == 100  # 200 rows in both partitions
    rig.produce(10)
    rig.ingest()
    assert moved(**{WHY_TAG: "rows"}) == 100
    assert moved() == 110
    rig.assert_exact()


def test_a_table_of_two_views_is_clustered_by_runs_of_otree(
    make_rig: MakeRig, environment: None, instance: DagsterInstance
) -> None:
    rig = make_rig(views="both", layout={"columns": ["n"], "regions": 4})
    definitions = build([rig.table.spec])
    rig.produce(100)
    rig.ingest()
    rig.tier()
    clustered = run(definitions, rig, Stage.OTREE, instance)

    assert clustered.success
    head = rig.stores.ledger.head(rig.table.row)
    assert {b.batch_hi for b in head.bounds.values()} == {100}
    shown = metadata(clustered, AssetKey([rig.table.spec.namespace, rig.table.spec.name, "otree"]))
    assert head.batch is not None
    assert (shown["version"], shown["snapshot"]) == (head.version, str(head.batch.snapshot))
    rig.assert_exact()


def test_checks_pass_on_a_whole_table_and_name_what_a_doctored_ledger_lacks(rig: TableRig) -> None:
    rig.produce(50)
    rig.ingest()
    table, stores = rig.table.row, rig.stores
    assert {name: check(stores, table).passed for name, check in checks.CHECKS.items()} == dict.fromkeys(
        checks.CHECKS, True
    )

    with stores.database.session() as connection:
        connection.execute(
            "UPDATE harness.moves SET rows = rows + 1, lo = jsonb_set(lo, '{0}', '7') "
            "WHERE table_id = %s AND stage = 'ingest' AND lo ? '0'",
            [table.table_id],
        )
        connection.commit()

    seams, rows = checks.no_gap_no_overlap(stores, table), checks.rows_are_conserved(stores, table)
    assert not seams.passed
    assert "partition 0 continues at 7" in seams.description
    assert not rows.passed
    assert "101 rows taken, 0 in the lake, 100 in the buffer" in rows.description


@pytest.mark.long
def test_checks_say_what_only_the_buffer_holds_and_when_compact_falls_behind(
    rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, stores = rig.table.row, rig.stores
    for _ in range(8):
        rig.produce(3)
        rig.ingest()
        rig.tier()
    rig.produce(20)
    rig.ingest()
    rig.kafka.delete_records(rig.topic, 1, 30)
    kept = checks.kafka_keeps_what_is_not_in_the_lake(stores, table)
    assert (kept.passed, kept.is_advice, kept.numbers) == (False, True, {"headroom_offsets": -6})
    assert "partition 1: Kafka begins at 30, 6 offsets above what the lake has" in kept.description
    assert checks.compact_keeps_up(stores, table).passed
    monkeypatch.setattr(checks, "SMALL_FILES_MAX", 3)
    behind = checks.compact_keeps_up(stores, table)
    assert not behind.passed
    assert behind.numbers["small_files"] > 3


def test_checks_run_as_asset_checks_of_the_table(
    rig: TableRig, definitions: Definitions, instance: DagsterInstance
) -> None:
    rig.produce(5)
    rig.ingest()

    result = run(definitions, rig, Stage.TIER, instance)

    found = {e.check_name: e.passed for e in result.get_asset_check_evaluations()}
    assert found == dict.fromkeys(checks.CHECKS, True)


def test_the_audit_is_a_check_of_its_own_that_reads_only_what_was_added(
    rig: TableRig, definitions: Definitions, instance: DagsterInstance
) -> None:
    rig.produce(5)
    rig.ingest()
    rig.tier()
    job = definitions.resolve_job_def("harness_audit")

    def audited() -> tuple[bool, Any, Any]:
        [found] = job.execute_in_process(instance=instance, raise_on_error=False).get_asset_check_evaluations()
        assert (found.asset_key, found.check_name) == (AssetKey([rig.table.spec.namespace, rig.table.spec.name]), AUDIT)
        return found.passed, found.metadata["rows"].value, found.metadata["files_read"].value

    assert [audited(), audited()] == [(True, 10, 2), (True, 10, 0)]
    rig.produce(1)
    rig.ingest()
    segment = rig.stores.segments.open_segment(rig.table.row).name
    assert rig.harness.settings.dsn is not None
    with psycopg.connect(rig.harness.settings.dsn, autocommit=True) as owner:
        owner.execute(f"DELETE FROM harness_buffer.{segment} WHERE _kafka_partition = 0 AND _kafka_offset = 5".encode())

    assert audited() == (False, 11, 0)
