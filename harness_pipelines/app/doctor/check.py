"""A check of one system, its findings, and how all checks are run in time.

A check is a generator: what it found before its system stopped to answer is kept. Each runs in a separate thread and
has a deadline, because a server that hangs accepts connections and may never answer.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.secret import redact

log = structlog.get_logger(__name__)
ALL_S_MAX = 28.0  #: for all checks together; the command ends within 30 s


class Verdict(StrEnum):
    """What a finding means for the installation."""

    OK = "ok"
    WARN = "warn"  #: it works, and a person should know
    FAIL = "fail"  #: something that the settings ask for does not work
    SKIPPED = "skipped"  #: not looked at, because nothing asks for it or something else is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answer: what was looked at, what was found, and what to do where it is not as it should be."""

    system: str  #: machine, postgres, kafka, ...
    name: str
    verdict: Verdict
    found: str
    way_on: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "name": self.name,
            "verdict": self.verdict.value,
            "found": self.found,
            "way_on": self.way_on,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All findings, in the order of the checks."""

    findings: tuple[Finding, ...]
    took_s: float

    @property
    def ok(self) -> bool:
        return all(one.verdict is not Verdict.FAIL for one in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "took_s": round(self.took_s, 2),
            "findings": [one.to_json() for one in self.findings],
        }


class Notes:
    """Makes the findings of one system; the texts never hold a secret."""

    def __init__(self, system: str) -> None:
        self.system = system

    def ok(self, name: str, found: str) -> Finding:
        return self._made(name, Verdict.OK, found, "")

    def warn(self, name: str, found: str, way_on: str) -> Finding:
        return self._made(name, Verdict.WARN, found, way_on)

    def fail(self, name: str, found: str, way_on: str) -> Finding:
        return self._made(name, Verdict.FAIL, found, way_on)

    def skipped(self, name: str, found: str, way_on: str = "") -> Finding:
        return self._made(name, Verdict.SKIPPED, found, way_on)

    def raised(self, name: str, error: HarnessError) -> Finding:
        """What an error with a name says, and what its kind asks a person to do."""
        return self._made(name, Verdict.FAIL, str(error), error.todo())

    def _made(self, name: str, verdict: Verdict, found: str, way_on: str) -> Finding:
        text = " ".join(redact(found).split())
        return Finding(system=self.system, name=name, verdict=verdict, found=text, way_on=redact(way_on))


Look = Callable[[Notes], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One look at one system.

    A HarnessError that *look* raises ends it, and becomes a finding.
    """

    system: str
    name: str  #: of a finding that says that the look itself did not end well
    look: Look
    deadline_s: float = 12.0
    late: Verdict = Verdict.FAIL  #: what it means that the deadline passes
    give_up: Callable[[], None] | None = None  #: ends what the look waits for, once its deadline has passed


@dataclass(slots=True)
class _Running:
    check: Check
    found: list[Finding]
    over: bool = False


def examine(checks: Sequence[Check], *, all_s_max: float = ALL_S_MAX) -> DoctorReport:
    """Run *checks* side by side and return what they found, at the latest after *all_s_max* seconds."""
    began = time.monotonic()
    events: queue.SimpleQueue[tuple[_Running, Finding | None]] = queue.SimpleQueue()
    runs = [_Running(check, []) for check in checks]
    for run in runs:
        # Not of a pool: Python waits for the threads of pools before it ends.
        name = f"doctor-{run.check.system}-{run.check.name}"
        threading.Thread(target=_look, args=(run, events), name=name, daemon=True).start()
    while open_runs := [run for run in runs if not run.over]:
        passed = time.monotonic() - began
        due = min(*(run.check.deadline_s for run in open_runs), all_s_max)
        try:
            run, finding = events.get(timeout=max(due - passed, 0.0))
        except queue.Empty:
            for run in open_runs:
                if min(run.check.deadline_s, all_s_max) <= due:
                    run.found.append(_silent(run, due))
                    run.over = True
                    if run.check.give_up is not None:
                        with suppress(Exception):  # it is over all the same
                            run.check.give_up()
            continue
        if not run.over:  # else it was given up
            if finding is None:
                run.over = True
            else:
                run.found.append(finding)
    found = tuple(finding for run in runs for finding in run.found)
    return DoctorReport(findings=found, took_s=time.monotonic() - began)


def _silent(run: _Running, waited_s: float) -> Finding:
    last = f" after the look at {run.found[-1].name}" if run.found else ""
    text = f"no answer within {waited_s:.0f} s{last}: it takes connections, and hangs or is overloaded"
    way_on = "look at its load and its log, restart it if it hangs, then run `harness doctor` again"
    finding = Notes(run.check.system).fail(run.check.name, text, way_on)
    return replace(finding, verdict=run.check.late)


def _look(run: _Running, events: queue.SimpleQueue[tuple[_Running, Finding | None]]) -> None:
    notes, check = Notes(run.check.system), run.check
    try:
        for finding in check.look(notes):
            events.put((run, finding))
    except HarnessError as error:
        events.put((run, notes.raised(check.name, error)))
    except Exception as error:  # a thread has no caller: logged with its trace, and the report says so
        log.exception("doctor.broken", system=check.system, check=check.name)
        finding = notes.fail(check.name, f"an unexpected error: {type(error).__name__}: {error}", "report this defect")
        events.put((run, finding))
    finally:
        events.put((run, None))
