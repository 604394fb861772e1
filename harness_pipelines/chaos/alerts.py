"""The alerts of a chaos run: a real Prometheus scrapes its workers by the files that operators get.

An alert is right when something that it names was broken, or not yet recovered from, when its condition began to grow,
and it must end once nothing is broken. A storm breaks things for seconds, which most alerts wait out on purpose. So
drills follow it: each breaks one thing for minutes, and its alerts must fire.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote
from urllib.request import urlopen

import orjson
import yaml

from harness_pipelines.chaos.result import KAFKA, POSTGRES, SPARK, STORE, Outage
from harness_pipelines.chaos.schedule import ACTS, WORKERS, Fault, Kind
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.pauses import JITTER
from harness_pipelines.services.state import answers, free_ports
from harness_pipelines.stages.run.looks import EVERY_S as LOOKS_EVERY_S
from harness_pipelines.stages.run.trouble import BACKOFF_S_MAX

RULES = "alerts.yaml"
SCRAPE = "scrape.yaml"
EVALUATION_S = 15
START_S = 60.0
ANSWER_S = 30.0
GAP_S = 3.0 * EVALUATION_S  #: a firing alert has a sample per evaluation; what is missing for longer has ended
END_S = 420.0  #: for alerts to end after the last fault: a stage has to make up for what it missed

_WORKER = frozenset({Kind.WORKER_KILL, Kind.WORKER_STOP})
_HELD = frozenset({Kind.CLAIM_AHEAD, Kind.PROMOTE})  #: until `reconcile`
_SERVICES = POSTGRES | KAFKA | SPARK | STORE
#: What may be broken when an alert fires.
CAUSES: Mapping[str, frozenset[Kind]] = {
    "HarnessNoWorker": _WORKER | _HELD,
    "HarnessLedgerAway": POSTGRES,
    "HarnessServiceSilent": _SERVICES,
    "HarnessTableStopped": _HELD,
    "HarnessMoveStuck": frozenset({Kind.DAMAGE}),
    "HarnessMoveFails": frozenset({Kind.DAMAGE}),
    "HarnessNobodyWorks": _WORKER | _HELD | POSTGRES,
    "HarnessIngestStands": _SERVICES | _HELD,  # without a buffer tier takes the records, and needs Spark and the store
    "HarnessStageStalled": _SERVICES | _WORKER | _HELD | frozenset({Kind.DAMAGE, *ACTS}),
    "HarnessKafkaSilent": KAFKA | POSTGRES,
    "HarnessTierStands": _SERVICES | _WORKER | _HELD,
    "HarnessStageTrouble": _SERVICES | _HELD | frozenset({Kind.DAMAGE}),
    "HarnessRecordsLate": frozenset(Kind),  # whatever is broken, records come later
}
#: What no fault of a run causes: limits that are hours or days away, and what a run does not have.
NEVER = frozenset({
    "HarnessTableUnreadable", "HarnessIngestBehind", "HarnessOpenTransaction", "HarnessSubscriberBehind",
    "HarnessSubscriberFails", "HarnessMirrorBehind", "HarnessPinOld", "HarnessMergeBehind", "HarnessBufferFills",
    "HarnessIngestPaused", "HarnessBufferLarge", "HarnessLeaseOld",
})  # fmt: skip
#: The producer sends a misfit in about every hundredth record, from the beginning to the end.
STANDING = frozenset({"HarnessQuarantineGrows", "HarnessRefuses"})


@dataclass(frozen=True, slots=True)
class Drill:
    """Faults that begin together and last for minutes, and the alerts that must fire while they last."""

    faults: tuple[Fault, ...]
    alerts: frozenset[str]

    def __str__(self) -> str:
        return " and ".join(map(str, self.faults))


DRILLS = (
    Drill(
        tuple(Fault(at_s=0, kind=Kind.WORKER_STOP, lasts_s=200, worker=one) for one in range(WORKERS)),
        frozenset({"HarnessNoWorker"}),
    ),
    Drill(
        (Fault(at_s=0, kind=Kind.POSTGRES_STOP, lasts_s=290),),
        frozenset({"HarnessLedgerAway", "HarnessServiceSilent"}),
    ),
    Drill(
        (Fault(at_s=0, kind=Kind.KAFKA_STOP, lasts_s=320),),
        frozenset({"HarnessKafkaSilent", "HarnessServiceSilent"}),
    ),
    Drill(
        (Fault(at_s=0, kind=Kind.SPARK_STOP, lasts_s=290),),
        frozenset({"HarnessServiceSilent", "HarnessStageStalled", "HarnessTierStands"}),
    ),
)


@dataclass(frozen=True, slots=True)
class Firing:
    """One alert from its first to its last sample; moments are those of `time.monotonic`."""

    alert: str
    about: str  #: its table, stage or service
    began: float
    ended: float

    def __str__(self) -> str:
        return f"{self.alert}{f' ({self.about})' if self.about else ''}"

    def to_json(self, start: float) -> dict[str, Any]:
        """Seconds since *start*."""
        of = {"alert": self.alert, "about": self.about}
        return {**of, "began_s": round(self.began - start, 1), "ended_s": round(self.ended - start, 1)}


class PrometheusFailed(HarnessError):
    """The Prometheus of a chaos run does not start or does not answer."""


class Alerts:
    """A Prometheus server until the block ends.

    Raises: UsageError without the program or the rules' files, PrometheusFailed.
    """

    def __init__(self, folder: Path, *, targets: Sequence[int], home: Path) -> None:
        self._program = needed(folder)
        rules = yaml.safe_load((folder / RULES).read_text())
        #: Seconds by alert, from the first moment at which something was wrong.
        self.waits = {one["alert"]: _waits(one) for of in rules["groups"] for one in of["rules"]}
        config = yaml.safe_load((folder / SCRAPE).read_text())
        scraped = (_seconds(job.get("scrape_interval", "1m")) for job in config["scrape_configs"])
        self._slack_s = _noted_s() + max(scraped) + EVALUATION_S
        config["global"] = {"evaluation_interval": f"{EVALUATION_S}s"}
        config["rule_files"] = [str((folder / RULES).resolve())]
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in targets]}]
        self._home = home / "prometheus"
        self._home.mkdir()
        (self._home / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = home / "logs" / "prometheus.log"
        [self._port] = free_ports(1, home=home, name="prometheus", taken=frozenset(targets))
        self.began = time.monotonic()  #: what `Firing.to_json` counts from

    def __enter__(self) -> Self:
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [
                    self._program,
                    f"--config.file={self._home / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._home / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        until = time.monotonic() + START_S
        while not answers(self._port):
            if self._process.poll() is not None or time.monotonic() > until:
                self._process.kill()
                raise PrometheusFailed(f"Prometheus does not start; its log is {self._log}")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        """SIGKILL; nothing is waited for."""
        self._process.kill()

    def fired(self) -> list[Firing]:
        """All that fired since the start, in order. Raises: PrometheusFailed."""
        found = [one for series in self._series() for one in self._firings(series)]
        return sorted(found, key=lambda one: (one.began, str(one)))

    def firing(self) -> list[Firing]:
        """What fires now, but for what the producer's misfits cause all along. Raises: PrometheusFailed."""
        newest = time.monotonic() - GAP_S
        return [one for one in self.fired() if one.ended > newest and one.alert not in STANDING]

    def is_right(self, firing: Firing, outages: Sequence[Outage]) -> bool:
        """Whether something that may cause it was broken, or not yet recovered from, while its condition grew."""
        if firing.alert in STANDING:
            return True
        since = firing.began - self.waits.get(firing.alert, 0.0) - self._slack_s
        causes = CAUSES.get(firing.alert, frozenset())
        return any(one.fault.kind in causes and one.holds_up(since=since, until=firing.began) for one in outages)

    def _series(self) -> list[Mapping[str, Any]]:
        seconds = int(time.monotonic() - self.began) + 60
        query = quote(f'ALERTS{{alertstate="firing"}}[{seconds}s]')
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/api/v1/query?query={query}", timeout=ANSWER_S) as answer:
                found: list[Mapping[str, Any]] = orjson.loads(answer.read())["data"]["result"]
        except (OSError, ValueError, KeyError) as error:
            raise PrometheusFailed(f"Prometheus does not answer ({error}); its log is {self._log}") from error
        return found

    def _firings(self, series: Mapping[str, Any]) -> list[Firing]:
        labels = series["metric"]
        about = " ".join(labels[name] for name in ("table", "stage", "service", "subscriber") if name in labels)
        ahead = time.time() - time.monotonic()
        spans: list[list[float]] = []
        for wall, _ in series["values"]:
            at = float(wall) - ahead
            if spans and at - spans[-1][1] <= GAP_S:
                spans[-1][1] = at
            else:
                spans.append([at, at])
        return [Firing(labels["alertname"], about, began, ended) for began, ended in spans]


def needed(folder: Path) -> str:
    """The program. Raises: UsageError without it, or without the rules' files in *folder*."""
    if missing := [name for name in (RULES, SCRAPE) if not (folder / name).is_file()]:
        raise UsageError(f"--alerts {folder}: there is no {' and no '.join(missing)} in it; nothing was started")
    program = shutil.which("prometheus")
    if program is None:
        raise UsageError("--alerts needs the program `prometheus`, which is not in the PATH; nothing was started")
    return program


def _noted_s() -> float:
    """How long after its end a fault may begin to show.

    A call that hung fails by the client's deadline, its stage pauses and tries again, and a look notes the error.
    """
    from harness_pipelines.engines.spark.session import KEEPALIVE

    hung_s = (KEEPALIVE["grpc.keepalive_time_ms"] + KEEPALIVE["grpc.keepalive_timeout_ms"]) / 1000
    return hung_s + (BACKOFF_S_MAX + LOOKS_EVERY_S) * (1 + JITTER)


def _waits(rule: Mapping[str, Any]) -> float:
    """What a rule waits for: ``for``, and the seconds that the age in its expression has to have.

    A rate goes by all that was in its window; of several that must be high the shortest ends first.
    """
    ages = re.findall(r"_seconds\)? > (\d+)(?: \* (\d+))?", rule["expr"])
    window_s = min(map(_seconds, re.findall(r"rate\([^)]*\[(\w+)\]", rule["expr"])), default=0.0)
    age_s = max((float(age) * float(times or 1) for age, times in ages), default=0.0)
    return _seconds(rule.get("for", "0s")) + age_s + window_s


def _seconds(text: str) -> float:
    """A duration of Prometheus, such as "1h30m"."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(float(count) * units[unit] for count, unit in re.findall(r"(\d+)([smhd])", text))
