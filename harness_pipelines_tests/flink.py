"""A real Flink in one process, taken from PyPI and Maven the first time (400 MB); it needs 1 GB of memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from harness_pipelines_tests.maven import jars_of, source_command

VERSION = "2.1.3"
#: Flink's jars: nobody else publishes them in one piece.
LIBRARIES = f"apache-flink-libraries=={VERSION}"
ICEBERG = "org.apache.iceberg:iceberg-flink-runtime-2.1:1.11.0"
HADOOP = (  # what Iceberg opens files in a folder by
    "org.apache.hadoop:hadoop-client-api:3.4.2",
    "org.apache.hadoop:hadoop-client-runtime:3.4.2",
    "commons-logging:commons-logging:1.3.5",
)
#: Flink writes and reads values of Java's own classes by what is in them.
_OPENED = ("java.lang", "java.util", "java.net", "java.time", "java.nio")


class FlinkRefused(Exception):
    """A statement failed; the text is Flink's."""


class Flink:
    """One that answers, a statement at a time."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def query(self, sql: str) -> pa.Table:
        """The rows of *sql*: whole numbers and truth values as such, others as text of Java. Raises: FlinkRefused."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b64encode(sql.encode()).decode() + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Flink ended: {self._log.read_text()[-3000:]}"
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise FlinkRefused(answer["error"])
        return pa.table({name: [row[i] for row in answer["rows"]] for i, name in enumerate(answer["columns"])})


@contextmanager
def flink(folder: Path, *, jars: Path) -> Iterator[Flink]:
    """Run one, with its log in *folder*. *jars*: where programs are kept; those for S3 are taken along if there."""
    classpath = [*program(jars), *(one for one in (jars / "s3",) if one.exists())]
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
    log = folder / "flink.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            source_command("flink.java", classpath, *opened), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=out, text=True,
        )  # fmt: skip
    try:
        yield Flink(process, log)
    finally:
        process.kill()
        process.communicate()


def program(jars: Path) -> tuple[Path, Path]:
    """The folders of its jars and of Iceberg's, kept beside *jars*; taken from PyPI and Maven the first time."""
    kept = jars.parent / "flink"
    lib = kept / f"flink-{VERSION}"
    if not lib.exists():
        kept.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=kept) as draft:
            _unpack_libraries(Path(draft)).rename(lib)
    return lib, jars_of([ICEBERG, *HADOOP], kept / f"iceberg-{ICEBERG.rpartition(':')[2]}")


def _unpack_libraries(draft: Path) -> Path:
    """The folder with Flink's jars, in *draft*."""
    # Only the source distribution is complete on each system; its metadata is all that is built.
    how = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(draft)]
    subprocess.run([sys.executable, "-m", "pip", "download", *how, LIBRARIES], check=True)
    [archive] = draft.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(draft, filter="data")
    archive.unlink()
    [lib] = draft.glob("*/deps/lib")
    found = draft / "lib"
    shutil.move(lib, found)
    return found
