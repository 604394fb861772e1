"""What a writer of many topics costs until their records are in the lake: CPU of all processes, and memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness_pipelines.services import Services
from harness_pipelines_tests.bench.base import Run, tree_cpu_s, tree_rss_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds per million records, Postgres among them and Kafka not; memory without that of Postgres."""

    cpu_s: float
    rss_bytes: int

    def note(self, run: Run, name: str) -> None:
        run.note(f"{name}.cpu", self.cpu_s, "s/M rows")
        run.note(f"{name}.rss", self.rss_bytes / 2**20, "MiB")


@dataclass
class Spent:
    """CPU seconds and memory of processes from now on. Spark is counted for each side that may use it."""

    run: Run
    pid: int | None = None  #: of the writer, if it is no service
    by_spark: bool = True
    _before_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._before_s = self._cpu_s()

    def until_now(self, records: int) -> Cost:
        """The memory is that of this moment; what Spark has is only in it where Spark alone is the writer."""
        pid = self.pid or _services(self.run)["spark"]
        return Cost(cpu_s=(self._cpu_s() - self._before_s) / records * 1e6, rss_bytes=tree_rss_bytes(pid))

    def _cpu_s(self) -> float:
        services = _services(self.run)
        pids = [services["postgres"], *([services["spark"]] if self.by_spark else [])]
        return sum(tree_cpu_s(pid) for pid in (*pids, *([] if self.pid is None else [self.pid])))


def _services(run: Run) -> dict[str, int]:
    status = Services(run.harness.settings.home).status()
    return {one.name: one.pid for one in status if one.pid is not None}
