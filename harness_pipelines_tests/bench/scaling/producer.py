"""A producer to many topics at once, in a process of its own, which keeps the log of what was acknowledged when."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import orjson
from confluent_kafka import KafkaException, Message, Producer

from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.bench.records import value
from harness_pipelines_tests.bench.steady import Produced
from harness_pipelines_tests.rig import environment

START_S, END_S = 60.0, 120.0
TICK_S = 0.01
PARTITION = 0  #: the one that each topic has


class ManyProducer:
    """Produces *rates* (records a second, by topic) for *seconds* from `__enter__` on."""

    def __init__(self, settings: Settings, rates: Mapping[str, float], *, seconds: float) -> None:
        self._settings, self._rates, self._seconds = settings, rates, seconds
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        (folder / "rates.json").write_bytes(orjson.dumps(self._rates))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness_pipelines_tests.bench.scaling.producer", str(folder), str(self._seconds)],
            env=environment(self._settings, PYTHONPATH=str(Path(__file__).parents[3])),
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

    def log(self) -> dict[str, Produced]:
        """What was acknowledged, by topic, once it has ended."""
        assert self._process is not None
        code = self._process.wait(self._seconds + END_S)
        assert code == 0, f"the producer ended with code {code}"
        with np.load(Path(self._folder.name) / "log.npz") as found:
            return {
                topic: Produced(offsets=found[f"o{n}"], ids=found[f"i{n}"], acked_at=found[f"t{n}"])
                for n, topic in enumerate(self._rates)
            }

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            assert self._process is not None
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def _due(began: float, rate: float, number: int, count: int, total: int) -> int:
    """How many records a topic has got by now: topics take turns, so that they do not all send at once."""
    return min(total, max(0, int((time.monotonic() - began) * rate - number / count) + 1))


def _produce(settings: Settings, rates: Mapping[str, float], seconds: float) -> Sequence[list[tuple[int, int, float]]]:
    """Offset, id and moment of each acknowledgement, by topic. Raises: KafkaException."""
    log: list[list[tuple[int, int, float]]] = [[] for _ in rates]

    def acked(into: list[tuple[int, int, float]], number: int, error: Any, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        into.append((message.offset() or 0, number, time.monotonic()))

    producer = Producer({"bootstrap.servers": settings.kafka, **settings.kafka_properties, "linger.ms": 2})
    sent, count = [0] * len(rates), len(rates)
    began = time.monotonic()
    print("producing", flush=True)
    while time.monotonic() < began + seconds:
        for n, (topic, rate) in enumerate(rates.items()):
            due = _due(began, rate, n, count, int(rate * seconds))
            for number in range(sent[n], due):
                producer.produce(topic, value(number), partition=PARTITION, on_delivery=partial(acked, log[n], number))
            sent[n] = due
        producer.poll(TICK_S)
    producer.flush()
    return log


def _main(folder: str, seconds: str) -> None:
    settings = Settings.from_env(os.environ)
    rates = orjson.loads((Path(folder) / "rates.json").read_bytes())
    arrays: dict[str, Any] = {}
    for n, records in enumerate(_produce(settings, rates, float(seconds))):
        offsets, ids, acked_at = list(zip(*records, strict=True)) or [(), (), ()]
        arrays |= {f"o{n}": np.array(offsets, np.int64), f"i{n}": np.array(ids, np.int64)}
        arrays[f"t{n}"] = np.array(acked_at, np.float64)
    np.savez(Path(folder) / "log.npz", **arrays)


if __name__ == "__main__":
    _main(*sys.argv[1:])
