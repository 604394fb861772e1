"""Embedded object store: versitygw, which speaks S3 over a folder of this machine.

One program without a runtime. Objects are plain files and outlive the process. What it knows of them beside their bytes
lies in a second folder, so that no file system has to support extended attributes.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
from pathlib import Path
from typing import ClassVar

from harness_pipelines.services.base import Place, Progress, ToolMissing
from harness_pipelines.services.process import Launch, ProcessId, child_environment, has_marker, launch
from harness_pipelines.services.state import LOOPBACK, secret
from harness_pipelines.services.values import ServiceName
from harness_pipelines.spec.object_stores import S3Settings

BUCKET = "harness"
WAREHOUSE = f"s3://{BUCKET}/warehouse"
USER = "harness"
REGION = "us-east-1"
HEALTH = "/health"
PROGRAM = "versitygw"


class S3:
    """A store for one machine, with an access key."""

    name: ServiceName = "s3"
    port_count = 1
    ready_timeout_s = 60.0
    stop_timeout_s = 10.0
    polite: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, place: Place) -> None:
        self._place = place
        self._folder = place.home / "s3"

    def check_programs(self) -> None:
        """The store itself. Raises: ToolMissing."""
        self._program()

    def prepare(self, ports: tuple[int, ...], progress: Progress) -> None:
        """Make the bucket, which is a folder."""
        self._key()  # made under the lock of the home: a process that asks later finds this one
        for folder in (self._folder / "objects" / BUCKET, self._folder / "attributes"):
            folder.mkdir(parents=True, exist_ok=True)

    def launch(self, ports: tuple[int, ...]) -> ProcessId:
        """Start the server."""
        options = ["--port", f"{LOOPBACK}:{ports[0]}", "--region", REGION, "--health", HEALTH, "--quiet"]
        store = ["posix", "--sidecar", str(self._folder / "attributes"), str(self._folder / "objects")]
        return launch(
            Launch(
                command=[str(self._program()), *options, *store],
                cwd=self._folder,
                env=child_environment(
                    self._place.home, self.name, {"ROOT_ACCESS_KEY": USER, "ROOT_SECRET_KEY": self._key()}
                ),
            ),
            self._place.log(self.name),
        )

    def is_ready(self, ports: tuple[int, ...]) -> bool:
        """It answers on the path that needs no login."""
        connection = http.client.HTTPConnection(LOOPBACK, ports[0], timeout=2)
        try:
            connection.request("GET", HEALTH)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def finish(self, ports: tuple[int, ...]) -> None:
        """Nothing: the bucket is there."""

    def is_outdated(self) -> bool:
        """Never."""
        return False

    def address(self, ports: tuple[int, ...]) -> str:
        """The endpoint of its clients."""
        return f"http://{LOOPBACK}:{ports[0]}"

    def settings(self, ports: tuple[int, ...]) -> S3Settings:
        """How its clients reach it."""
        return S3Settings(endpoint=self.address(ports), region=REGION, access_key=USER, secret_key=self._key())

    def owns(self, proc: Path) -> bool:
        """Known by the marker in the environment."""
        return has_marker(proc, self._place.home, self.name)

    def clean(self) -> None:
        """Remove what uploads that were cut off have left."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder / "objects" / BUCKET / ".sgwtmp")

    def _key(self) -> str:
        return secret(self._place.home / "secrets" / "s3")

    def _program(self) -> Path:
        """Where it is: beside the jars, else in the path. Raises: ToolMissing."""
        cache = self._place.jars.parent if self._place.jars else Path(__file__).parents[2] / ".cache"
        built = cache / "bin" / PROGRAM
        if built.is_file():
            return built
        if found := shutil.which(PROGRAM):
            return Path(found)
        raise ToolMissing(
            f"no {PROGRAM} in {built.parent} or in the PATH; nothing was started. `deploy/run services up --s3` builds "
            "it with Go; or put it into the PATH; or set HARNESS_WAREHOUSE and HARNESS_S3_* to your store"
        )
