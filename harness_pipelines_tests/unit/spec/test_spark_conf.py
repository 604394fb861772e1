"""Properties of Spark are variables of the environment, and those that would do harm are refused by name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import SPARK_CONF_PREFIX as PREFIX
from harness_pipelines.spec.settings import Settings, property_of, variable_of
from harness_pipelines.spec.settings import spark_conf_of as from_env

names = st.from_regex(r"spark(\.[A-Za-z0-9-][A-Za-z0-9_-]*)+", fullmatch=True)


@given(names)
def test_each_property_has_one_variable(name: str):
    assert property_of(variable_of(name)) == name
    assert re.fullmatch(r"[A-Za-z0-9_-]+", variable_of(name))


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("spark_executor_memory", "spark.executor.memory"),
        ("spark_dynamicAllocation_maxExecutors", "spark.dynamicAllocation.maxExecutors"),
        ("spark_kubernetes_executor_label_my__team", "spark.kubernetes.executor.label.my_team"),
        ("spark_executorEnv_A__B", "spark.executorEnv.A_B"),
    ],
)
def test_a_dot_is_an_underscore(variable: str, name: str):
    assert from_env({PREFIX + variable: "1"}, catalog="harness") == {name: "1"}


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SPARK_EXECUTOR_MEMORY", "HARNESS_SPARK_CONF_spark_executor_memory"),
        ("EXECUTOR_CORES", "HARNESS_SPARK_CONF_spark_executor_cores"),
        ("executor_cores", "HARNESS_SPARK_CONF_spark_executor_cores"),
    ],
)
def test_another_spelling_is_refused_with_the_right_one(variable: str, meant: str):
    with pytest.raises(UsageError, match=rf"{PREFIX}{variable}.*names no property of Spark.*{meant}\?"):
        from_env({PREFIX + variable: "1"}, catalog="harness")


@pytest.mark.parametrize("variable", ["", "spark", "spark_", "spark__x", "spark_a\nb", "spark_a b", "spark_a=b", "x"])
def test_what_is_no_name_is_refused(variable: str):
    with pytest.raises(UsageError, match="names no property of Spark"):
        from_env({PREFIX + variable: "1"}, catalog="harness")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("spark.master", "HARNESS_SPARK says it"),
        ("spark.jars", "HARNESS_JARS"),
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.sql.catalog.lake", "the harness makes this catalog"),
        ("spark.sql.catalog.lake.uri", "the harness makes this catalog"),
    ],
)
def test_what_the_harness_relies_on_cannot_be_set(name: str, why: str):
    with pytest.raises(UsageError, match=f"{variable_of(name)} cannot be set: .*{why}"):
        from_env({variable_of(name): "1"}, catalog="lake")


def test_other_catalogs_are_free():
    name = "spark.sql.catalog.lakehouse"
    assert from_env({variable_of(name): "1"}, catalog="lake") == {name: "1"}


def test_a_value_is_one_line():
    with pytest.raises(UsageError, match="line break"):
        from_env({PREFIX + "spark_app_name": "a\nspark.jars=b"}, catalog="harness")


def test_settings_have_them(tmp_path):
    env = {"HARNESS_SPARK_CONF_spark_cores_max": "2", "HARNESS_SPARK": "spark://m:7077", "HARNESS_CATALOG_NAME": "lake"}

    made = Settings.from_env(env, home=tmp_path)

    assert made.spark_conf == {"spark.cores.max": "2"}
    assert made.spark == "spark://m:7077"
