"""A real Trino, taken from Maven the first time (780 MB): it needs Java 24 or newer and 2 GB of memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness_pipelines.services.state import LOOPBACK, free_ports
from harness_pipelines_tests.maven import unpacked
from harness_pipelines_tests.newer_java import newer_java
from harness_pipelines_tests.producer import wait_until

VERSION = "476"
ARTIFACT = f"io.trino:trino-server:{VERSION}:tar.gz"
OLDEST_JAVA = 24
START_S, QUERY_S = 300.0, 120.0
CONFIG = """\
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
node.internal-address={host}
discovery.uri=http://{host}:{port}
query.max-memory-per-node=400MB
"""
JVM = """\
-server
-Xmx1500M
-XX:+UseSerialGC
-XX:ReservedCodeCacheSize=256M
-XX:TieredStopAtLevel=1
-Djdk.attach.allowAttachSelf=true
--add-modules=jdk.incubator.vector
-Dfile.encoding=UTF-8
"""


class TrinoRefused(Exception):
    """A query failed; the text is Trino's."""


class Trino:
    """One that answers."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, sql: str) -> pa.Table:
        """The rows of *sql*, each column as the values that JSON has. Raises: TrinoRefused."""
        answer = self._asked(f"{self.url}/v1/statement", sql.encode())
        names: list[str] = []
        rows: list[list[Any]] = []
        while True:
            names = [column["name"] for column in answer.get("columns", ())] or names
            rows += answer.get("data", ())
            if "error" in answer:
                raise TrinoRefused(answer["error"]["message"])
            if "nextUri" not in answer:
                return pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
            answer = self._asked(answer["nextUri"])

    def _asked(self, url: str, body: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(url, data=body, headers={"X-Trino-User": "test"})
        with urllib.request.urlopen(request, timeout=QUERY_S) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


@contextmanager
def trino(catalogs: Mapping[str, str], folder: Path, *, jars: Path) -> Iterator[Trino]:
    """Run one with *catalogs*, the text of a file for each name. *jars*: where programs are kept.

    Raises: AssertionError with its log if it does not answer.
    """
    [port] = free_ports(1, home=folder, name="trino", taken=frozenset())
    launcher, data = program(jars) / "bin" / "launcher", folder / "data"
    etc, log = folder / "etc", folder / "trino.log"
    (etc / "catalog").mkdir(parents=True)
    (etc / "config.properties").write_text(CONFIG.format(host=LOOPBACK, port=port))
    (etc / "jvm.config").write_text(JVM)
    (etc / "node.properties").write_text(f"node.environment=test\nnode.id=1\nnode.data-dir={data}\n")
    for name, text in catalogs.items():
        file = etc / "catalog" / f"{name}.properties"
        file.touch(mode=0o600)  # it has a token
        file.write_text(text)
    command = [str(launcher), "run", "--etc-dir", str(etc), "--data-dir", str(data)]
    environment = {**os.environ, "JAVA_HOME": str(newer_java(OLDEST_JAVA, "Trino"))}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    found = Trino(f"http://{LOOPBACK}:{port}")
    try:
        wait_until(
            lambda: process.poll() is not None or _answers(found), "Trino answers", deadline_s=START_S, every_s=0.5
        )
        assert process.poll() is None, f"Trino ended: {log.read_text()[-3000:]}"
        yield found
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the launcher's process may be another one than the server's
        process.wait()


def program(jars: Path) -> Path:
    """Its folder, kept beside *jars*; taken from Maven the first time."""
    return unpacked(ARTIFACT, kept_at(jars))


def kept_at(jars: Path) -> Path:
    """Where its folder is once it was taken."""
    return jars.parent / "trino" / f"trino-server-{VERSION}"


def _answers(server: Trino) -> bool:
    try:
        with urllib.request.urlopen(f"{server.url}/v1/info", timeout=5) as answer:
            return json.loads(answer.read())["starting"] is False
    except (OSError, urllib.error.URLError, ValueError):
        return False
