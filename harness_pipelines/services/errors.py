"""Errors of the embedded services; each message ends with a remedy."""

from __future__ import annotations

from pathlib import Path

from harness_pipelines.errors import HarnessError, TryAgain


class ServicesError(HarnessError):
    """Base of the errors of the embedded services."""


class ToolMissing(ServicesError):
    """A program or a jar that an embedded service is made of was not found."""

    way_on = "`deploy/run --version` installs what the embedded services are made of"


class ServiceDied(ServicesError):
    """A service ended, or did not answer in time, while it was being started."""

    way_on = "the log that the message names says why; `harness services up` again"

    def __init__(self, name: str, what: str, *, log: Path, tail: str, way_on: str) -> None:
        shown = "\n".join(f"    {line}" for line in tail.splitlines()) or "    (the log is empty)"
        super().__init__(f"{name} {what}; the last lines of {log}:\n{shown}\n{way_on}")
        self.name = name
        self.log = log


class ServicesBusy(TryAgain):
    """Another call is starting or stopping the services of the same home."""
