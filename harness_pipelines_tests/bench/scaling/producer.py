"""A producer to many topics at once, in a separate process, which logs when each record was acknowledged."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from confluent_kafka import KafkaException, Message, Producer

from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.bench.records import value
from harness_pipelines_tests.bench.steady import LOG, Produced, ProducerProcess

END_S = 120.0
RATES = "rates.json"
TICK_S = 0.01
PARTITION = 0  #: the one that each topic has


class ManyProducer(ProducerProcess):
    """Produces *rates* (records a second, by topic) for *seconds*."""

    def __init__(self, settings: Settings, rates: Mapping[str, float], *, seconds: float) -> None:
        super().__init__(settings, "harness_pipelines_tests.bench.scaling.producer")
        self._rates, self._seconds = rates, seconds

    def arguments(self) -> Sequence[str]:
        (self.folder / RATES).write_bytes(orjson.dumps(self._rates))
        return [str(self.folder), str(self._seconds)]

    def log(self) -> dict[str, Produced]:
        """What was acknowledged, by topic, once it has ended."""
        with self.ended(within_s=self._seconds + END_S) as found:
            return {
                topic: Produced(offsets=found[f"o{n}"], ids=found[f"i{n}"], acked_at=found[f"t{n}"])
                for n, topic in enumerate(self._rates)
            }


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
    rates = orjson.loads((Path(folder) / RATES).read_bytes())
    arrays: dict[str, Any] = {}
    for n, records in enumerate(_produce(settings, rates, float(seconds))):
        offsets, ids, acked_at = list(zip(*records, strict=True)) or [(), (), ()]
        arrays |= {f"o{n}": np.array(offsets, np.int64), f"i{n}": np.array(ids, np.int64)}
        arrays[f"t{n}"] = np.array(acked_at, np.float64)
    np.savez(Path(folder) / LOG, **arrays)


if __name__ == "__main__":
    _main(*sys.argv[1:])
