"""The peer Kafka Connect is set up as its manual says, and shows its keys to nobody."""

from __future__ import annotations

from pathlib import Path

from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.bench.connect import (
    TOPIC_FIELD,
    in_properties_file,
    route_properties,
    sink_properties,
    worker_properties,
)

LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
SETTINGS = Settings(
    home=Path("/home"),
    kafka="127.0.0.1:9092",
    kafka_properties={**LOGIN, "sasl.username": "harness", "sasl.password": "a\\b"},
)


def test_every_client_of_the_worker_logs_in_and_it_answers_on_this_machine_alone():
    found = worker_properties(SETTINGS, Path("/folder"), 8083)

    assert found["listeners"] == "http://127.0.0.1:8083"
    for client in ("", "consumer.", "producer.", "admin."):
        assert found[f"{client}bootstrap.servers"] == "127.0.0.1:9092"
        assert "ScramLoginModule" in found[f"{client}sasl.jaas.config"]


def test_the_sink_writes_the_rows_of_the_other_peers_by_their_catalog_at_the_interval_that_is_asked():
    catalog = {"": "SparkCatalog", "type": "jdbc", "uri": "jdbc:postgresql://x/y", "s3.endpoint": "http://127.0.0.1:1"}

    found = sink_properties(SETTINGS, catalog, control="control", commit_s=10)
    found |= route_properties({"orders": "t_1"})

    assert (found["topics"], found["iceberg.tables"], found["tasks.max"]) == ("orders", "bench.t_1", "1")
    assert found["iceberg.control.commit.interval-ms"] == "10000"
    assert found["iceberg.catalog.s3.endpoint"] == "http://127.0.0.1:1"
    assert "iceberg.catalog.type" not in found, "a type beside the class is refused"
    inserted = {found[f"transforms.coordinates.{what}.field"] for what in ("partition", "offset", "timestamp")}
    assert inserted == {"kafka_partition", "kafka_offset", "kafka_timestamp"}


def test_of_several_topics_a_record_goes_to_the_table_that_is_named_as_its_topic():
    found = route_properties({"bench.t_1": "t_1", "bench.t_2": "t_2"})

    assert found["topics"] == "bench.t_1,bench.t_2"
    assert found["iceberg.tables.dynamic-enabled"] == "true"
    assert found["iceberg.tables.route-field"] == found["transforms.coordinates.topic.field"] == TOPIC_FIELD


def test_a_backslash_in_a_setting_is_read_as_one():
    assert in_properties_file({"a": "b\\c"}) == "a=b\\\\c\n"
