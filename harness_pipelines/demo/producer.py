"""The demo's producer: all records at a steady rate, in a separate thread."""

from __future__ import annotations

import threading
import time

from harness_pipelines.demo.background import Background
from harness_pipelines.demo.scenario import Log, Scenario
from harness_pipelines.demo.truth import Truth
from harness_pipelines.sources.kafka.producer import RecordProducer
from harness_pipelines.spec.settings import Settings

CHUNK_ROWS = 5_000
TICK_S = 0.01


class SteadyProducer(Background):
    """Sends the records of *log* in order, and keeps the truth about them.

    Before the late ones it waits in `at_late` until `go_on` is called.
    """

    def __init__(self, settings: Settings, scenario: Scenario, log: Log, *, rate: float) -> None:
        super().__init__()
        self.truth = Truth.of(log, scenario.checked)
        self.sent = 0
        self.scenario, self.log = scenario, log
        self._settings, self._rate = settings, rate
        self._began = 0.0
        self._at_late, self._late_may_come = threading.Event(), threading.Event()

    @property
    def at_late(self) -> bool:
        """All that comes before the late records is acknowledged, and they wait."""
        return self._at_late.is_set() and not self._late_may_come.is_set()

    def go_on(self) -> None:
        self._late_may_come.set()

    def run(self) -> None:
        self._began = time.monotonic()
        log = self.log
        with RecordProducer(self._settings, self.scenario.spec.topic) as producer:
            while self.sent < len(log):
                for key, value in self.scenario.records(log.rows.slice(self.sent, CHUNK_ROWS)):
                    if self.sent == log.late_from:
                        self._wait_for_the_rest(producer)
                    self._keep_pace(producer)
                    if self.stopping.is_set():
                        return
                    partition = int(log.partitions[self.sent])
                    producer.send(partition, value, self.truth.partitions[partition].take, key=key)
                    self.sent += 1
            producer.flush()

    def _wait_for_the_rest(self, producer: RecordProducer) -> None:
        producer.flush()
        waits_from = time.monotonic()
        self._at_late.set()
        while not self._late_may_come.wait(TICK_S) and not self.stopping.is_set():
            pass
        self._began += time.monotonic() - waits_from  # the pace is that of before

    def _keep_pace(self, producer: RecordProducer) -> None:
        """Wait, now and then, until the next record is due."""
        if self.sent % max(int(self._rate * TICK_S), 1):
            return
        producer.serve()
        while (early_s := self._began + self.sent / self._rate - time.monotonic()) > 0 and not self.stopping.is_set():
            producer.serve(min(early_s, TICK_S))
