"""The embedded services for real: they answer, survive crashes, share a machine and leave nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse

import grpc
import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, not declared so
from psycopg.conninfo import conninfo_to_dict

from harness_pipelines.drivers.object_stores.clients import spark_options
from harness_pipelines.services import Endpoints, ServiceDied, Services, ServiceState
from harness_pipelines.services.process import identify, is_alive
from harness_pipelines.services.spark import SLOTS_MIN
from harness_pipelines.services.state import StateFile
from harness_pipelines_tests.promise import within


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home of its own; whatever a test leaves running there is stopped."""
    yield tmp_path / "home"
    Services(tmp_path / "home").down()


def processes_of(home: Path) -> list[str]:
    """Return the command lines of all processes that name *home* or work in it."""
    found = []
    for proc in Path("/proc").iterdir():
        if not proc.name.isdigit() or int(proc.name) == os.getpid() or identify(int(proc.name)) is None:
            continue
        try:
            line = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            folder = os.readlink(proc / "cwd")
        except OSError:
            continue
        if str(home) in line or folder.startswith(str(home)):
            found.append(line)
    return found


def postmasters_of(home: Path) -> list[int]:
    """The server processes of the clusters of *home*. A child of one has its command line until it takes a name."""
    found: dict[int, int] = {}
    for proc in Path("/proc").iterdir():
        with suppress(OSError):  # it is no process, or has ended
            line = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if "/bin/postgres -D" in line and os.readlink(proc / "cwd").startswith(str(home)):
                found[int(proc.name)] = int((proc / "stat").read_text().rpartition(")")[2].split()[1])
    return [pid for pid, parent in found.items() if parent not in found]


def pid_of(services: Services, name: str) -> int | None:
    return next(one.pid for one in services.status() if one.name == name)


def dsn_of(endpoints: Endpoints) -> str:
    assert endpoints.postgres is not None
    return endpoints.postgres


def test_postgres_takes_the_password(endpoints):
    address = urlparse(dsn_of(endpoints))
    wanted = {"password_encryption": "scram-sha-256", "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
    assert settings_of(dsn_of(endpoints), *wanted) == wanted

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(f"postgresql://harness:wrong@127.0.0.1:{address.port}/harness")


def settings_of(dsn: str, *names: str) -> dict[str, str]:
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", (list(names),))
        return dict(found.fetchall())


def kafka_at(endpoints: Endpoints, **more: str | int | float) -> dict[str, str | int | float]:
    assert endpoints.kafka is not None
    own = {name.replace("_", "."): value for name, value in more.items()}
    return {"bootstrap.servers": endpoints.kafka, **endpoints.kafka_login, **own}


def make_topic(endpoints: Endpoints, topic: str) -> None:
    admin = AdminClient(kafka_at(endpoints))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(timeout=60)


def produce(endpoints: Endpoints, topic: str, value: bytes) -> None:
    producer = Producer(kafka_at(endpoints, message_max_bytes=16_000_000, message_timeout_ms=120_000))
    failures: list[KafkaError] = []
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert (producer.flush(150), failures) == (0, [])


def first_value(endpoints: Endpoints, topic: str) -> bytes | None:
    consumer = Consumer(kafka_at(endpoints, group_id=topic, auto_offset_reset="earliest"))
    try:
        consumer.subscribe([topic])
        message = consumer.poll(120)
    finally:
        consumer.close()
    assert message is not None and message.error() is None
    return message.value()


def test_kafka_gives_back_a_record_of_12_mb(endpoints):
    topic, value = f"t-{uuid.uuid4().hex}", os.urandom(12_000_000)
    make_topic(endpoints, topic)

    produce(endpoints, topic, value)

    assert first_value(endpoints, topic) == value


def test_kafka_makes_no_topic_by_itself(endpoints):
    topic = f"absent-{uuid.uuid4().hex}"
    producer = Producer(kafka_at(endpoints))

    asked = producer.list_topics(topic, timeout=60).topics[topic]

    assert asked.error is not None and asked.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert topic not in producer.list_topics(timeout=60).topics


def test_spark_reads_and_writes_an_iceberg_table_of_a_catalog_named_by_the_session(endpoints, make_database):
    from pyspark.sql import SparkSession

    # In a separate database: the catalog creates tables that the ledger would create in the shared one.
    address, name = conninfo_to_dict(make_database()), f"cat_{uuid.uuid4().hex[:8]}"
    jdbc = f"jdbc:postgresql://{address['host']}:{address['port']}/{address['dbname']}"
    spark = SparkSession.builder.remote(endpoints.spark).create()
    try:
        assert spark.sql("select current_timezone()").collect()[0][0] == "UTC"
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "jdbc",
            ".uri": jdbc,
            ".jdbc.user": address["user"],
            ".jdbc.password": address["password"],
            ".jdbc.schema-version": "V1",
            ".warehouse": f"{endpoints.warehouse}/{name}",
            **{f".{key}": value for key, value in spark_options(endpoints.warehouse, endpoints.s3).items()},
        }.items():
            spark.conf.set(f"spark.sql.catalog.{name}{key}", str(value))
        spark.sql(f"create namespace {name}.shop")
        spark.sql(f"create table {name}.shop.orders (id bigint) using iceberg")
        spark.sql(f"insert into {name}.shop.orders values (1), (2)")
        spark.sql(f"alter table {name}.shop.orders create branch staged")  # needs Iceberg's extensions

        assert sorted(row.id for row in spark.table(f"{name}.shop.orders").collect()) == [1, 2]
        rows = spark.read.format("jdbc").options(
            url=jdbc, user=address["user"], password=address["password"], dbtable="iceberg_tables"
        )
        assert rows.load().where(f"catalog_name = '{name}'").count() == 1  # the jdbc catalog is the one in Postgres
        spark.sql(f"drop table {name}.shop.orders purge")
        spark.sql(f"drop namespace {name}.shop")
    finally:
        spark.stop()


def test_spark_reads_batches_by_a_decompressor_without_known_flaws(endpoints):
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(endpoints.spark).create()
    try:
        where = spark.sql(
            "select java_method('java.lang.ClassLoader', 'getSystemResource', 'net/jpountz/lz4/LZ4Factory.class')"
        ).collect()[0][0]
    finally:
        spark.stop()

    assert "lz4-java-1.8." not in where
    assert "lz4-java-1.10." in where


def test_a_long_query_does_not_hold_up_what_is_asked_of_spark_after_it(endpoints):
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    busy, other = (SparkSession.builder.remote(endpoints.spark).create() for _ in range(2))
    tasks = 60 * max(SLOTS_MIN, os.cpu_count() or 1)  # a minute of them, which nobody waits for
    nap = busy.range(0, tasks, 1, tasks).selectExpr("java_method('java.lang.Thread', 'sleep', 1000L)")

    def work() -> None:
        with suppress(PySparkException):  # it is interrupted
            nap.collect()

    long = threading.Thread(target=work)
    try:
        other.range(5).count()
        long.start()
        time.sleep(1.5)  # its tasks take all places
        with within(5, "a count beside a long query"):
            assert other.range(0, 8, 1, 4).count() == 8
        assert long.is_alive(), "the count has not waited for its end"
    finally:
        busy.interruptAll()
        long.join()
        busy.stop()
        other.stop()


def test_spark_takes_nobody_without_its_token(endpoints):
    server = endpoints.spark.removeprefix("sc://").partition("/")[0]
    with grpc.insecure_channel(server) as channel:
        config = channel.unary_unary("/spark.connect.SparkConnectService/Config")
        with pytest.raises(grpc.RpcError) as refused:
            config(b"", timeout=60)

    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_up_again_starts_nothing(services):
    pids = [one.pid for one in services.status()]
    told: list[str] = []

    assert Services(services.home).up(progress=told.append) == services.current()
    assert ([one.pid for one in services.status()], told) == (pids, [])


def test_a_killed_postgres_comes_back_on_its_port_with_its_data(home):
    services = Services(home)
    before = services.up(only=["postgres"])
    assert before.owner is not None
    # A crash of the whole machine cannot be tried here; these are what Postgres survives it by.
    wanted = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "TimeZone": "UTC"}
    assert settings_of(dsn_of(before), *wanted) == wanted
    with psycopg.connect(before.owner) as connection:
        connection.execute("create table kept as select 42 as answer")
    services.kill("postgres")
    assert services.status()[0].state == ServiceState.DIED

    after = services.up(only=["postgres"])

    assert after == before
    with psycopg.connect(before.owner) as connection:
        assert connection.execute("select answer from kept").fetchone() == (42,)


def test_two_homes_run_side_by_side_and_end_one_by_one(home, tmp_path):
    one, two = Services(home), Services(tmp_path / "second")
    try:
        first, second = one.up(only=["postgres"]), two.up(only=["postgres"])
        assert first.postgres != second.postgres

        one.down()

        assert processes_of(home) == []
        with psycopg.connect(dsn_of(second)) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    finally:
        two.down()
    assert processes_of(tmp_path / "second") == []


def _up(home: Path) -> None:
    Services(home).up(only=["postgres"])


def test_two_calls_at_once_start_one_service(home):
    context = multiprocessing.get_context("spawn")
    calls = [context.Process(target=_up, args=(home,)) for _ in range(2)]
    for call in calls:
        call.start()
    for call in calls:
        call.join(600)

    assert [call.exitcode for call in calls] == [0, 0]
    assert postmasters_of(home) == [pid_of(Services(home), "postgres")]


def test_services_outlive_a_caller_that_is_killed_and_are_found_by_the_next_one(home):
    code = (
        "import sys, signal; from pathlib import Path; from harness_pipelines.services import Services\n"
        "Services(Path(sys.argv[1])).up(only=['postgres']); print('up', flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(home)], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "up\n"
        pid = pid_of(Services(home), "postgres")
        caller.send_signal(signal.SIGKILL)

    services = Services(home)
    services.up(only=["postgres"])
    assert pid_of(services, "postgres") == pid
    services.down()
    assert processes_of(home) == []


def test_a_service_that_nobody_remembers_is_ended_before_another_is_started(home):
    services = Services(home)
    services.up(only=["postgres"])
    process = StateFile(home).read()["postgres"].process
    (home / "services.json").unlink()  # as if the caller had died between the start and its note of it

    services.up(only=["postgres"])

    assert not is_alive(process)
    assert postmasters_of(home) == [pid_of(services, "postgres")]


def test_ctrl_c_in_a_start_is_one_line_and_the_next_call_finds_what_was_started(home):
    command = [sys.executable, "-m", "harness_pipelines.cli.main", "--home", str(home), "services", "up"]
    with subprocess.Popen([*command, "--only", "kafka"], stderr=subprocess.PIPE, text=True) as caller:
        assert caller.stderr is not None
        assert any("starting on port" in line for line in iter(caller.stderr.readline, ""))
        caller.send_signal(signal.SIGINT)
        rest = caller.stderr.read()

    services = Services(home)
    said = [line for line in rest.splitlines() if line not in {"", "kafka: ready"}]  # it may just have been ready
    assert (caller.returncode, said) == (130, ["harness: interrupted"])
    assert pid_of(services, "kafka") is not None
    services.down()
    assert processes_of(home) == []


def test_a_pid_file_that_names_another_live_process_does_not_hinder_a_start(home):
    services = Services(home)
    services.up(only=["postgres"])
    pid_file = home / "postgres" / "data" / "postmaster.pid"
    stale = pid_file.read_text()
    services.kill("postgres")
    other = subprocess.Popen(["/bin/sleep", "60"])
    try:
        pid_file.write_text("\n".join([str(other.pid), *stale.splitlines()[1:]]) + "\n")
        services.up(only=["postgres"])
    finally:
        other.kill()
        other.wait()

    assert services.status()[0].state == ServiceState.RUNNING


def test_a_start_that_fails_shows_the_log_and_the_way_on(home):
    services = Services(home)
    services.up(only=["postgres"])
    services.stop("postgres")
    with (home / "postgres" / "data" / "postgresql.conf").open("a") as conf:
        conf.write("no_such_setting = 1\n")

    with pytest.raises(
        ServiceDied, match="(?s)postgres ended while it started.*no_such_setting.*data under .* is kept"
    ):
        services.up(only=["postgres"])
    assert processes_of(home) == []


def test_a_port_taken_meanwhile_by_another_program_is_given_up(home):
    services = Services(home)
    port = urlparse(dsn_of(services.up(only=["postgres"]))).port
    services.stop("postgres")
    with socket.create_server(("127.0.0.1", port or 0)):
        moved = services.up(only=["postgres"])

    assert urlparse(dsn_of(moved)).port != port
    with psycopg.connect(dsn_of(moved)) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.long
def test_a_killed_broker_keeps_acknowledged_records_and_down_leaves_no_process(home):
    services = Services(home)
    cluster_id = home / "kafka" / "cluster-id"  # one generated id in 64 begins like an option
    cluster_id.parent.mkdir(parents=True)
    cluster_id.write_text("-dash_first_cluster_id")
    running = services.up(only=["kafka"])
    make_topic(running, "kept")
    produce(running, "kept", b"value")
    services.kill("kafka")

    again = services.up(only=["kafka"])

    assert (again.kafka, again.kafka_login) == (running.kafka, running.kafka_login)
    assert first_value(again, "kept") == b"value"
    services.down()
    assert processes_of(home) == []
    assert [one.state for one in services.status()] == [ServiceState.STOPPED] * 3
