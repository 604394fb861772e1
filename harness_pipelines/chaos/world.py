"""What a chaos run breaks: its services, with proxies in front, tables, and the ways to break them."""

from __future__ import annotations

import queue
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import orjson

import harness_pipelines as hp
from harness_pipelines.chaos.content import GROWING, Subject, engines_of, subjects_of
from harness_pipelines.chaos.damage import digest_of, files_of
from harness_pipelines.chaos.orchestrator import Orchestrator
from harness_pipelines.chaos.processes import Child, Worker, environment, family_of, send
from harness_pipelines.chaos.promotion import fail_over, promotions_of, unfenced
from harness_pipelines.chaos.proxy import PostgresProxy, TcpProxy
from harness_pipelines.chaos.reader import fingerprint, read_by_arrow
from harness_pipelines.chaos.result import Options
from harness_pipelines.chaos.schedule import ACTS, WORKERS, Fault, Kind, Part
from harness_pipelines.chaos.served import KEEP_S
from harness_pipelines.chaos.standby import await_server
from harness_pipelines.errors import HarnessError, OutcomeUnknown, Recovery
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.services import Endpoints, ServiceName, Services, ServiceState
from harness_pipelines.services.base import ServicesError
from harness_pipelines.services.state import free_ports
from harness_pipelines.services.values import ALL_NAMES
from harness_pipelines.sources.kafka.producer import add_partitions, recreate_topic
from harness_pipelines.spec.settings import Settings

LEASE_S = 3
CUT_PATIENCE_S = 5.0  #: for a byte to come by; an idle connection is not waited for
STEP_S = 0.02
FAULTS_AT_ONCE_MAX = 32
ACTS_AT_ONCE_MAX = 3  #: of those that are processes: the machine is small
MOVE_S = 45.0  #: for a worker to come to the crash point of a move
ACT_S = 300.0  #: for an act that was woken, or never slept
PARTITIONS_MAX = 5
SERVICE_WAIT_S = 120.0  #: for another service to come back; on a busy machine Spark can take a minute
#: Tier moves often, so that there is always a move to break; old versions go fast, so that expire has work to do.
RULES = {
    "tier": {"max_age": "2s"},
    "freshness": {"lake": "10s"},
    "retention": {"versions": "20s", "snapshots": 5, "lease": "30s", "grace": "5s"},
}

#: Of tables whose alerts are judged: objectives that a small machine keeps with all of this, once nothing is broken.
RULES_OF_ALERTS = {"freshness": {"visible": "15s", "lake": "60s"}}
#: Of the table that Dagster has: each of its runs costs seconds.
RULES_OF_RUNS = {"mode": "runs", "tier": {"max_age": "30s"}, "freshness": {"lake": "60s"}}

HELD = timedelta(hours=1)
Answer = TypeVar("Answer")
Began = Callable[[], None]  #: called when a fault is about to happen


class World:
    """Everything that a run starts; all of it is gone when the block ends, but for a home that is kept.

    Workers and readers get `env`, which leads through the proxies; ``harness`` goes around them.
    """

    def __init__(self, options: Options, *, say: Callable[[str], None]) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="harness-chaos-"))
        self.keep = False  #: keep the home, with the logs, at the end
        self.workers: list[Worker] = []
        self.movers: list[Worker | Orchestrator] = []  #: the workers, and Dagster
        self.servers: list[Worker] = []  #: `harness serve`
        self.tables: dict[str, hp.Table] = {}
        self.of_dagster = {GROWING.name(options.table)} if options.dagster else set()  #: the tables that no worker has
        self._children: list[Child] = []  #: that may still run
        self.told: queue.SimpleQueue[tuple[Fault, Mapping[str, Any]]] = queue.SimpleQueue()  #: by what has words
        self._say = say
        self._name, self._subjects = options.table, subjects_of(options.crowd)
        self._engines = engines_of(self._subjects, options.engine, seed=options.seed)
        self._has_spark, self._is_watched = options.has_spark, options.alerts is not None
        self._services, self._s3 = Services(self.home, jars=options.jars), options.s3
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=FAULTS_AT_ONCE_MAX, thread_name_prefix="chaos")
        self._acts = threading.BoundedSemaphore(ACTS_AT_ONCE_MAX)
        self._one_file = threading.Lock()  # damaged at a time
        self._one_service = threading.Lock()  # two services are never restarted at once: that takes a minute
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _build(self) -> None:
        self._say(f"starting separate services in {self.home}")
        self._stack.callback(self._services.down)
        self._endpoints = self._services.up(
            only=None if self._has_spark else self._services.without_spark(), s3=self._s3
        )
        self.metrics_ports = free_ports(WORKERS, home=self.home, name="metrics", taken=frozenset())
        [self._port] = free_ports(1, home=self.home, name="serve", taken=frozenset(self.metrics_ports))
        own = self._endpoints.fill(Settings(home=self.home))
        assert own.dsn and own.kafka
        self.postgres_proxy = PostgresProxy(own.dsn)
        self._stack.callback(self.postgres_proxy.close)
        through = self._through_a_proxy(own.spark) if own.spark else ""
        self.env: Mapping[str, str] = environment(replace(own, dsn=self.postgres_proxy.dsn, spark=through))
        self.harness = self._stack.enter_context(hp.connect(own))
        self.harness.init()
        for subject in self._subjects:
            made = self._until_answered(partial(self._apply, subject))  # a busy machine answers late
            assert made is not None, "the run has not begun"
            self.tables[subject.name(self._name)] = made
        self.workers = [self._worker(number) for number in range(WORKERS)]
        self.movers = [*self.workers, *self._dagster(own, through)]
        self.token = self.harness.stores.tokens.create("chaos", ["*"], lasts=None).secret
        self.servers = [self._server(own)]

    def _through_a_proxy(self, spark: str) -> str:
        """The address of Spark behind a proxy that can be cut."""
        port = urlsplit(spark).port or 0
        self.spark_proxy = TcpProxy("127.0.0.1", port)
        self._stack.callback(self.spark_proxy.close)
        return spark.replace(f":{port}/", f":{self.spark_proxy.port}/")

    def _apply(self, subject: Subject) -> hp.Table:
        recreate_topic(self.harness.settings, subject.topic, partitions=subject.partitions)
        name = subject.name(self._name)
        rules = RULES | {"mode": "external_worker"} | (RULES_OF_ALERTS if self._is_watched else {})
        rules |= RULES_OF_RUNS if name in self.of_dagster else {}
        words = {"table": name, "topic": subject.topic, "engine": self._engines[subject.suffix]}
        spec = {**words, **rules, **subject.settings}
        return self.harness.apply(hp.TableSpec.model_validate(spec))

    def _worker(self, number: int) -> Worker:
        names = [name for name in self.tables if name not in self.of_dagster]
        words = ["run", *names, f"--lease={LEASE_S}s", f"--metrics-port={self.metrics_ports[number]}"]
        worker = Worker(words, env=self.env, log=self._log(f"worker-{number}"))
        self._stack.callback(worker.end)
        return worker

    @property
    def url(self) -> str:
        """Of the server, whichever process that is."""
        return f"http://127.0.0.1:{self._port}"

    def _server(self, own: Settings) -> Worker:
        """It hands out the keys of the store, if there is one: who reads by it knows the token alone."""
        keys = {"HARNESS_SERVE_S3_ACCESS_KEY": own.s3.access_key, "HARNESS_SERVE_S3_SECRET_KEY": own.s3.secret_key}
        env = {**self.env, **{name: value for name, value in keys.items() if value}}
        words = ["serve", f"--port={self._port}", f"--keep={KEEP_S:g}s"]
        server = Worker(words, env=env, log=self._log("server"))
        self._stack.callback(server.end)
        return server

    def _dagster(self, own: Settings, spark: str) -> Iterator[Orchestrator]:
        if self.of_dagster:
            made = Orchestrator(own, through={"HARNESS_DSN": self.postgres_proxy.dsn, "HARNESS_SPARK": spark})
            self._stack.callback(made.end)
            yield made

    def child(self, name: str, module: str, *arguments: str) -> Child:
        """Start a process that ends with the run."""
        child = self._child(module, *arguments, env=self.env, log=self._log(name))
        self._stack.callback(child.end, patience_s=1.0)
        return child

    def _child(self, module: str, *arguments: str, env: Mapping[str, str], log: Path) -> Child:
        child = Child(f"harness_pipelines.chaos.{module}", *arguments, env=env, log=log)
        self._children = [one for one in self._children if one.exit_code is None] + [child]
        return child

    def supervise(self) -> None:
        """Start again what has ended, when it is time."""
        for one in (*self.movers, *self.servers):
            one.supervise()

    def kill(self) -> None:
        """SIGKILL for all that was started, without waiting; the home stays."""
        for one in (*self.movers, *self.servers):
            one.abandon()
        for child in self._children:
            child.abandon()
        for name in ALL_NAMES:
            with suppress(ServicesError):
                self._services.send(name, signal.SIGKILL)

    def _log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def _close(self) -> None:
        with _undisturbed():
            self._over.set()
            self._pool.shutdown()
            self._stack.close()
            if not self.keep:
                shutil.rmtree(self.home, ignore_errors=True)

    # -- breaking ---------------------------------------------------------------------------------------------

    def break_it(self, fault: Fault, began: Began) -> Future[bool]:
        """Do *fault* and heal it after its time. The result says whether there was anything to break.

        Raises, from the result: ServicesError when a service does not come back.
        """
        return self._pool.submit(self._broken, fault, began)

    def _broken(self, fault: Fault, began: Began) -> bool:
        happened = False

        def begins() -> None:
            nonlocal happened
            happened = True
            began()

        try:
            return _WAYS[fault.kind](self, fault, begins)
        except HarnessError as error:
            if error.recovery is Recovery.NEVER:
                raise
            return happened  # Postgres or Kafka is away by another fault

    def table_of(self, fault: Fault) -> hp.Table:
        """The table that *fault* is done to, as the ledger has it now. Raises: TryAgain."""
        return self.harness.table(self._name + (fault.subject or ""))

    def heal(self) -> None:
        """End what has not ended by itself: call it after the last fault is over."""
        self.postgres_proxy.up()
        for one in (*self.workers, *self.servers):
            one.wake()

    def _kill(self, one: Worker, fault: Fault, began: Began) -> bool:
        began()
        return one.kill(back_after_s=fault.lasts_s)

    def _kill_in_move(self, one: Worker, fault: Fault, began: Began) -> bool:
        """Its successor dies in a move, if one of its tables has a move of that stage in time."""
        began()
        before = one.deaths
        if not one.kill(back_after_s=fault.lasts_s, dies_at=fault.point):
            return False
        until = time.monotonic() + fault.lasts_s + MOVE_S
        while one.deaths == before and time.monotonic() < until and not self._over.wait(STEP_S):
            pass
        return True

    def _stop(self, one: Worker, fault: Fault, began: Began) -> bool:
        began()
        if not one.stop():
            return False
        self._over.wait(fault.lasts_s)
        one.wake()
        return True

    @property
    def _orchestrator(self) -> Orchestrator:
        [found] = [mover for mover in self.movers if isinstance(mover, Orchestrator)]
        return found

    def _kill_daemon(self, fault: Fault, began: Began) -> bool:
        began()
        return self._orchestrator.kill_daemon(back_after_s=fault.lasts_s)

    def _kill_code_servers(self, _fault: Fault, began: Began) -> bool:
        began()
        return self._orchestrator.kill_code_servers()

    def _break_run(self, number: signal.Signals, fault: Fault, began: Began) -> bool:
        began()
        [which] = fault.places
        pid = self._orchestrator.send_to_a_run(number, which=which)
        if pid is not None and number is signal.SIGSTOP:
            self._over.wait(fault.lasts_s)
            send(pid, signal.SIGCONT)
        return pid is not None

    def _cut(self, proxy: TcpProxy, fault: Fault, began: Began) -> bool:
        began()
        before = proxy.cuts
        for count in fault.cuts:
            proxy.cut_after(count)
            until = time.monotonic() + CUT_PATIENCE_S
            while proxy.is_armed and time.monotonic() < until and not self._over.wait(STEP_S):
                pass
        proxy.disarm()
        return proxy.cuts > before

    def _rotate(self, _fault: Fault, began: Began) -> bool:
        began()
        for subject in self._subjects:
            if subject.buffered:
                self.harness.stores.segments.rotate(self.harness.table(subject.name(self._name)).row)
        return True

    def _refuse_postgres(self, fault: Fault, began: Began) -> bool:
        began()
        self.postgres_proxy.down()
        self._over.wait(fault.lasts_s)
        self.postgres_proxy.up()
        return True

    def _stop_service(self, name: ServiceName, fault: Fault, began: Began) -> bool:
        with self._turn() as mine:
            if mine:
                began()
                self._services.send(name, signal.SIGSTOP)
                self._over.wait(fault.lasts_s)
                self._services.send(name, signal.SIGCONT)
        return mine

    def _stop_postgres(self, fault: Fault, began: Began) -> bool:
        """The postmaster and all of its backends: connections are taken by the kernel, and nothing answers."""
        with self._turn() as mine:
            if mine:
                began()
                pid = self._services.status()[0].pid
                stopped = family_of(pid) if pid else []
                for one in stopped:  # a backend may end meanwhile
                    send(one, signal.SIGSTOP)
                self._over.wait(fault.lasts_s)
                for one in reversed(stopped):
                    send(one, signal.SIGCONT)
        return mine

    def _join(self, _fault: Fault, began: Began) -> bool:
        there = len(self.harness.stores.log.describe(GROWING.topic).partitions)
        if there >= PARTITIONS_MAX:
            return False
        began()
        add_partitions(self.harness.settings, GROWING.topic, there + 1)
        return True

    def _act(self, fault: Fault, began: Began) -> bool:
        """A process that does it; one that comes to its crash point sleeps there, and is woken."""
        if not self._acts.acquire(timeout=SERVICE_WAIT_S):
            return False
        try:
            began()
            self.told.put((fault, self._acted(fault)))
        finally:
            self._acts.release()
        return True

    def _acted(self, fault: Fault) -> Mapping[str, Any]:
        env = {**self.env, **({"HARNESS_FAULT": f"{fault.point}=stop"} if fault.point else {})}
        name = self._name + (fault.subject or "")
        log = self._log(f"act-{fault.at_s:07.2f}-{fault.kind}")
        child = self._child("act", fault.kind, name, env=env, log=log)
        until = time.monotonic() + ACT_S + fault.lasts_s
        while child.exit_code is None and time.monotonic() < until and not self._over.is_set():
            if child.is_stopped:
                self._over.wait(fault.lasts_s)
                child.wake()
            self._over.wait(STEP_S)
        hangs = child.exit_code is None and not self._over.is_set()
        child.end(patience_s=0.1 if hangs else 5.0)
        if told := child.told():
            return told[0]
        return {"hangs" if hangs else "died": f"after {ACT_S:g} s; {child.last_words()}"}

    def _put_claim_ahead(self, fault: Fault, began: Began) -> bool:
        """The holder of the claim is fenced; nothing can take the claim before `reconcile`."""
        row = self.table_of(fault).row
        began()
        with suppress(OutcomeUnknown):  # it may lie ahead
            wanted = {"table_id": row.table_id, "stage": fault.stage}
            if not self.harness.stores.database.run("chaos/put_claim_ahead", wanted):  # the table has no such stage
                return False
        self._over.wait(fault.lasts_s)
        self.told.put((fault, self._reconciled(fault)))
        return True

    def _hold(self, fault: Fault, began: Began) -> bool:
        """Read under a lease of an hour at once and at its end: the same rows, whatever expire does meanwhile."""
        began()
        promotions = promotions_of(self.home)

        def forgot() -> bool:
            """Whether the leases may be among what the ledger forgot."""
            return promotions_of(self.home) > promotions

        held: list[tuple[hp.Table, ReadPlan, str]] = []
        try:
            for name in self.tables:
                table = self.harness.table(name)
                plan = table.plan(lease=HELD)
                held.append((table, plan, _fingerprint(table, plan)))
        except HarnessError:  # by another fault: what is held already counts
            pass
        self._over.wait(fault.lasts_s)
        for table, plan, before in held:
            where = f"{table.name}, version {plan.version}"
            try:
                again = self._until_answered(partial(_fingerprint, table, plan), is_futile=forgot)
                self._until_answered(partial(table.release, plan), is_futile=forgot)
            except HarnessError as error:
                if not forgot():
                    self.told.put((fault, {"unreadable": f"{where}: {type(error).__name__}: {error}"}))
                continue
            if again not in (before, None):
                self.told.put((fault, {"unrepeatable": f"{where}: other rows than before"}))
        return bool(held)

    def _damage(self, fault: Fault, began: Began) -> bool:
        """Damage one file of a plan, let a process read the plan, and put the file right; then read it here."""
        with self._one_file:
            table = self.table_of(fault)
            plan = table.plan(lease=HELD)
            try:
                files = files_of(plan, Part(fault.part))
                if files:
                    began()
                    self.told.put((fault, self._read_damaged(fault, table, plan, files)))
            finally:
                self._until_answered(partial(table.release, plan))
            return bool(files)

    def _read_damaged(self, fault: Fault, table: hp.Table, plan: ReadPlan, files: Sequence[str]) -> Mapping[str, Any]:
        which, place = fault.places
        path, written = files[int(which * len(files))], self.home / f"plan-{fault.at_s}.json"
        written.write_bytes(orjson.dumps(plan.to_json()))
        words = (table.name, str(written), path, fault.how, str(place))
        child = self.child(f"damage-{fault.at_s:07.2f}", "damage", *words)
        while child.exit_code is None and not self._over.is_set():
            self._over.wait(STEP_S)
        child.end()
        [told] = child.told() or [{"died": child.last_words()}]
        if "read" not in told:
            return told
        right = self._until_answered(lambda: digest_of(read_by_arrow(table, plan, lease=HELD)))
        return (
            {"unharmed": path.rpartition("/")[2]}
            if right in (told["read"], None)
            else {"wrong": f"other values from {path}"}
        )

    def _promote(self, fault: Fault, began: Began) -> bool:
        """A stand-by that lagged is promoted; then the workers are stopped, and every table is reconciled."""

        def lag() -> None:
            began()
            self._over.wait(fault.lasts_s)

        with self._turn() as mine:
            if not mine:
                return False
            port = int(urlsplit(self.harness.settings.dsn or "").port or 0)
            old = fail_over(self._services, self.home, port=port, lag=lag)
            for mover in self.movers:
                mover.rest()
            for subject in self._subjects:
                self.told.put((fault, self._reconciled(replace(fault, subject=subject.suffix))))
            for mover in self.movers:
                mover.resume()
            for name in unfenced(old, self.harness, list(self.tables)):
                self.told.put((fault, {"unfenced": f"the old primary may work on {name}"}))
        return True

    def _reconciled(self, fault: Fault) -> Mapping[str, Any]:
        """As a person does it: it is repeated where it was refused, or something is away by another fault."""
        until = time.monotonic() + ACT_S
        while "done" not in (told := self._acted(fault)) and time.monotonic() < until and not self._over.is_set():
            self._over.wait(1.0)
        return told

    def _until_answered(
        self, step: Callable[[], Answer], *, is_futile: Callable[[], bool] = lambda: False
    ) -> Answer | None:
        """Take *step* until what it needs is there, or it *is_futile* to wait for that. None when the run is over.

        Raises: what it raised in the end.
        """
        until = time.monotonic() + ACT_S
        while not self._over.is_set():
            try:
                return step()
            except HarnessError:
                if time.monotonic() > until or is_futile():
                    raise
                self._over.wait(1.0)
        return None

    def _restart(self, name: ServiceName, end: Callable[[], None], began: Began) -> bool:
        with self._turn() as mine:
            if not mine:
                return False
            began()
            end()
            back = self._services.up(only=[name])
        if not _same(back, self._endpoints, name):
            raise ServicesError(f"{name} came back on another port; the run cannot continue")
        return True

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """Return whether a service may be broken now: one at a time, and none after the run."""
        mine = self._one_service.acquire(timeout=SERVICE_WAIT_S)
        try:
            yield mine and not self._over.is_set()
        finally:
            if mine:
                self._one_service.release()

    def _crash(self, name: ServiceName, began: Began) -> bool:
        return self._restart(name, lambda: self._services.kill(name), began)

    def _end_postgres_at_once(self) -> None:
        """Postgres's immediate shutdown: no checkpoint, all sessions are cut."""
        self._services.send("postgres", signal.SIGQUIT)
        await_server(lambda: self._services.status()[0].state is ServiceState.DIED, "Postgres ended at once")


_WAYS: Mapping[Kind, Callable[[World, Fault, Began], bool]] = {
    Kind.WORKER_KILL: lambda world, fault, began: world._kill(world.workers[fault.worker or 0], fault, began),
    Kind.MOVE_KILL: lambda world, fault, began: world._kill_in_move(world.workers[fault.worker or 0], fault, began),
    Kind.WORKER_STOP: lambda world, fault, began: world._stop(world.workers[fault.worker or 0], fault, began),
    Kind.SERVER_KILL: lambda world, fault, began: world._kill(world.servers[0], fault, began),
    Kind.SERVER_STOP: lambda world, fault, began: world._stop(world.servers[0], fault, began),
    Kind.CUT_POSTGRES: lambda world, fault, began: world._cut(world.postgres_proxy, fault, began),
    Kind.CUT_SPARK: lambda world, fault, began: world._cut(world.spark_proxy, fault, began),
    Kind.ROTATE: World._rotate,
    Kind.POSTGRES_AWAY: World._refuse_postgres,
    Kind.POSTGRES_RESTART: lambda world, _, began: world._restart(
        "postgres", lambda: world._services.stop("postgres"), began
    ),
    Kind.POSTGRES_IMMEDIATE: lambda world, _, began: world._restart("postgres", world._end_postgres_at_once, began),
    Kind.POSTGRES_KILL: lambda world, _, began: world._crash("postgres", began),
    Kind.POSTGRES_STOP: World._stop_postgres,
    Kind.DAEMON_KILL: World._kill_daemon,
    Kind.CODE_KILL: World._kill_code_servers,
    Kind.RUN_KILL: lambda world, fault, began: world._break_run(signal.SIGKILL, fault, began),
    Kind.RUN_STOP: lambda world, fault, began: world._break_run(signal.SIGSTOP, fault, began),
    Kind.LONG_LEASE: World._hold,
    Kind.JOIN: World._join,
    Kind.DAMAGE: World._damage,
    **dict.fromkeys(ACTS, World._act),
    Kind.CLAIM_AHEAD: World._put_claim_ahead,
    Kind.PROMOTE: World._promote,
    Kind.KAFKA_KILL: lambda world, _, began: world._crash("kafka", began),
    Kind.KAFKA_STOP: lambda world, fault, began: world._stop_service("kafka", fault, began),
    Kind.SPARK_KILL: lambda world, _, began: world._crash("spark", began),
    Kind.SPARK_STOP: lambda world, fault, began: world._stop_service("spark", fault, began),
    Kind.STORE_KILL: lambda world, _, began: world._crash("s3", began),
    Kind.STORE_STOP: lambda world, fault, began: world._stop_service("s3", fault, began),
}


def _fingerprint(table: hp.Table, plan: ReadPlan) -> str:
    return fingerprint(read_by_arrow(table, plan, lease=HELD))


def _same(now: Endpoints, before: Endpoints, name: ServiceName) -> bool:
    return bool(getattr(now, name) == getattr(before, name))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C must not leave half of the processes behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
