"""The interface of embedded services, all that the manager knows of them, and their errors."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.services.process import ProcessId
from harness_pipelines.services.values import ServiceName

Progress = Callable[[str], None]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a service keeps its files and finds its jars."""

    home: Path
    jars: Path | None  #: folder that holds ``spark/`` and ``kafka/``; ``None``: the one of this checkout

    def log(self, name: ServiceName) -> Path:
        """Return the log of one service."""
        return self.home / "logs" / f"{name}.log"


class Service(Protocol):
    """One embedded service. None of its methods keeps state: all of it is on disk, under the home."""

    name: ServiceName
    port_count: int
    ready_timeout_s: float
    stop_timeout_s: float
    polite: ClassVar[signal.Signals]  #: asks for a clean end

    def check_programs(self) -> None:
        """The programs that a start needs are on this machine; changes nothing. Raises: ToolMissing."""

    def prepare(self, ports: tuple[int, ...], progress: Progress) -> None:
        """Make the files that a start needs. No process of the service is alive. Raises: ServicesError."""

    def launch(self, ports: tuple[int, ...]) -> ProcessId:
        """Start the process."""

    def is_ready(self, ports: tuple[int, ...]) -> bool:
        """Tell whether the service answers."""

    def finish(self, ports: tuple[int, ...]) -> None:
        """Do what needs the running service, on each start. Raises: ServicesError."""

    def is_outdated(self) -> bool:
        """Tell whether the process that runs was started by an older harness in a way that must not continue."""

    def address(self, ports: tuple[int, ...]) -> str:
        """Return what a client connects to."""

    def owns(self, proc: Path) -> bool:
        """Tell whether the process in the folder *proc* of ``/proc`` belongs to this service of this home."""

    def clean(self) -> None:
        """Remove what only a running process needs, after its end."""
