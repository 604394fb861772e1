"""Finding a Java runtime and the jars."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from harness_pipelines.services.base import Place, ToolMissing

OLDEST_JAVA, FIRST_JAVA_TOO_NEW = 17, 24  # Hadoop's client in Spark 4.1 needs what Java 24 took away
_VERSION = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)


def java_home() -> Path:
    """Return the folder of a Java that Spark and Kafka both run on. Raises: ToolMissing."""
    candidates = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    candidates += [Path(on_path).resolve().parents[1]] if on_path else []
    candidates += sorted(Path("/usr/lib/jvm").glob("*"))
    seen = {}
    for folder in candidates:
        seen[str(folder)] = major = java_major(folder)
        if major is not None and OLDEST_JAVA <= major < FIRST_JAVA_TOO_NEW:
            return folder
    found = ", ".join(f"Java {major} in {folder}" for folder, major in seen.items() if major) or "none"
    raise ToolMissing(
        f"no Java from {OLDEST_JAVA} to {FIRST_JAVA_TOO_NEW - 1} found (found: {found}); nothing was started. "
        "Install the package `openjdk-17-jre-headless`, or set JAVA_HOME"
    )


def java_major(folder: Path) -> int | None:
    """Return the major version of the Java in *folder*; ``None`` if there is none. Starts no JVM."""
    if not (folder / "bin" / "java").exists():
        return None
    try:
        found = _VERSION.search((folder / "release").read_text())
    except OSError:
        return None
    return int(found[1]) if found else None


def jars(place: Place, kind: str) -> Path:
    """Return the folder with the jars of *kind* (``spark`` or ``kafka``). Raises: ToolMissing."""
    roots = [place.jars] if place.jars else [Path(__file__).parents[2] / ".cache" / "jars"]
    for root in roots:
        if any((root / kind).glob("*.jar")):
            return root / kind
    raise ToolMissing(
        f"no jars for {kind} in {roots[0] / kind}; nothing was started. `deploy/run` of a checkout downloads them; "
        "set HARNESS_JARS to its folder .cache/jars"
    )
