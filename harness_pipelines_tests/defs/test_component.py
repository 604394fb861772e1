"""A table as a file of a Dagster project: what is shown, what is shared, and what is said about a mistake."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from dagster import AssetKey, DagsterInstance, Definitions, build_sensor_context
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox

import harness_pipelines as hp
from harness_pipelines.defs import Table
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines_tests.producer import KafkaRig

pytestmark = [  # of Dagster's own code
    pytest.mark.filterwarnings("ignore:.parse_obj_as.:pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning"),
]
COLUMNS = {"id": {"type": "long", "required": True}, "amount": "decimal(12,2)"}


@pytest.fixture
def project() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as made:
        yield made


def add(project: DefsFolderSandbox, name: str, **attributes: Any) -> None:
    file = {"type": "harness_pipelines.defs.Table", "attributes": attributes}
    project.scaffold_component(component_cls=Table, defs_path=name, defs_yaml_contents=file)


def spec(name: str, **words: Any) -> dict[str, Any]:
    return {"table": f"shop.{name}", "topic": "orders", "columns": COLUMNS, **words}


def test_tables_share_their_sensors_and_topics_and_keep_their_own_owners(project: DefsFolderSandbox) -> None:
    add(project, "orders", spec=spec("orders"), owners=["team:shop"], tags={"tier": "gold"}, group="sales")
    about = {"owners": ["team:ops"], "tags": {"tier": "silver"}, "description": "What else was ordered"}
    add(project, "others", spec=spec("others", views="stream", **about))
    with project.build_all_defs() as definitions:
        graph = definitions.resolve_asset_graph()
        sensors = [sensor.name for sensor in definitions.sensors or ()]
        jobs = {job.name for job in definitions.resolve_all_job_defs()}

    assert len(sensors) == len(set(sensors)) == 5
    assert {
        f"harness_{name}" for name in ("ingest", "tier", "compact", "otree", "expire", "audit", "audit_full")
    } <= jobs
    asset = graph.get(AssetKey(["shop", "orders", "tier"]))
    assert (list(asset.owners), asset.group_name, asset.tags["tier"]) == (["team:shop"], "sales", "gold")
    other = graph.get(AssetKey(["shop", "others"]))
    assert (list(other.owners), other.group_name, other.tags["tier"]) == (["team:ops"], "shop", "silver")
    assert (other.description or "").startswith("What else was ordered\n\n")
    assert AssetKey(["kafka", "orders"]) in graph.get_all_asset_keys()


def test_the_words_may_be_in_a_file_of_their_own(project: DefsFolderSandbox) -> None:
    add(project, "orders", spec="orders.yaml")
    (project.defs_folder_path / "orders" / "orders.yaml").write_text(yaml.safe_dump(spec("orders")))
    with project.build_all_defs() as definitions:
        assert AssetKey(["shop", "orders"]) in definitions.resolve_asset_graph().get_all_asset_keys()


def test_a_wrong_word_is_named_with_its_file(project: DefsFolderSandbox) -> None:
    add(project, "orders", spec=spec("orders", colums={}))
    with pytest.raises(Exception, match="orders") as raised, project.build_all_defs():
        pass
    assert "colums" in str(raised.value.__cause__ or raised.value)


@pytest.mark.usefixtures("environment")
def test_the_ledger_follows_the_file(
    project: DefsFolderSandbox, harness: hp.Harness, kafka: KafkaRig, instance: DagsterInstance
) -> None:
    topic = kafka.create(1)
    words = spec(f"t_{topic[-8:].lower()}", topic=topic, views="stream")
    add(project, "one", spec=words)
    with project.build_all_defs() as definitions:
        tick(definitions, instance)
    assert harness.table(words["table"]).spec.freshness.lake != 77

    add(project, "one", spec={**words, "freshness": {"lake": "77s"}})
    add(project, "refused", spec={**words, "table": "shop.refused", "topic": "nobody_made_it"})
    with project.build_all_defs() as definitions:
        tick(definitions, instance)
    assert harness.table(words["table"]).spec.freshness.lake == 77
    with pytest.raises(hp.HarnessError, match="refused"):
        harness.table("shop.refused")


def tick(definitions: Definitions, instance: DagsterInstance) -> None:
    """One look of the sensor lag."""
    resources: dict[str, Any] = {"harness": HarnessResource()}
    with build_sensor_context(instance=instance, resources=resources, definitions=definitions) as context:
        definitions.resolve_sensor_def("harness_lag").evaluate_tick(context)
