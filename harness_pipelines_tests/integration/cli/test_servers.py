"""A server that is away, or refuses the login, is named with the setting to correct; the exit code says which it is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from harness_pipelines.services import Services
from harness_pipelines.sources.kafka import log
from harness_pipelines.sources.kafka.client import KafkaTimeouts
from harness_pipelines_tests.certificates import Authority
from harness_pipelines_tests.integration.cli.conftest import Cli
from harness_pipelines_tests.integration.tls.test_tls import serve_registry
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.registry import RegistryServer, serving

LONG = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
AGAIN = 75


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serving(login="user:right") as found:
        yield found


@pytest.fixture(params=["with a record", "without a record"])
def avro(request: pytest.FixtureRequest, rig: KafkaRig, registry: RegistryServer, tmp_path: Path) -> tuple[str, Path]:
    """Name and file of a spec whose records name schemas of *registry*."""
    topic, name = rig.create(1), f"cli.t_{uuid.uuid4().hex[:10]}"
    if request.param == "with a record":
        number = registry.register(f"{topic}-value", LONG)
        rig.produce(topic, 0, [b"\0" + number.to_bytes(4) + b"\2"])
    file = tmp_path / "avro.yaml"
    file.write_text(json.dumps({"table": name, "topic": topic, "columns": {"id": "long"}, "format": "avro"}))
    return name, file


def env_of(registry: RegistryServer, **more: str) -> dict[str, str]:
    login = {"HARNESS_REGISTRY_BASIC_AUTH_USER_INFO": "user:right"}
    return {"HARNESS_REGISTRY": registry.url, **login, **more}


def test_a_registry_that_refuses_the_login_makes_no_table(harness: Cli, registry: RegistryServer, avro):
    name, file = avro
    wrong = env_of(registry, HARNESS_REGISTRY_BASIC_AUTH_USER_INFO="user:wrong")
    done = harness("table", "apply", str(file), code=1, env=wrong)
    assert "the login at the schema registry" in done.stderr
    assert "HARNESS_REGISTRY_BASIC_AUTH_USER_INFO" in done.stderr
    assert name not in harness("table", "list").stdout
    harness("table", "apply", str(file), env=env_of(registry))
    harness("table", "apply", str(file), env=wrong)  # nothing of it is new, so nobody is asked
    harness("table", "drop", name, "--yes", "--purge")


@pytest.mark.parametrize(("status", "code"), [(401, 1), (403, 1), (500, AGAIN), (503, AGAIN), (404, AGAIN)])
def test_the_exit_code_says_whether_the_registry_will_answer_later(
    harness: Cli, registry: RegistryServer, avro, status: int, code: int
):
    name, file = avro
    registry.fail_with = status
    done = harness("table", "apply", str(file), code=code, env=env_of(registry))
    assert "HARNESS_REGISTRY" in done.stderr
    assert name not in harness("table", "list").stdout


def test_a_registry_that_is_away_is_tried_again(harness: Cli, avro):
    name, file = avro
    done = harness("table", "apply", str(file), code=AGAIN, env={"HARNESS_REGISTRY": "http://127.0.0.1:1"})
    assert "http://127.0.0.1:1 gave no answer" in done.stderr
    assert name not in harness("table", "list").stdout


@pytest.mark.parametrize("given", ["nothing to trust", "an authority that is not its own", "a file that is not there"])
def test_a_registry_whose_certificate_is_not_accepted_makes_no_table(harness: Cli, avro, tmp_path: Path, given: str):
    name, file = avro
    pair = Authority(tmp_path / "ours").sign("registry")
    roots = {
        "nothing to trust": {},
        "an authority that is not its own": {"HARNESS_REGISTRY_SSL_CA_LOCATION": str(Authority(tmp_path / "b").root)},
        "a file that is not there": {"HARNESS_REGISTRY_SSL_CA_LOCATION": str(tmp_path / "none.pem")},
    }
    with serving(tls=serve_registry(pair)) as server:
        words = {"HARNESS_REGISTRY": server.url, **roots[given]}
        code = 2 if given == "a file that is not there" else 1
        done = harness("table", "apply", str(file), code=code, env=words)
    assert "HARNESS_REGISTRY" in done.stderr
    assert name not in harness("table", "list").stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ({"HARNESS_KAFKA": "127.0.0.1:1"}, AGAIN, "HARNESS_KAFKA"),
        ({"HARNESS_KAFKA_SASL_PASSWORD": "wrong"}, 1, "HARNESS_KAFKA_SASL_"),
        ({"HARNESS_DSN": "postgresql://harness:wrong@{place}/harness"}, 1, "HARNESS_DSN"),
        ({"HARNESS_DSN": "postgresql://harness:wrong@127.0.0.1:1/harness"}, AGAIN, "HARNESS_DSN"),
        ({"HARNESS_WAREHOUSE": "file:///proc/nowhere"}, AGAIN, "/proc/nowhere"),
        ({"HARNESS_WAREHOUSE": "s3://b/lake", "HARNESS_LAKE_S3_ENDPOINT": "http://127.0.0.1:1"}, None, "s3://b"),
    ],
)
def test_apply_names_what_it_cannot_use(
    harness: Cli,
    services: Services,
    spec,
    monkeypatch: pytest.MonkeyPatch,
    words: dict[str, str],
    code: int | None,
    said: str,
):
    monkeypatch.setattr(log, "KafkaTimeouts", partial(KafkaTimeouts, request_s=3.0))
    name, file = spec
    running = services.current()
    assert running.kafka and running.postgres and running.owner
    place = f"127.0.0.1:{conninfo_to_dict(running.owner)['port']}"
    changed = {word: value.format(place=place) for word, value in words.items()}
    if "HARNESS_KAFKA_SASL_PASSWORD" in changed:
        login = {f"HARNESS_KAFKA_{k.upper().replace('.', '_')}": v for k, v in running.kafka_login.items()}
        changed = {"HARNESS_KAFKA": running.kafka, **login, **changed}
    done = harness("table", "apply", str(file), code=code, env=changed) if code else None
    assert done is None or said in done.stderr
    assert name not in harness("table", "list").stdout


@pytest.mark.parametrize(
    "kind", ["a wrong password", "no right to connect", "no rights of a role", "a port where nobody listens"]
)
def test_sql_names_what_spark_cannot_log_in_to(harness: Cli, services: Services, table: str, kind: str):
    running = services.current()
    assert running.owner
    at = conninfo_to_dict(running.owner)
    login = f"spark_{uuid.uuid4().hex[:8]}"
    place = f"127.0.0.1:{at['port']}"
    wrong = {
        "a wrong password": (f"postgresql://{login}:wrong@{place}/harness", 1, "Postgres refused Spark's login"),
        "no right to connect": (f"postgresql://{login}:right@{place}/harness", 1, "Postgres refused Spark's login"),
        "no rights of a role": (f"postgresql://{login}:right@{place}/harness", 1, "may not act as its role"),
        "a port where nobody listens": (f"postgresql://{login}:right@127.0.0.1:1/harness", AGAIN, "127.0.0.1:1"),
    }
    with psycopg.connect(running.owner, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'right'".encode())
        if kind == "no rights of a role":
            owner.execute(f"GRANT CONNECT ON DATABASE harness TO {login}".encode())
        try:
            dsn, code, said = wrong[kind]
            words = ("sql", "--engine", "spark", f"SELECT count(*) FROM {table}")
            done = harness(*words, code=code, env={"HARNESS_SPARK_DSN": dsn})
        finally:
            owner.execute(f"REVOKE ALL ON DATABASE harness FROM {login}; DROP ROLE {login}".encode())
    assert said in done.stderr, done.stderr
    assert "HARNESS_SPARK_DSN" in done.stderr or code == AGAIN
    assert "Traceback" not in done.output
    assert len(done.stderr) < 1_500
    assert (urlsplit(dsn).password or "?") not in done.stderr
