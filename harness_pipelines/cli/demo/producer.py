"""The demo's producer: all rows at a steady rate, in a thread of its own."""

from __future__ import annotations

import time

import pyarrow as pa

from harness_pipelines.cli.demo.background import Background
from harness_pipelines.cli.demo.source import PARTITIONS, TOPIC, encode
from harness_pipelines.cli.demo.truth import Truth
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stores.kafka_producer import RecordProducer

CHUNK_ROWS = 5_000
TICK_S = 0.01


class SteadyProducer(Background):
    """Sends *rows* in order, row i to partition ``i % PARTITIONS``, and keeps the truth about it."""

    def __init__(self, settings: Settings, rows: pa.Table, *, rate: float) -> None:
        super().__init__()
        self.truth = Truth.of(rows, partitions=PARTITIONS)
        self.sent = 0
        self._settings, self._rows, self._rate = settings, rows, rate

    def run(self) -> None:
        began = time.monotonic()
        with RecordProducer(self._settings, TOPIC) as producer:
            while self.sent < self._rows.num_rows:
                for value in encode(self._rows.slice(self.sent, CHUNK_ROWS)):
                    self._keep_pace(producer, began)
                    if self.stopping.is_set():
                        return
                    partition = self.sent % PARTITIONS
                    producer.send(partition, value, self.truth.partitions[partition].take)
                    self.sent += 1
            producer.flush()

    def _keep_pace(self, producer: RecordProducer, began: float) -> None:
        """Wait, now and then, until the next record is due."""
        if self.sent % max(int(self._rate * TICK_S), 1):
            return
        producer.serve()
        while (early_s := began + self.sent / self._rate - time.monotonic()) > 0 and not self.stopping.is_set():
            producer.serve(min(early_s, TICK_S))
