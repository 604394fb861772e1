"""The settings and what is never printed of them."""

from __future__ import annotations

from pathlib import Path

from harness_pipelines.spec.settings import Settings


def test_each_setting_comes_from_its_variable():
    settings = Settings.from_env(
        {
            "HARNESS_DSN": "postgresql://me@db/x",
            "HARNESS_KAFKA": "k:9092",
            "HARNESS_SPARK": "sc://s",
            "HARNESS_WAREHOUSE": "s3://w",
            "HARNESS_HOME": "/srv/home",
            "HARNESS_KAFKA_SASL_PASSWORD": "secret",
            "OTHER": "x",
        }
    )

    assert (settings.dsn, settings.kafka, settings.spark) == ("postgresql://me@db/x", "k:9092", "sc://s")
    assert (settings.warehouse, settings.home) == ("s3://w", Path("/srv/home"))
    assert settings.kafka_properties == {"sasl.password": "secret"}
    assert "secret" not in repr(settings)


def test_what_is_not_set_is_the_embedded_service():
    settings = Settings.from_env({"HARNESS_KAFKA": "mine:9092", "HARNESS_DSN": ""})

    filled = settings.with_services(dsn="postgresql://a", kafka="embedded:1", spark="sc://b", warehouse="file:///c")

    assert (filled.dsn, filled.kafka, filled.spark) == ("postgresql://a", "mine:9092", "sc://b")
    assert settings.home.name == ".harness"
