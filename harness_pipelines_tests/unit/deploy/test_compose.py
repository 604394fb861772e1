"""What of the containers can be checked without a Docker engine: nothing that is named is missing or misspelt."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._core.workspace.load import location_origins_from_yaml_paths

from harness_pipelines.spec.object_stores import S3Settings
from harness_pipelines.spec.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "images/Dockerfile"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: one for name, one in SERVICES.items() if "build" in one}
OF_OTHERS = {"DAGSTER_PG_URL", "SPARK_MEMORY"}  #: read by dagster.yaml and by the script spark-connect
REFERENCE = re.compile(r"\$\{(\w+)")


def lines(path: Path) -> list[str]:
    """Of a file, with continued lines joined."""
    return path.read_text().replace("\\\n", " ").splitlines()


def copied() -> Iterator[str]:
    for line in lines(DOCKERFILE):
        if line.startswith("COPY ") and "--from" not in line:
            yield from [word for word in line.split()[1:-1] if not word.startswith("--")]


def test_every_file_that_is_copied_or_mounted_is_there_and_not_ignored():
    kept = [line[1:] for line in lines(DEPLOY / "images/Dockerfile.dockerignore") if line.startswith("!")]
    for source in copied():
        assert (ROOT / source).exists(), source
        assert any(source == one or source.startswith(f"{one}/") for one in kept), f"{source} is ignored"
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source, _, _ = volume.partition(":")
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_file(), volume
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).samefile(DOCKERFILE)


def test_the_parts_of_the_file_fit_each_other():
    used = {volume.partition(":")[0] for one in SERVICES.values() for volume in one.get("volumes", ())}
    assert set(COMPOSE["volumes"]) == {name for name in used if not name.startswith(".")}
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES, f"{name} needs {needed}"
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[needed], needed
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} is reachable from outside"
    hosts = re.findall(r"(?:@|://|=)([a-z]+):\d+", "\n".join(OURS["code"]["environment"].values()))
    assert {"postgres", "kafka", "spark"} <= set(SERVICES)
    assert set(hosts) <= set(SERVICES)


def test_no_container_can_take_all_memory_and_spark_fits_its_own():
    sizes = {name: re.search(r"(\d+)g}?$", str(one["mem_limit"])) for name, one in SERVICES.items()}
    gigabytes = {name: int(found[1]) for name, found in sizes.items() if found}
    assert gigabytes.keys() == SERVICES.keys()
    [heap] = re.findall(r"-(\d+)g", SERVICES["spark"]["environment"]["SPARK_MEMORY"])
    assert gigabytes["spark"] >= 2 * int(heap)
    assert f"{sum(gigabytes.values())} GB" in (ROOT / "docs/how-to/deploy.md").read_text()


def test_secrets_are_asked_for_and_in_the_example():
    example = dict(
        line.split("=", 1) for line in (DEPLOY / "compose.env.example").read_text().splitlines() if "=" in line
    )
    asked = set(REFERENCE.findall((DEPLOY / "compose.yaml").read_text()))
    assert asked == set(example)
    assert not [
        name for name, value in example.items() if name.endswith("PASSWORD") and not value.startswith("change-me")
    ]


def test_the_image_has_every_kind_of_jars_that_spark_loads():
    """Those of the embedded Kafka are not needed beside a broker, and those of Kafka Connect by a bench alone."""
    kinds = {pom.stem for pom in (DEPLOY / "jars").glob("*.xml")} - {"kafka", "connect"}
    [found] = re.findall(r"for kind in ([a-z0-9 ]+);", DOCKERFILE.read_text())
    assert set(found.split()) == kinds
    assert {f"deploy/jars/{kind}.xml" for kind in kinds} <= set(copied())
    [path] = re.findall(r"extraClassPath=([^\"]+)", (DEPLOY / "images/spark-connect").read_text())
    assert set(path.split(":")) == {f"/opt/jars/{kind}/*" for kind in kinds}


def test_the_lake_of_the_example_can_be_a_folder_or_a_store():
    """What `docker compose` hands on when a variable of the example is left empty is no setting at all."""
    given = {name: value for name, value in OURS["worker"]["environment"].items() if name.startswith("HARNESS_S3_")}
    assert given.keys() >= {"HARNESS_S3_ENDPOINT", "HARNESS_S3_ACCESS_KEY", "HARNESS_S3_SECRET_KEY"}
    assert Settings.from_env({**dict.fromkeys(given, ""), "HARNESS_WAREHOUSE": "/lake"}).s3 == S3Settings()


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_variable_has_a_reader(name: str):
    known = {f"HARNESS_{field.name.upper()}" for field in fields(Settings)}
    known |= {f"HARNESS_S3_{field.name.upper()}" for field in fields(S3Settings)}
    assert set(OURS[name]["environment"]) <= known | OF_OTHERS


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_command_is_there_and_takes_its_options(name: str):
    program, *arguments = OURS[name]["command"]
    if program == "spark-connect":
        script = DEPLOY / "images/spark-connect"
        assert f"deploy/images/{program}" in list(copied())
        subprocess.run(["sh", "-n", str(script)], check=True)
        return
    found = shutil.which(program, path=str(Path(sys.executable).parent))
    assert found, program
    # Parsed up to the help that is asked for last, so that a wrong option is said.
    done = subprocess.run([found, *arguments, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    options = [word for word in arguments if word.startswith("-")]
    assert [option for option in options if option not in done.stdout] == []


def test_shell_scripts_parse():
    for script in (DEPLOY / "images").iterdir():
        if script.read_text().startswith("#!/bin/sh"):
            subprocess.run(["sh", "-n", str(script)], check=True)
            assert script.stat().st_mode & 0o111, f"{script.name} is not executable"


def test_dagster_takes_its_instance_and_its_workspace(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DAGSTER_PG_URL", "postgresql://dagster:x@postgres:5432/dagster")
    values, _ = dagster_instance_config(str(ROOT))
    assert values["storage"]["postgres"]["postgres_url"] == {"env": "DAGSTER_PG_URL"}
    [origin] = location_origins_from_yaml_paths([str(DEPLOY / "workspace.yaml")])
    assert isinstance(origin, GrpcServerCodeLocationOrigin)
    command = SERVICES[origin.host]["command"]
    assert str(origin.port) in command
