"""What the tests of whole tables share: a topic with its table, workers in threads and processes, and the judge.

The judge is the producer's own log: a read must give exactly the acknowledged records, each once, and the ledger is
never asked.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from zlib import crc32

import orjson
from psycopg.conninfo import make_conninfo

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.app.installation import Stores
from harness_pipelines.chaos.processes import environment as environment  # noqa: PLC0414  # a part of the rig
from harness_pipelines.chaos.proxy import PostgresProxy as PostgresProxy  # noqa: PLC0414  # a part of the rig
from harness_pipelines.ports.ledger import MoveDraft
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.versions import Version
from harness_pipelines.services import Endpoints
from harness_pipelines.spec.locations import local_path
from harness_pipelines.spec.object_stores import S3Settings
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.producer import KafkaRig, wait_until

COLUMNS: Mapping[str, Any] = {"id": {"type": "long", "required": True}, "n": "int", "s": "string"}
ALL = frozenset(Stage)
INGEST = frozenset({Stage.INGEST})
TIER = frozenset({Stage.TIER})
OTREE = frozenset({Stage.OTREE})
COORDINATES = ("_kafka_partition", "_kafka_offset")
DEADLINE_S = 120.0  #: on a busy machine
ENDLESS_S = 300.0  #: after which a process that was asked to end does not end at all
Row = tuple[int, int, int]  #: partition, offset, id
MoveOnce = Callable[..., object]  #: `tier_once` and its like
ByHand = Callable[[hp.Harness, Sequence[str]], None]  #: something done to tables by name


def good(number: int) -> bytes:
    """A value that fits `COLUMNS`."""
    return b'{"id":%d,"n":%d,"s":"row %d"}' % (number, number % 100, number)


def settings_for(endpoints: Endpoints, home: Path, **changes: Any) -> Settings:
    """Settings of the shared services, with *changes* for what a test replaces."""
    jars = os.environ.get("HARNESS_JARS")
    made = replace(
        Settings(
            home=home,
            dsn=endpoints.postgres,
            kafka=endpoints.kafka,
            kafka_properties=endpoints.kafka_login,
            spark=endpoints.spark,
            warehouse=endpoints.warehouse,
            s3=endpoints.s3 or S3Settings(),
            jars=Path(jars) if jars else None,
            engine=Settings.from_env(home=home).engine,
        ),
        **changes,
    )
    assert endpoints.s3 is None or local_path(made.warehouse or "") is None, (
        "the tests have their lake on a store: make the warehouse by `new_warehouse`, or mark the test `folder(why)`"
    )
    return made


def new_warehouse(endpoints: Endpoints, folder: Path) -> str:
    """A warehouse that nobody has, where the tests have theirs: in *folder*, or in the bucket."""
    if endpoints.s3 is None:
        return f"file://{folder}/warehouse"
    bucket = "/".join(endpoints.warehouse.split("/")[:3])
    assert bucket.startswith("s3://"), bucket
    return f"{bucket}/{uuid.uuid4().hex[:10]}"


def with_session(dsn: str, **options: str) -> str:
    """*dsn* with session settings of its own, as a user writes them."""
    return make_conninfo(dsn, options=" ".join(f"-c {name}={value}" for name, value in options.items()))


def engine_of_test() -> str:
    """What moves the rows of this test's tables: Spark in every fourth test, in each run of the tests the same ones.

    Both leave the same files (`integration/tables/test_engines_agree.py`), and for the few rows of a test Spark takes
    ten times as long. `--engine spark` and `--engine arrow` run all tests by one. What is about Spark says so.
    """
    test, _, _ = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")
    return os.environ.get("HARNESS_ENGINE") or ("arrow" if crc32(test.encode()) % 4 else "spark")


class TableRig:
    """One topic, its table, and what a read of it must show.

    The table has the stream view alone unless *spec* says otherwise: a second view doubles what a test waits for.
    """

    def __init__(
        self,
        harness: hp.Harness,
        kafka: KafkaRig,
        *,
        partitions: int = 2,
        topic_config: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        self.harness, self.kafka = harness, kafka
        spec = {"columns": COLUMNS, "views": "stream", "engine": engine_of_test(), **spec}
        self.topic = kafka.create(partitions, topic=f"f_{uuid.uuid4().hex[:10]}", config=topic_config)
        self.table = harness.apply(
            hp.TableSpec.model_validate({"table": f"faults.{self.topic}", "topic": self.topic, **spec})
        )
        self._next = 0
        self._misfits: set[tuple[int, int]] = set()

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def stores(self) -> Stores:
        return self.harness.stores

    # -- the producer's side --------------------------------------------------------------------------------

    def values(self, count: int) -> list[bytes]:
        """The next *count* values that fit."""
        first, self._next = self._next, self._next + count
        return [good(i) for i in range(first, first + count)]

    def produce(self, count: int) -> None:
        """Produce *count* good records to every partition and wait for their acknowledgement."""
        for partition in self.kafka.acked(self.topic):
            self.kafka.produce(self.topic, partition, self.values(count))

    def produce_misfit(self, value: bytes | None, partition: int = 0) -> int:
        """Produce a record that must end in quarantine; returns its offset."""
        [offset] = self.kafka.produce(self.topic, partition, [value])
        self._misfits.add((partition, offset))
        return offset

    @property
    def truth(self) -> Counter[Row]:
        """Every acknowledged record that fits."""
        return Counter(
            (partition, offset, orjson.loads(value or b"null")["id"])
            for partition, records in self.kafka.acked(self.topic).items()
            for offset, value in records.items()
            if (partition, offset) not in self._misfits
        )

    # -- the reader's side ----------------------------------------------------------------------------------

    def read(self, **options: Any) -> Counter[Row]:
        """What a read shows now; a doubled row counts twice."""
        found = self.table.read(columns=["id", *COORDINATES], **options)
        return Counter(zip(*(found.column(name).to_pylist() for name in (*COORDINATES, "id")), strict=True))

    def quarantine(self) -> dict[tuple[int, int], tuple[str, str, bytes | None]]:
        """{(partition, offset): (reason, detail, value)} of the refused records that are held."""
        with self.stores.database.session() as connection:
            rows = connection.execute(
                'SELECT partition, "offset", reason, detail, value FROM harness.quarantine '
                "WHERE table_id = %s AND state = 'held'",
                [self.table.row.table_id],
            ).fetchall()
        return {(r["partition"], r["offset"]): (r["reason"], r["detail"], r["value"]) for r in rows}

    def assert_exact(self) -> None:
        """A read gives the producer's log: nothing lost, nothing doubled, nothing else; misfits are in quarantine."""
        found, truth = self.read(), self.truth
        assert found == truth, f"lost {sorted(truth - found)[:5]}, too many {sorted(found - truth)[:5]}"
        assert set(self.quarantine()) == self._misfits

    def await_exact(self, *, deadline_s: float = DEADLINE_S) -> None:
        """Wait until a read has as many rows as were acknowledged, then judge. No read on the way may be wrong."""
        self.await_rows(self.truth.total(), deadline_s=deadline_s)
        self.assert_exact()

    def await_rows(self, count: int, *, deadline_s: float = DEADLINE_S) -> None:
        """Wait until a read has at least *count* rows; none on the way may show one that nobody produced, or twice."""

        def there() -> bool:
            found = self.read()
            assert not found - self.truth, f"rows that nobody produced: {sorted(found - self.truth)[:5]}"
            return found.total() >= count

        wait_until(there, f"{count} records of {self.name} are read", deadline_s=deadline_s)

    # -- workers --------------------------------------------------------------------------------------------

    def ingest(self) -> None:
        """Take what the log has into the buffer and stop."""
        self.worker(INGEST, until_idle=True).run()

    def tier(self) -> None:
        """Move what is buffered to the lake and stop."""
        self.worker(TIER, until_idle=True).run()

    def move_once(self, stage: Stage, step: MoveOnce, *, crash: str | None) -> None:
        """One move of *stage*; with *crash* it dies at that point, if it comes there, and is gone on with later."""
        claim = self.claim(stage)
        if crash is not None:
            faults.arm_from({"HARNESS_FAULT": f"{stage.value}.{crash}=raise"})
        try:
            step(self.stores, self.table.row, claim, trigger="test")
        except faults.FaultInjected:
            assert crash is not None
        finally:
            faults.disarm()
            self.stores.ledger.release(claim)

    def relayout(self) -> Version:
        """Every file of the batch view is rewritten, better or not: somebody asked for it."""
        claim = self.claim(Stage.OTREE)
        self.plan_relayout(claim)
        made = otree_once(self.stores, self.table.row, claim, trigger="test")
        self.stores.ledger.release(claim)
        assert made is not None
        return made

    def plan_relayout(self, claim: Claim) -> Move:
        """Record a move that writes every file of the batch view again."""
        on = self.stores.ledger.head(self.table.row)
        draft = MoveDraft(
            stage=Stage.OTREE,
            shard=0,
            lo={},
            hi={},
            base_version=on.version,
            schema_version=on.schema_version,
            trigger="test",
            parts=("",),
        )
        return self.stores.ledger.plan_move(claim, draft)

    def worker(self, stages: frozenset[Stage] = ALL, *, lease_s: float = 5.0, until_idle: bool = False) -> Worker:
        options = WorkerOptions(stages=stages, until_idle=until_idle, lease=timedelta(seconds=lease_s))
        return Worker(self.stores, [self.table.row], options)

    @contextmanager
    def working(self, stages: frozenset[Stage] = INGEST, *, lease_s: float = 5.0) -> Iterator[Worker]:
        """A worker in a thread; what ended it, if anything did, is raised at the end."""
        with running(self.worker(stages, lease_s=lease_s)) as worker:
            yield worker

    def claim(self, stage: Stage, *, lease_s: float = 600.0) -> Claim:
        claim = self.stores.ledger.claim(
            self.table.row, stage, shard=0, holder=str(uuid.uuid4()), lease=timedelta(seconds=lease_s)
        )
        assert claim is not None, f"{stage} of {self.name} is claimed by somebody"
        return claim

    def status(self) -> dict[int, tuple[int, int]]:
        """{partition: (stream_hi, buffer_hi)}."""
        return {p.partition: (p.bounds.stream_hi, p.bounds.buffer_hi) for p in self.table.positions()}


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    """Run *worker* in a thread while the block lasts."""
    ended: list[BaseException] = []

    def work() -> None:
        try:
            worker.run(every_s=0.05)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the worker did not stop"
    if ended:
        raise ended[0]


def await_trouble(worker: Worker, stage: Stage, *, table: int = 0, deadline_s: float = DEADLINE_S) -> str:
    """Wait until *stage* says what it waits for, and return it."""
    trouble = worker.progress[table].trouble
    said = ""

    def in_trouble() -> bool:
        nonlocal said
        said = trouble.get(stage, "")  # in one look: a stage that goes on forgets its trouble
        return bool(said)

    wait_until(in_trouble, f"{stage} is in trouble", deadline_s=deadline_s)
    return said


# -- processes ----------------------------------------------------------------------------------------------


class WorkerProcess:
    """A worker in a process of its own, to be killed, stopped and woken. Ends with the block."""

    def __init__(
        self,
        settings: Settings,
        tables: Sequence[str],
        *,
        stages: frozenset[Stage] = ALL,
        fault: str = "",
        lease_s: float = 3.0,
        until_idle: bool = False,
        for_s: float | None = None,
        instead: ByHand | None = None,
    ) -> None:
        """*instead*: what the process runs in place of a worker; a function of a module."""
        options = WorkerOptions(stages=stages, until_idle=until_idle, for_s=for_s, lease=timedelta(seconds=lease_s))
        self.was_alive = False  #: until the block ended
        self._process = _FORKS.Process(
            target=_work, args=(settings, tuple(tables), instead or partial(_run_worker, options), fault), daemon=True
        )

    def __enter__(self) -> WorkerProcess:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.was_alive = self._process.is_alive()
        if self.was_alive:
            self.send(signal.SIGKILL)
        self._process.join(DEADLINE_S)
        self._process.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    @property
    def is_stopped(self) -> bool:
        """By a signal, and nobody continued it yet."""
        return _state(self.pid) == "T"

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def say_where(self) -> None:
        """Let it print where its threads stand; ends one that hung before its first step."""
        self.send(signal.SIGUSR1)

    def await_killed(self) -> None:
        """Wait until its armed crash point killed it."""
        wait_until(lambda: self.exit_code is not None, "the crash point was reached", deadline_s=DEADLINE_S)
        assert self.exit_code == -signal.SIGKILL

    def await_end(self) -> int:
        """Wait until it ends by itself; returns its exit code."""
        wait_until(lambda: self.exit_code is not None, "the worker ended", deadline_s=DEADLINE_S)
        assert self.exit_code is not None
        return self.exit_code

    def await_stopped(self) -> None:
        """Wait until its armed crash point stopped it."""
        wait_until(lambda: self.is_stopped, "the stop point was reached", deadline_s=DEADLINE_S)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it may end while its file is read
        return "gone"


def _work(settings: Settings, tables: tuple[str, ...], work: ByHand, fault: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)
    faulthandler.enable()
    faults.arm_from({"HARNESS_FAULT": fault})
    with hp.connect(settings) as harness:
        work(harness, tables)


def _run_worker(options: WorkerOptions, harness: hp.Harness, tables: Sequence[str]) -> None:
    Worker(harness.stores, [harness.table(name).row for name in tables], options).run()


#: A process that has imported these, in this order, and has one thread; workers are forked from it within milliseconds.
PRELOADED = [
    "harness_pipelines_tests.fork_safe",
    "harness_pipelines.stages.run.worker",
    "harness_pipelines.app.installation",
    "harness_pipelines_tests.rig",
    "pyspark.sql.connect.session",
]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(PRELOADED)


class Command:
    """A `harness` command in a process of its own. What it says goes to files: a full pipe would stop it."""

    def __init__(self, settings: Settings, *arguments: str, fault: str = "") -> None:
        self._outputs = (TemporaryFile(), TemporaryFile())  # noqa: SIM115  # closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness_pipelines.cli.main", *arguments],
            env=environment(settings, HARNESS_FAULT=fault),
            stdout=self._outputs[0],
            stderr=self._outputs[1],
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for output in self._outputs:
            output.close()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        """What it has said so far, on its first output and then on the other one."""
        found = [os.pread(one.fileno(), os.fstat(one.fileno()).st_size, 0) for one in self._outputs]
        return b"".join(found).decode(errors="replace")

    def await_line(self, words: str, *, deadline_s: float = DEADLINE_S) -> None:
        """Wait until it has said *words* on one of its outputs."""
        wait_until(
            lambda: words in self.said or self._process.poll() is not None,
            f"it says {words!r}",
            deadline_s=deadline_s,
            every_s=0.02,
        )
        assert words in self.said, f"it did not say {words!r}, but: {self.said}"

    def await_end(self, *, deadline_s: float = DEADLINE_S) -> tuple[int, str]:
        """Exit code, and what it said on both outputs."""
        code = self._process.wait(deadline_s)
        return code, self.said
