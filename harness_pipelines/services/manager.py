"""Starting, finding and stopping the embedded services of one home."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from harness_pipelines.services.base import Place, Progress, Service, ServiceDied, ServicesError, ToolMissing
from harness_pipelines.services.java import java_home
from harness_pipelines.services.kafka import Kafka
from harness_pipelines.services.postgres import SPARK_LOGIN, USER, Postgres
from harness_pipelines.services.process import end, is_alive, strays, tail, wait_until
from harness_pipelines.services.s3 import S3, WAREHOUSE
from harness_pipelines.services.spark import Spark
from harness_pipelines.services.state import Record, StateFile, free_ports, is_free, make_private
from harness_pipelines.services.values import (
    ALL_NAMES,
    SERVICE_NAMES,
    Endpoints,
    ServiceName,
    ServiceState,
    ServiceStatus,
)
from harness_pipelines.spec.object_stores import check_encryption
from harness_pipelines.spec.settings import Settings

LOCK_TIMEOUT_S = 180.0
PRIVATE_FOLDERS = ("warehouse", "kafka", "spark", "s3", "logs")  #: Postgres makes its own private
PORT_PATIENCE_S = 0.5  # how long the old port may still be held by what just ended
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})
START_ATTEMPTS = 3  # another program can take a free port before the service does


def _are_free(ports: tuple[int, ...]) -> bool:
    return all(is_free(port) for port in ports)


def _silent(_message: str) -> None:
    """Report nothing."""


class Services:
    """The embedded services of one home. Objects are cheap: all state is on disk, shared by all callers."""

    def __init__(
        self,
        home: Path,
        *,
        jars: Path | None = None,
        external: Mapping[ServiceName, str] | None = None,
        warehouse: str | None = None,
        encrypting: tuple[str, ...] = (),
        postgres_binaries: Path | None = None,
    ) -> None:
        """*external* gives the addresses of services that the user runs; they are never started here.

        *encrypting*: as in `Settings`; with such variables no object store is started.
        """
        self.home = home.expanduser().resolve()
        self.external = dict(external or {})
        self._warehouse, self._encrypting = warehouse, encrypting
        self._state = StateFile(self.home)
        self._place = place = Place(home=self.home, jars=jars)
        self._cancelled = threading.Event()
        self._postgres, self._kafka, self._s3 = Postgres(place, postgres_binaries), Kafka(place), S3(place)
        self._services: dict[ServiceName, Service] = {
            "postgres": self._postgres,
            "kafka": self._kafka,
            "spark": Spark(place),
            "s3": self._s3,
        }

    @classmethod
    def from_settings(cls, settings: Settings) -> Services:
        """Return the services of ``settings.home``; what has an address in *settings* counts as external."""
        named: dict[ServiceName, str | None] = {
            "postgres": settings.dsn,
            "kafka": settings.kafka,
            "spark": settings.spark,
        }
        return cls(
            settings.home,
            jars=settings.jars,
            external={name: address for name, address in named.items() if address},
            warehouse=settings.warehouse,
            encrypting=settings.encrypting,
        )

    def up(
        self, *, only: Iterable[ServiceName] | None = None, s3: bool = False, progress: Progress = _silent
    ) -> Endpoints:
        """Start what does not run yet (all, or *only* these) and return when it answers.

        The object store is one of all from the first time on that *s3* asked for it: the warehouse is on it then.

        Calls may overlap and repeat. A service that died comes back with its data, on its old port if that is free.
        Raises: ServicesError, ServicesBusy; UsageError for variables by which files would be encrypted there.
        """
        names = self._own([*self._names(only), "s3"] if s3 else only)
        if "s3" in names:
            check_encryption(self._encrypting)
        self._cancelled.clear()
        with self._exclusive(progress):
            for name in names:  # before any of them starts
                if (record := self._state.read().get(name)) is None or not is_alive(record.process):
                    self._services[name].check_programs()
            for folder in PRIVATE_FOLDERS:
                make_private(self.home / folder)
            with ThreadPoolExecutor(max_workers=len(ALL_NAMES), thread_name_prefix="services-up") as pool:
                starts = [pool.submit(self._start, name, progress) for name in names]
                try:
                    errors = [error for start in starts if (error := start.exception())]
                except BaseException:
                    self._cancelled.set()
                    raise
            for error in errors:
                raise error
        return self.current()

    def without_spark(self, progress: Progress = _silent) -> tuple[ServiceName, ...]:
        """All services of this home but Spark; on a machine without Java it says why Kafka is not among them."""
        names = tuple(name for name in self._names(None) if name != "spark")
        try:
            self.check_java_for("kafka")
        except ToolMissing as missing:
            progress(f"kafka: not started: {missing}")
            return tuple(name for name in names if name != "kafka")
        return names

    def has_java_for(self, name: Literal["kafka", "spark"]) -> bool:
        """Whether this service can run: elsewhere, or here on Java."""
        try:
            self.check_java_for(name)
        except ToolMissing:
            return False
        return True

    def check_java_for(self, name: Literal["kafka", "spark"]) -> None:
        """Raises: ToolMissing if this service neither runs elsewhere nor can run here, with the ways on."""
        if name in self.external:
            return
        try:
            java_home()
        except ToolMissing as missing:
            there = f"let HARNESS_{name.upper()} name a {name.capitalize()} that runs"
            raise ToolMissing(f"the embedded {name.capitalize()} runs on Java, and {missing}; or {there}") from missing

    def give_logins(self) -> None:
        """Give the embedded database, if it runs, the logins of workers and Spark: an older harness made none."""
        record = self._state.read().get("postgres")
        if "postgres" not in self.external and record is not None and is_alive(record.process):
            self._postgres.finish(record.ports)

    def down(self, *, only: Iterable[ServiceName] | None = None, progress: Progress = _silent) -> None:
        """Stop all services of this home (or *only* these) and whatever a crash left of them; data stays."""
        if not self.home.exists():
            return
        names = self._own(only)
        with (
            self._exclusive(progress),
            ThreadPoolExecutor(max_workers=len(ALL_NAMES), thread_name_prefix="services-down") as pool,
        ):
            for stopped in [pool.submit(self._stop, name, progress) for name in names]:
                stopped.result()

    def stop(self, name: ServiceName) -> None:
        """Stop one service cleanly."""
        self.down(only=[name])

    def kill(self, name: ServiceName) -> None:
        """End one service with SIGKILL, as a crash would; the next `up` brings it back."""
        record = self._state.read().get(name)
        if record is None or not is_alive(record.process):
            raise ServicesError(f"{name} does not run in {self.home}; nothing was killed")
        end(record.process, polite=signal.SIGKILL, timeout_s=10)

    def send(self, name: ServiceName, number: signal.Signals) -> None:
        """Send a signal to one service: SIGSTOP makes it hang, SIGCONT lets it continue."""
        record = self._state.read().get(name)
        if record is None or record.process is None or not is_alive(record.process):
            raise ServicesError(f"{name} does not run in {self.home}; no signal was sent")
        os.kill(record.process.pid, number)

    def status(self) -> list[ServiceStatus]:
        """Return the state of each service; starts nothing and waits for nothing."""
        records = self._state.read()
        return [self._status(name, records.get(name)) for name in self._names(None)]

    def endpoints(self) -> Endpoints | None:
        """Return where the services answer; ``None`` when nothing runs."""
        found = self.current()
        return found if found.postgres or found.kafka or found.spark else None

    def current(self) -> Endpoints:
        """Return where the services answer now; nothing is started, what does not run is ``None``."""
        reachable = {ServiceState.RUNNING, ServiceState.EXTERNAL}
        known = {one.name: one.address for one in self.status() if one.state in reachable}
        s3 = self._state.read().get("s3") if self._warehouse is None else None  # not running: still nowhere else
        return Endpoints(
            postgres=known.get("postgres"),
            kafka=known.get("kafka"),
            spark=known.get("spark"),
            warehouse=self._warehouse or (WAREHOUSE if s3 else f"file://{self.home / 'warehouse'}"),
            s3=self._s3.settings(s3.ports) if s3 else None,
            home=str(self.home),
            owner=self._login(USER, known),
            spark_login=self._login(SPARK_LOGIN, known),
            kafka_login=self._kafka.login() if known.get("kafka") and "kafka" not in self.external else {},
        )

    def takes_anybody(self) -> bool:
        """Return whether the embedded Kafka runs as an older harness started it: without a login."""
        return any(
            one.name == "kafka" and one.state is ServiceState.RUNNING and self._kafka.is_outdated()
            for one in self.status()
        )

    def ports(self) -> dict[str, tuple[int, ...]]:
        """Return the ports that each service had last, by its name; a start takes them again where they are free."""
        return {name: record.ports for name, record in self._state.read().items()}

    def _login(self, login: str, known: Mapping[ServiceName, str | None]) -> str | None:
        """The address of another login of the embedded database, while that runs."""
        record = self._state.read().get("postgres")
        if record is None or "postgres" in self.external or not known.get("postgres"):
            return None
        return self._postgres.address_of(login, record.ports)

    def _own(self, only: Iterable[ServiceName] | None) -> list[ServiceName]:
        chosen = set(self._names(only))
        return [name for name in ALL_NAMES if name in chosen and name not in self.external]

    def _names(self, only: Iterable[ServiceName] | None) -> Iterable[ServiceName]:
        """*only* these, or all of this home; the warehouse of another one is not on its object store."""
        has_s3 = self._warehouse is None and "s3" in self._state.read()
        return only if only is not None else ALL_NAMES if has_s3 else SERVICE_NAMES

    @contextmanager
    def _exclusive(self, progress: Progress) -> Iterator[None]:
        """Hold the home's lock. Raises: ServicesError for a home that cannot be written, too."""
        try:
            with self._state.exclusive(
                timeout_s=LOCK_TIMEOUT_S,
                waiting=lambda: progress("waiting for another call that starts or stops the services"),
            ):
                yield
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise ServicesError(
                f"the home {self.home} cannot be written: {error}; its data is as it was. Make room on its disk, or "
                "give its user the right, then call `harness services up` again"
            ) from error

    def _status(self, name: ServiceName, record: Record | None) -> ServiceStatus:
        log = self._place.log(name)
        if name in self.external:
            return ServiceStatus(name=name, state=ServiceState.EXTERNAL, address=self.external[name], pid=None, log=log)
        if record is None or record.process is None:
            return ServiceStatus(name=name, state=ServiceState.STOPPED, address=None, pid=None, log=log)
        if not is_alive(record.process):
            return ServiceStatus(name=name, state=ServiceState.DIED, address=None, pid=None, log=log)
        service = self._services[name]
        state = ServiceState.RUNNING if service.is_ready(record.ports) else ServiceState.STARTING
        address = service.address(record.ports)
        return ServiceStatus(name=name, state=state, address=address, pid=record.process.pid, log=log)

    def _start(self, name: ServiceName, progress: Progress) -> None:
        service, record = self._services[name], self._state.read().get(name)
        if record is not None and is_alive(record.process) and service.is_outdated():
            progress(f"{name}: an older harness started it and let in who has no login; it starts again with its data")
            self._stop(name, progress)
        if record is None or not is_alive(record.process):
            self._launch(service, record, progress)
        else:
            if not service.is_ready(record.ports):
                self._wait_ready(service, record)  # a caller that crashed, or was stopped, had started it
            service.finish(record.ports)  # an older harness may have started it

    def _launch(self, service: Service, before: Record | None, progress: Progress) -> None:
        self._sweep(service)
        ports = before.ports if before else ()
        for attempt in range(1, START_ATTEMPTS + 1):
            if not ports or not wait_until(partial(_are_free, ports), timeout_s=PORT_PATIENCE_S):
                ports = self._new_ports(service)
            service.prepare(ports, progress)
            progress(f"{service.name}: starting on port {ports[0]}")
            record = Record(ports=ports, process=None)
            self._state.write(service.name, record)
            record = Record(ports=ports, process=service.launch(ports))
            self._state.write(service.name, record)
            try:
                self._wait_ready(service, record)
                break
            except ServiceDied:
                self._stop(service.name, _silent)
                if attempt == START_ATTEMPTS or _are_free(ports):
                    raise  # not a lost race for the port
        service.finish(ports)
        progress(f"{service.name}: ready")

    def _new_ports(self, service: Service) -> tuple[int, ...]:
        taken = frozenset(port for record in self._state.read().values() for port in record.ports)
        return free_ports(service.port_count, home=self.home, name=service.name, taken=taken)

    def _wait_ready(self, service: Service, record: Record) -> None:
        def is_settled() -> bool:
            return self._cancelled.is_set() or not is_alive(record.process) or service.is_ready(record.ports)

        settled = wait_until(is_settled, timeout_s=service.ready_timeout_s)
        if self._cancelled.is_set():
            raise ServicesError(f"the start of {service.name} was interrupted; the next call finds its process")
        if settled and is_alive(record.process):
            return
        what = "ended while it started" if settled else f"did not answer within {service.ready_timeout_s:.0f} s"
        log = self._place.log(service.name)
        way_on = f"Mend the cause, then call `harness services up` again; data under {self.home} is kept"
        raise ServiceDied(service.name, what, log=log, tail=tail(log), way_on=way_on)

    def _stop(self, name: ServiceName, progress: Progress) -> None:
        service, record = self._services[name], self._state.read().get(name)
        if record is not None and is_alive(record.process):
            progress(f"{name}: stopping")
            end(record.process, polite=service.polite, timeout_s=service.stop_timeout_s)
        self._sweep(service)
        service.clean()
        if record is not None:
            self._state.write(name, Record(ports=record.ports, process=None))

    def _sweep(self, service: Service) -> None:
        """End forgotten processes: started by a call that crashed, or children of a killed service."""
        for stray in strays(service.owns):
            end(stray, polite=signal.SIGTERM, timeout_s=5)
