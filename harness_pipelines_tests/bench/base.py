"""What all benches share: figures with goals, one run with its tables and topics, and CPU time by component."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import harness_pipelines as hp
from harness_pipelines.ledgers.postgres.acts.drop import TableInUse, purge
from harness_pipelines.services import Services
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.bench.records import COLUMNS, PARTITIONS
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import ALL

DROP_WAIT_S = 40.0  #: longer than the lease of a worker that was killed
NAMESPACE = "bench"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value beside its goal. ``value`` is None when it could not be measured."""

    figure: str
    value: float | None
    unit: str
    goal: float
    sense: Literal["<=", ">="]

    @property
    def holds(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.goal if self.sense == "<=" else self.value >= self.goal

    def to_json(self) -> dict[str, Any]:
        value = None if self.value is None else float(f"{self.value:.5g}")
        return {
            "figure": self.figure,
            "value": value,
            "unit": self.unit,
            "goal": float(f"{self.goal:.5g}"),
            "sense": self.sense,
            "holds": self.holds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A value without a goal that explains a figure: the peer's own rate, where CPU time went."""

    note: str
    value: float
    unit: str

    def to_json(self) -> dict[str, Any]:
        return {"note": self.note, "value": float(f"{self.value:.5g}"), "unit": self.unit}


@dataclass(kw_only=True)
class Run:
    """One run of a bench: where it measures, how long, and what its figures share.

    *say* tells those who watch what is being done now.
    """

    harness: hp.Harness
    quick: bool
    say: Callable[[str], None]
    notes: list[Note] = field(default_factory=list)
    shared: dict[str, Any] = field(default_factory=dict)  #: what a later group may reuse of an earlier one
    _tables: list[hp.Table] = field(default_factory=list)
    _kafka: KafkaRig | None = None
    _kept: ExitStack = field(default_factory=ExitStack)

    @property
    def kafka(self) -> KafkaRig:
        if self._kafka is None:
            settings = self.harness.settings
            assert settings.kafka is not None
            self._kafka = KafkaRig(settings.kafka, properties=settings.kafka_properties)
        return self._kafka

    def size(self, full: int, quick: int) -> int:
        """How much of something this run takes."""
        return quick if self.quick else full

    def note(self, name: str, value: float, unit: str) -> None:
        self.notes.append(Note(note=name, value=value, unit=unit))

    def topic(self, partitions: int = PARTITIONS) -> str:
        """A new topic, deleted at the end."""
        return self.kafka.create(partitions, topic=f"bench_{uuid.uuid4().hex[:10]}")

    def topic_of_table(self, namespace: str) -> str:
        """A new topic with one partition that is named as a table, deleted at the end."""
        return self.kafka.create(1, topic=f"{namespace}.t_{uuid.uuid4().hex[:10]}")

    def table(self, topic: str, **spec: Any) -> hp.Table:
        """A new table over *topic*, dropped at the end."""
        name = f"{NAMESPACE}.t_{uuid.uuid4().hex[:10]}"
        wanted = {"table": name, "topic": topic, "columns": COLUMNS, **spec}
        table = self.harness.apply(hp.TableSpec.model_validate(wanted))
        self.drops(table)
        return table

    def drops(self, table: hp.Table) -> None:
        """Drop *table* at the end."""
        self._tables.append(table)

    def work(self, table: hp.Table, stages: frozenset[Any] = ALL) -> float:
        """Run a worker in this process until nothing is left to move; returns its seconds."""
        worker = Worker(self.harness.stores, [table.row], WorkerOptions(stages=stages, until_idle=True))
        gc.freeze()  # as `harness run` does
        began = time.monotonic()
        worker.run()
        return time.monotonic() - began

    @contextmanager
    def cpu(self, name: str, rows: int) -> Iterator[None]:
        """Note the CPU seconds per million rows of each component while the block lasts."""
        before = cpu_seconds(self.harness)
        yield
        for component, seconds in cpu_seconds(self.harness).items():
            self.note(f"{name}.cpu.{component}", (seconds - before.get(component, 0.0)) / rows * 1e6, "s/M rows")

    def keep(self, context: AbstractContextManager[T]) -> T:
        """Enter *context*, which is left at the end, before the tables are dropped."""
        return self._kept.enter_context(context)

    def close(self) -> None:
        """End what was kept, drop the tables with their files, and delete the topics."""
        self._kept.close()
        for table in self._tables:
            self._drop(table)
        if self._kafka is not None:
            self._kafka.close()

    def _drop(self, table: hp.Table) -> None:
        stores = self.harness.stores
        identifier = (table.spec.namespace, table.row.tiered_view)
        seen = stores.ledger.drop_table(table.row, dry_run=True)
        locations = [stores.catalog.at(identifier, place).location() for place in seen.metadata] + [*seen.fresh]
        deadline = time.monotonic() + DROP_WAIT_S
        while True:
            try:
                stores.ledger.drop_table(table.row)
                break
            except TableInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        for location in locations:
            purge(location)


Group = Callable[[Run], Sequence[Figure]]  #: measures some figures that belong together


def median_s(action: Callable[[], object], *, times: int) -> float:
    """Median seconds of *action*, called once more before to warm up."""
    action()
    return statistics.median(timed(action) for _ in range(times))


def timed(action: Callable[[], object]) -> float:
    """Seconds of *action*."""
    began = time.monotonic()
    action()
    return time.monotonic() - began


def machine() -> str:
    """What the figures were measured on; the load tells how quiet it was."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return (
        f"{cores} cores, {memory:.0f} GiB, {platform.machine()}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, load {load:.1f} at the start"
    )


# -- CPU time -----------------------------------------------------------------------------------------------


def cpu_seconds(harness: hp.Harness) -> dict[str, float]:
    """CPU seconds so far of this process and of each embedded service with its descendants."""
    children, seconds = _processes()
    found = {"harness": time.process_time()}
    for service in Services(harness.settings.home).status():
        if service.pid is not None:
            found[service.name] = _of_tree(service.pid, children, seconds)
    return found


def tree_cpu_s(pid: int) -> float:
    """CPU seconds so far of a process and its descendants."""
    return _of_tree(pid, *_processes())


def tree_rss_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants; what they share counts for each."""
    children, _ = _processes()
    found, left = 0, [pid]
    while left:
        one = left.pop()
        left += children.get(one, ())
        with suppress(OSError):
            found += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return found


def _processes() -> tuple[dict[int, list[int]], dict[int, tuple[float, float]]]:
    """{pid: its children}, {pid: (its own CPU seconds, those of its children that ended)}."""
    tick = os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    seconds: dict[int, tuple[float, float]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            pid, parent = int(folder.name), int(fields[1])
            children.setdefault(parent, []).append(pid)
            user, system, ended_user, ended_system = (int(x) / tick for x in fields[11:15])
            seconds[pid] = (user + system, ended_user + ended_system)
    return children, seconds


def _of_tree(pid: int, children: Mapping[int, list[int]], seconds: Mapping[int, tuple[float, float]]) -> float:
    own, ended = seconds.get(pid, (0.0, 0.0))
    return own + ended + sum(_of_tree(child, children, seconds) for child in children.get(pid, ()))
