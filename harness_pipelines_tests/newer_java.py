"""A Java for servers that need a newer one than Spark and Kafka may have."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness_pipelines.services.java import java_major


def newer_java(oldest: int, whose: str) -> Path:
    """The folder of a Java of *oldest* or newer, for *whose* sake. Raises: AssertionError."""
    candidates = [*sorted(Path("/usr/lib/jvm").glob("*"))]
    if (on_path := shutil.which("java")) is not None:
        candidates.append(Path(on_path).resolve().parents[1])
    found = {folder: java_major(folder) or 0 for folder in candidates}
    fits = [folder for folder, major in found.items() if major >= oldest]
    assert fits, f"{whose} needs Java {oldest} or newer in /usr/lib/jvm or the PATH; found: {sorted(found.values())}"
    return fits[0]
