"""A producer at a steady rate in a process of its own, which keeps the log of what was acknowledged when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from harness_pipelines.sources.kafka.producer import RecordProducer
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.bench.records import PARTITIONS, value
from harness_pipelines_tests.rig import environment

TICK_S = 0.005
END_S = 60.0
LOG = "log.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """The producer's log of one partition, in the order of acknowledgement."""

    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    acked_at: NDArray[np.float64]  #: monotonic seconds, which all processes of a machine share


class ProducerProcess:
    """A module of the bench that produces in a process, from `__enter__` on, and leaves its log in `folder`."""

    def __init__(self, settings: Settings, module: str) -> None:
        self._settings, self._module = settings, module
        self._held = tempfile.TemporaryDirectory(prefix="bench-")
        self.folder = Path(self._held.name)
        self._process: subprocess.Popen[str] | None = None

    def arguments(self) -> Sequence[str]:
        """Of the module."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, *self.arguments()],
            env=environment(self._settings, PYTHONPATH=str(Path(__file__).parents[2])),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "producing":
            raise AssertionError("the producer did not start; see its output above")
        return self

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ended(self, *, within_s: float, stop: bool = False) -> Any:
        """The arrays of its log, once it has ended; *stop*: it is to end now."""
        assert self._process is not None
        if stop and self.running:
            self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(within_s)
        assert code == 0, f"the producer ended with code {code}"
        return np.load(self.folder / LOG)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            assert self._process is not None
            self._process.kill()
            self._process.wait()
        self._held.cleanup()


class SteadyProducer(ProducerProcess):
    """Produces for *seconds* or until `stop`."""

    def __init__(self, settings: Settings, topic: str, *, rate: float, seconds: float, first: int = 0) -> None:
        super().__init__(settings, "harness_pipelines_tests.bench.steady")
        self._wanted = (topic, str(rate), str(seconds), str(first))

    def arguments(self) -> Sequence[str]:
        return [*self._wanted, str(self.folder / LOG)]

    def stop(self) -> dict[int, Produced]:
        """End it if it still runs; returns its log by partition."""
        with self.ended(within_s=END_S, stop=True) as found:
            return {
                p: Produced(offsets=found[f"o{p}"], ids=found[f"i{p}"], acked_at=found[f"t{p}"])
                for p in range(PARTITIONS)
            }


def _produce(settings: Settings, topic: str, *, rate: float, seconds: float, first: int) -> dict[int, Any]:
    stopping = []
    signal.signal(signal.SIGTERM, lambda _n, _f: stopping.append(True))
    log: dict[int, list[tuple[int, int, float]]] = {p: [] for p in range(PARTITIONS)}
    with RecordProducer(settings, topic) as producer:
        began, sent, total = time.monotonic(), 0, int(rate * seconds)
        print("producing", flush=True)
        while sent < total and not stopping:
            due = min(total, int((time.monotonic() - began) * rate) + 1)
            for number in range(first + sent, first + due):
                partition = number % PARTITIONS
                into = log[partition].append
                producer.send(partition, value(number), lambda o, at, n=number, into=into: into((o, n, at)))  # type: ignore[misc]
            sent = due
            until = time.monotonic() + TICK_S
            while (left := until - time.monotonic()) > 0:
                producer.serve(left)
        producer.flush()
    return log


def save(path: str, log: Mapping[int, list[tuple[int, int, float]]]) -> None:
    """Write the log of `SteadyProducer` for `stop`."""
    arrays: dict[str, Any] = {}
    for partition, records in log.items():
        columns = list(zip(*records, strict=True)) or [(), (), ()]
        arrays[f"o{partition}"] = np.array(columns[0], np.int64)
        arrays[f"i{partition}"] = np.array(columns[1], np.int64)
        arrays[f"t{partition}"] = np.array(columns[2], np.float64)
    np.savez(path, **arrays)


def _main(topic: str, rate: str, seconds: str, first: str, out: str) -> None:
    settings = Settings.from_env(os.environ)
    save(out, _produce(settings, topic, rate=float(rate), seconds=float(seconds), first=int(first)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
