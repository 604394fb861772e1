"""Programs of Java for tests: jars taken from Maven the first time, and sources that a Java Development Kit runs."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from harness_pipelines_tests.newer_java import newer_java

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
SOURCES = Path(__file__).parent / "java"


def unpacked(artifact: str, folder: Path) -> Path:
    """Return *folder*, which *artifact* (``group:name:version:tar.gz``) has by the same name.

    Maven's own unpacking leaves files empty that are links to others in the archive.
    """
    if not folder.exists():
        draft = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(draft, ignore_errors=True)  # of a call that was ended
        _mvn(f"{_PLUGIN}:copy", artifact, draft)
        [archive] = draft.iterdir()
        with tarfile.open(archive) as opened:
            opened.extractall(draft, filter="data")
        (draft / folder.name).rename(folder)
        shutil.rmtree(draft)
    return folder


def jars_of(artifacts: Sequence[str], folder: Path) -> Path:
    """Return *folder*, which has the jars of *artifacts* (``group:name:version``), and nothing that they need."""
    if not folder.exists():
        draft = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(draft, ignore_errors=True)  # of a call that was ended
        for artifact in artifacts:
            _mvn(f"{_PLUGIN}:copy", artifact, draft)
        draft.rename(folder)
    return folder


def source_command(source: str, classpath: Sequence[Path], *options: str) -> Sequence[str]:
    """The command that compiles and runs a file of `SOURCES` with the jars in the folders of *classpath*.

    Raises: AssertionError without a Java of 17 or newer that has a compiler.
    """
    java = newer_java(17, source) / "bin"
    assert (java / "javac").exists(), f"{source} is compiled by a Java Development Kit; {java} has no compiler"
    path = ":".join(f"{folder}/*" for folder in classpath)
    return [str(java / "java"), "-Xmx1g", "-XX:+UseSerialGC", *options, "-cp", path, str(SOURCES / source)]


def _mvn(goal: str, artifact: str, folder: Path) -> None:
    command = ["mvn", "-B", "-q", goal, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    subprocess.run(command, check=True)
