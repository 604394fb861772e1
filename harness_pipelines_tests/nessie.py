"""A real Nessie in front of an object store: a catalog that keeps less of a table than it is sent.

It rewrites what it is given. After a commit its metadata has the newest snapshot only and no branch beside main, and it
takes no removals of snapshots. Its metadata files lie beside ours, whatever `write.metadata.path` says.
"""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyiceberg.catalog.rest import RestCatalog

from harness_pipelines.services.state import LOOPBACK, free_ports
from harness_pipelines.spec.object_stores import S3Settings
from harness_pipelines_tests.newer_java import newer_java
from harness_pipelines_tests.producer import wait_until

ARTIFACT = "org.projectnessie.nessie:nessie-quarkus:0.99.0:jar:runner"
MAVEN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
OLDEST_JAVA = 21
START_S = 240.0
SETTINGS = """\
quarkus.http.host={host}
quarkus.http.port={port}
quarkus.management.host={host}
quarkus.management.port={management}
nessie.version.store.type=IN_MEMORY
nessie.catalog.default-warehouse=lakehouse
nessie.catalog.warehouses.lakehouse.location={location}
nessie.catalog.service.s3.default-options.endpoint={s3.endpoint}
nessie.catalog.service.s3.default-options.path-style-access=true
nessie.catalog.service.s3.default-options.region={s3.region}
nessie.catalog.service.s3.default-options.access-key=urn:nessie-secret:quarkus:store
nessie.catalog.service.s3.default-options.request-signing-enabled=false
store.name={s3.access_key}
store.secret={s3.secret_key}
"""


class Nessie:
    """One that answers, and what a client of the harness does not know of it."""

    def __init__(self, uri: str, s3: S3Settings) -> None:
        self.uri, self._s3 = uri, s3

    def client(self) -> RestCatalog:
        """A client other than the harness, which reaches the store with its own keys."""
        return RestCatalog("other", uri=self.uri, **self.store_options())

    def store_options(self) -> dict[str, str]:
        """By which PyIceberg and Iceberg's own S3 access reach the store."""
        s3 = self._s3
        assert s3.endpoint
        assert s3.access_key
        assert s3.secret_key
        return {
            "s3.endpoint": s3.endpoint,
            "s3.region": s3.region or "us-east-1",
            "s3.access-key-id": s3.access_key,
            "s3.secret-access-key": s3.secret_key,
            "s3.path-style-access": "true",
            "s3.remote-signing-enabled": "false",
        }

    def spark_options(self) -> dict[str, str]:
        """The same for a catalog of Spark; the access to the store is named, for it is not that of a folder."""
        return {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **self.store_options()}


@contextmanager
def nessie(s3: S3Settings, location: str, folder: Path, *, jars: Path) -> Iterator[Nessie]:
    """Run one, whose own metadata lies under *location*; its state is gone at the end. *jars*: where programs are kept.

    Raises: AssertionError with its log if it does not answer.
    """
    port, management = free_ports(2, home=folder, name="nessie", taken=frozenset())
    settings = folder / "config" / "application.properties"
    settings.parent.mkdir(parents=True)
    settings.touch(mode=0o600)  # it has the key of the store
    settings.write_text(SETTINGS.format(host=LOOPBACK, port=port, management=management, location=location, s3=s3))
    command = [
        str(newer_java(OLDEST_JAVA, "Nessie") / "bin" / "java"),
        "-Xmx512m",
        "-XX:TieredStopAtLevel=1",
        "-jar",
        str(program(jars)),
    ]
    uri, log = f"http://{LOOPBACK}:{port}/iceberg", folder / "nessie.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: process.poll() is not None or _answers(uri), "Nessie answers", deadline_s=START_S)
        assert process.poll() is None, f"Nessie ended: {log.read_text()[-3000:]}"
        yield Nessie(uri, s3)
    finally:
        process.kill()
        process.wait()


def program(jars: Path) -> Path:
    """Its jar, kept beside *jars*; taken from Maven the first time."""
    kept = jars.parent / "nessie"
    if not any(kept.glob("*.jar")):
        subprocess.run(["mvn", "-B", "-q", MAVEN, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={kept}"], check=True)
    return next(kept.glob("*.jar"))


def _answers(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/v1/config", timeout=5) as answer:
            return int(answer.status) == 200
    except (OSError, urllib.error.URLError):
        return False
