"""Liveness of a run: its process sends heartbeats while it works, and a sensor notices when they stop.

A claim is no sign of life: a run gives it back before its checks, and another worker may hold it. Beats are compared
with each other only, so the clocks of two machines never meet; time without a tick does not count.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from dagster import DagsterInstance, RunRecord, get_dagster_logger

BEAT_TAG = "harness/beat"  #: of a run: when its process last said that it lives, by its own clock
BEAT_S = 10.0
SILENT_S = 90.0  #: of ticks that saw no new beat, before a run counts as gone; a busy machine beats late
GAP_S_MAX = 10.0  #: what one tick adds at most: in an outage neither the daemon nor the runs come to write


@contextmanager
def beating(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Let the run say that it lives, from now on to the end of the block."""
    _beat(instance, run_id)
    if instance.is_ephemeral:  # no sensor sees its runs, and its memory has no room for a second thread that writes
        yield
        return
    over = Event()

    def go_on() -> None:
        while not over.wait(BEAT_S):
            _beat(instance, run_id)

    thread = Thread(target=go_on, name=f"beat-{run_id[:8]}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _beat(instance: DagsterInstance, run_id: str) -> None:
    try:
        instance.add_run_tags(run_id, {BEAT_TAG: f"{time.time():.3f}"})
    except Exception as error:  # of whatever keeps Dagster's runs: the work does not depend on it
        get_dagster_logger().warning(f"the run could not say that it lives: {error}")


@dataclass(slots=True)
class Beats:
    """What a sensor's ticks saw of the running runs. Its cursor keeps it; a loss costs `SILENT_S`."""

    at: float | None = None  #: of the last tick
    seen: dict[str, tuple[str, float]] = field(default_factory=dict)  #: by run: its last beat, seconds without another

    @classmethod
    def of(cls, cursor: str | None) -> "Beats":
        """The content of a cursor; the cursor of an older version is ignored."""
        kept: Mapping[str, Any] = json.loads(cursor) if cursor else {}
        if "beats" not in kept:
            return cls()
        return cls(kept["at"], {run_id: (beat, silent_s) for run_id, (beat, silent_s) in kept["beats"].items()})

    def look(self, records: list[RunRecord], now: float) -> None:
        """Take note of the beats of *records*, which are all that count from now on."""
        passed = 0.0 if self.at is None else max(0.0, min(now - self.at, GAP_S_MAX))
        before, self.at, self.seen = self.seen, now, {}
        for record in records:
            run = record.dagster_run
            beat = run.tags.get(BEAT_TAG, "")
            last, silent_s = before.get(run.run_id, (beat, 0.0))
            self.seen[run.run_id] = (beat, silent_s + passed if beat == last else 0.0)

    def silent_s(self, run_id: str) -> float:
        """For how long ticks have seen no new beat of the run, or none at all."""
        return self.seen[run_id][1]

    def is_gone(self, run_id: str) -> bool:
        """The run has not given a sign of life for long."""
        return self.silent_s(run_id) >= SILENT_S

    def cursor(self) -> str:
        """What the next tick needs."""
        return json.dumps({"at": self.at, "beats": self.seen})
