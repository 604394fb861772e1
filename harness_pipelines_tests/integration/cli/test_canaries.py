"""Secrets that are like no other text are planted wherever a user gives one, and looked for in all that comes out."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from click.testing import CliRunner
from dagster import DagsterInstance
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

import harness_pipelines as hp
from harness_pipelines.cli.main import _show_defect, cli
from harness_pipelines.cli.operate.serve import serving_here
from harness_pipelines.defs.build import build
from harness_pipelines.defs.tables import job_name
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.services import Services
from harness_pipelines.sources.kafka.users import give_scram_login
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.registry import RegistryServer
from harness_pipelines_tests.scrape import served

KINDS = ("owner", "worker", "spark", "kafka", "registry", "token", "key", "webhook", "other")
ROLES = {"owner": None, "worker": "harness_worker", "spark": "harness_spark"}
DEAD = "127.0.0.1:1"


class Canaries:
    """One secret of each kind, the environment that has them, and whatever was seen of what came out."""

    def __init__(self, services: Services) -> None:
        self.mark = f"c4nary{uuid.uuid4().hex[:10]}"
        self.of = {kind: f"{self.mark}{kind}" for kind in KINDS}
        self.seen: dict[str, bytes] = {}
        self.home = services.home
        running = services.current()
        assert running.owner and running.kafka and running.spark
        self.owner = running.owner
        self.logins = {kind: f"canary_{kind}_{uuid.uuid4().hex[:8]}" for kind in ROLES}
        server = conninfo_to_dict(self.owner)
        self.place = f"127.0.0.1:{server['port']}/harness"
        user = f"canary-{uuid.uuid4().hex[:8]}"
        self.kafka_login = {**running.kafka_login, "sasl.username": user, "sasl.password": self.of["kafka"]}
        give_scram_login(running.kafka, self.kafka_login, by=running.kafka_login)
        self.registry = RegistryServer(login=f"user:{self.of['registry']}")
        login = Settings(home=self.home, kafka=running.kafka, kafka_properties=self.kafka_login).kafka_environment()
        self.env = {
            **login,
            "HARNESS_HOME": str(self.home),
            "HARNESS_DSN": self.dsn("worker"),
            "HARNESS_OWNER_DSN": self.dsn("owner"),
            "HARNESS_SPARK_DSN": self.dsn("spark"),
            "HARNESS_SPARK": running.spark,
            "HARNESS_WAREHOUSE": running.warehouse,
            "HARNESS_KAFKA_SSL_KEY_PASSWORD": self.of["key"],
            "HARNESS_REGISTRY": self.registry.url,
            "HARNESS_REGISTRY_BASIC_AUTH_USER_INFO": f"user:{self.of['registry']}",
            "CANARY_WEBHOOK": f"http://{DEAD}/{self.of['webhook']}?sig={self.of['webhook']}",
            "PGPASSWORD": self.of["other"],
            "AWS_SECRET_ACCESS_KEY": self.of["other"],
        }

    def dsn(self, kind: str, *, password: str | None = None, place: str | None = None) -> str:
        return f"postgresql://{self.logins[kind]}:{password or self.of[kind]}@{place or self.place}"

    def __enter__(self) -> Canaries:
        with psycopg.connect(self.owner, autocommit=True) as connection:
            for kind, role in ROLES.items():
                name = sql.Identifier(self.logins[kind])
                rights = sql.SQL("" if role else "SUPERUSER ")
                connection.execute(
                    sql.SQL("CREATE ROLE {} LOGIN {}PASSWORD {}").format(name, rights, sql.Literal(self.of[kind]))
                )
                if role:
                    connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), name))
        return self

    def __exit__(self, *_: object) -> None:
        self.registry.close()
        with psycopg.connect(self.owner, autocommit=True) as connection:
            for name in map(sql.Identifier, self.logins.values()):
                connection.execute(sql.SQL("REASSIGN OWNED BY {} TO CURRENT_USER").format(name))
                connection.execute(sql.SQL("DROP OWNED BY {}").format(name))
                connection.execute(sql.SQL("DROP ROLE {}").format(name))

    def run(self, *words: str, code: int | None = 0, **changed: str) -> str:
        """Run a command; keep what it says."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARNESS_")}
        jars = {"HARNESS_JARS": os.environ["HARNESS_JARS"]} if "HARNESS_JARS" in os.environ else {}
        done = subprocess.run(
            [sys.executable, "-m", "harness_pipelines.cli.main", *words],
            env={**environment, **jars, **self.env, **changed},
            capture_output=True,
            check=False,
            timeout=120,
        )
        said = done.stdout + done.stderr
        self.keep(f"harness {' '.join(words)} {' '.join(changed)}", said)
        if code is not None:
            assert done.returncode == code, said.decode()
        return done.stdout.decode()

    def call(self, *words: str, **changed: str) -> None:
        """Run a command that fails in this process, which costs a tenth; what it raises is shown as `main` does."""
        shown = io.StringIO()
        done = CliRunner(env={**self.env, **changed}).invoke(cli, words)
        if done.exc_info is not None and not isinstance(done.exception, SystemExit | None):
            with redirect_stderr(shown):
                _show_defect(*done.exc_info)
        assert done.exit_code != 0, f"{words} {done.output}"
        self.keep(f"harness {' '.join(words)} {' '.join(changed)}", done.output + shown.getvalue())

    def keep(self, what: str, text: bytes | str) -> None:
        self.seen[f"{len(self.seen)}: {what}"] = text.encode() if isinstance(text, str) else text

    def found(self) -> list[str]:
        """Where one was seen, with what stood around it."""
        mark, found = self.mark.encode(), []
        for what, text in self.seen.items():
            at = text.find(mark)
            if at >= 0:
                found.append(f"{what}: ...{text[max(0, at - 200) : at + 60].decode(errors='replace')}...")
        return found

    @contextmanager
    def watching_processes(self) -> Iterator[None]:
        """Keep the command lines of all processes that run meanwhile."""
        over, lines = threading.Event(), set[bytes]()

        def watch() -> None:
            while not over.wait(0.02):
                for proc in Path("/proc").glob("[0-9]*/cmdline"):
                    try:
                        lines.add(proc.read_bytes())
                    except OSError:
                        continue

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            assert any(b"harness_pipelines.cli.main" in line for line in lines)
            self.keep("/proc/*/cmdline", b"\n".join(sorted(lines)))

    def keep_ledger(self) -> None:
        """All rows of all tables, and what the server knows of its sessions and settings."""
        with psycopg.connect(self.owner) as connection:
            tables = connection.execute(
                "SELECT schemaname, tablename FROM pg_tables"
                " WHERE schemaname IN ('harness', 'harness_buffer', 'public')"
            ).fetchall()
            assert ("harness", "tables") in tables
            for schema, table in [*tables, ("pg_catalog", "pg_stat_activity")]:
                # By a name that no column has: the segments of other tests have columns of all names.
                one = sql.SQL('SELECT "whole row"::text FROM {} AS "whole row"').format(sql.Identifier(schema, table))
                self.keep(f"{schema}.{table}", "\n".join(text for (text,) in connection.execute(one).fetchall()))

    def keep_files(self) -> None:
        """What the services and Dagster logged, and the metadata and names of the lake."""
        for path in (*(self.home / "logs").rglob("*.log"), *self.home.glob("dagster/**/*.yaml")):
            self.keep(str(path), path.read_bytes())
        for path in (self.home / "warehouse").rglob("*.json"):
            self.keep(str(path), path.read_bytes())


@pytest.fixture
def canaries(services: Services, harness) -> Iterator[Canaries]:
    with Canaries(services) as made:
        yield made


def _table(canaries: Canaries, kafka: KafkaRig, folder: Path, **more: str) -> tuple[str, Path]:
    topic = kafka.create(1)
    of_registry = [b"\0\0\0\0\7x"]
    values = [*(b'{"id":%d}' % number for number in range(50)), b'{"bad']
    kafka.produce(topic, 0, of_registry if more.get("format") == "avro" else values)
    name, file = f"canary.t_{uuid.uuid4().hex[:8]}", folder / f"{topic}.yaml"
    words = {"table": name, "topic": topic, "columns": {"id": "long"}, "layout": {"columns": ["id"]}, **more}
    file.write_text(json.dumps(words))
    return name, file


FAILURES: Mapping[str, Mapping[str, str]] = {
    "a wrong password": {"HARNESS_DSN": "postgresql://{worker_login}:{other}@{place}"},
    "a list with a wrong password": {"HARNESS_DSN": "host=127.0.0.1 port={port} user=u password='{other}'"},
    "a host that is not there": {"HARNESS_DSN": "postgresql://u:{worker}@nowhere.invalid/db"},
    "a port where nobody listens": {"HARNESS_DSN": "postgresql://u:{worker}@127.0.0.1:1/db"},
    "a slash in the password": {"HARNESS_DSN": "postgresql://u:{worker}/x@127.0.0.1:5432/db"},
    "a space in the password": {"HARNESS_DSN": "postgresql://u:{worker} x@127.0.0.1:5432/db"},
    "a percent sign in the password": {"HARNESS_DSN": "postgresql://u:{worker}%zz@127.0.0.1:5432/db"},
    "a list without quotes": {"HARNESS_DSN": "password=my {worker} host=127.0.0.1"},
    "no address at all": {"HARNESS_DSN": "{worker}"},
    "another scheme": {"HARNESS_DSN": "mysql://u:{worker}@127.0.0.1/db"},
    "the owner's, unreadable": {"HARNESS_OWNER_DSN": "postgresql://u:{owner}/x@127.0.0.1/db"},
    "Spark's, unreadable": {"HARNESS_SPARK_DSN": "password=my {spark} host=127.0.0.1"},
    "Spark's wrong password": {"HARNESS_SPARK_DSN": "postgresql://{spark_login}:{other}@{place}"},
    "Kafka's wrong password": {"HARNESS_KAFKA_SASL_PASSWORD": "{other}"},
    "Kafka away": {"HARNESS_KAFKA": "127.0.0.1:1"},
    "an unknown property of Kafka": {"HARNESS_KAFKA_SASL_PASSWRD": "{kafka}"},
    "a bad value of a property": {"HARNESS_KAFKA_SECURITY_PROTOCOL": "SSL", "HARNESS_KAFKA_SSL_KEY_PEM": "{key}"},
    "Spark's wrong token": {"HARNESS_SPARK": "{spark_place}/;token={token}"},
    "a wrong login of the registry": {"HARNESS_REGISTRY_BASIC_AUTH_USER_INFO": "user:{other}"},
    "a login in the registry's address": {"HARNESS_REGISTRY": "http://user:{registry}@127.0.0.1:1"},
    "a token of the registry": {
        "HARNESS_REGISTRY_BASIC_AUTH_USER_INFO": "", "HARNESS_REGISTRY_BEARER_AUTH_TOKEN": "{token}",
    },
}  # fmt: skip


@pytest.mark.long
def test_no_secret_comes_out_of_what_fails(canaries: Canaries, rig: KafkaRig, tmp_path: Path):
    name, file = _table(canaries, rig, tmp_path)
    with canaries.watching_processes():
        canaries.run("table", "apply", str(file), "--json", HARNESS_KAFKA_SSL_KEY_PASSWORD="")
        for words in (("init",), ("status", "--json"), ("table", "show", name)):
            canaries.run(*words)
    port = urlsplit(f"//{canaries.place}").port
    known = {
        **canaries.of, **{f"{kind}_login": login for kind, login in canaries.logins.items()},
        "place": canaries.place, "port": str(port), "spark_place": canaries.env["HARNESS_SPARK"].split("/;")[0],
    }  # fmt: skip
    for what, changed in FAILURES.items():
        _, in_avro = _table(canaries, rig, tmp_path, format="avro")  # a look at its records is asked for once
        canaries.call(
            *_command(what, name, file, in_avro),
            **{variable: value.format(**known) for variable, value in changed.items()},
        )
    canaries.keep_ledger()
    canaries.keep_files()
    canaries.run("table", "drop", name, "--yes", "--purge")
    assert canaries.found() == []


def _command(what: str, name: str, file: Path, in_avro: Path) -> list[str]:
    """One that meets the failure."""
    if "registry" in what:
        return ["table", "apply", str(in_avro)]
    if "owner" in what:
        return ["init"]
    if "Spark" in what:
        return ["sql", "--engine", "spark", f"SELECT count(*) FROM {name}"]
    if "Kafka" in what or "property" in what:
        return ["table", "apply", str(file)]
    return ["table", "list"]


class _Listener:
    """Takes requests, keeps what their bodies say, and answers with what was asked for."""

    def __init__(self, status: int) -> None:
        self.bodies: list[bytes] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                listener.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
                answer = f"{status} for {self.path} of {self.headers.get('Authorization')}".encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> _Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.long
def test_no_secret_comes_out_of_what_watches_or_is_told(
    canaries: Canaries, rig: KafkaRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name, file = _table(canaries, rig, tmp_path)
    canaries.env["HARNESS_KAFKA_SSL_KEY_PASSWORD"] = ""  # a client that has no key refuses to open
    canaries.run("table", "apply", str(file))
    canaries.run("run", name, "--stage", "ingest", "--until-idle")
    wrong = {"HARNESS_SPARK_DSN": canaries.dsn("spark", password=canaries.of["other"])}
    canaries.run("run", name, "--stage", "tier", "--until-idle", "--for", "40", code=None, **wrong)
    _deliver(canaries, name)
    for variable, value in canaries.env.items():
        monkeypatch.setenv(variable, value)
    _keep_watched(canaries, name)
    _keep_dagster(canaries, name, wrong, monkeypatch)
    canaries.keep_ledger()
    canaries.keep_files()
    canaries.run("table", "drop", name, "--yes", "--purge", code=None)
    assert canaries.found() == []


def _deliver(canaries: Canaries, name: str) -> None:
    """Events to a webhook that refuses them and quotes its secret address, and to one, and a lineage server, that take
    them."""
    secret, token = canaries.of["webhook"], canaries.of["token"]
    mine = name.rpartition(".")[2]  # the ledger has one state of each name
    for status in (404, 200):
        with _Listener(status) as there:
            hook = f"{there.url}/{secret}?sig={secret}"
            words = ("events", name, "--subscriber", f"{mine}_hook", "--webhook", "env:CANARY_WEBHOOK")
            canaries.run(*words, code=75 if status == 404 else 0, CANARY_WEBHOOK=hook)
            lineage = {"OPENLINEAGE_URL": there.url, "OPENLINEAGE_API_KEY": token}
            canaries.run("events", name, "--subscriber", f"{mine}_lineage", "--openlineage", code=None, **lineage)
        assert there.bodies
        canaries.keep(f"what a server that answers {status} was sent", b"\n".join(there.bodies))


def _keep_watched(canaries: Canaries, name: str) -> None:
    """The status page, the metrics, and Spark's settings as it shows them."""
    with hp.connect(home=canaries.home) as opened:
        with serving_here(opened, None) as (url, _):
            for path in ("/", f"/api/status?table={name}"):
                canaries.keep(
                    f"the page {path}", httpx.get(f"{url.rstrip('/')}{path}", timeout=120, trust_env=False).content
                )
        table = opened.table(name)
        with served(Worker(opened.stores, [table.row], WorkerOptions()), table) as url:
            canaries.keep("/metrics", httpx.get(url, timeout=120, trust_env=False).content)
        spark = opened.stores.spark()
        known = spark.sql("SET").collect()
        assert any("jdbc.password" in row[0] for row in known)
        canaries.keep("Spark's SET", "\n".join(f"{row[0]}={row[1]}" for row in known))
        with redirect_stdout(io.StringIO()) as plan:
            table.to_spark(spark).explain(extended=True)
        canaries.keep("a plan", plan.getvalue())


def _keep_dagster(canaries: Canaries, name: str, wrong: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that fail: their metadata and all of their events."""
    for variable, value in wrong.items():
        monkeypatch.setenv(variable, value)
    with hp.connect(home=canaries.home) as opened:
        definitions = build([opened.table(name).spec])
    with DagsterInstance.ephemeral() as instance:
        done = definitions.resolve_job_def(job_name(Stage.TIER)).execute_in_process(
            instance=instance, raise_on_error=False
        )
        entries = instance.all_logs(done.run_id)
        assert any(entry.dagster_event and entry.dagster_event.is_failure for entry in entries)
        canaries.keep("Dagster's events", "\n".join(f"{entry.to_json()} {entry.user_message}" for entry in entries))
        canaries.keep("Dagster's run", repr(instance.get_run_by_id(done.run_id)))


def test_what_is_looked_for_is_found(canaries: Canaries):
    """Else a test that finds nothing says nothing."""
    canaries.keep("plain", f"x{canaries.of['kafka']}x")
    assert len(canaries.found()) == 1
