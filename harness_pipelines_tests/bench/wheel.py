"""What the package costs on disk: the wheel, a reader's environment, and what each extra adds to it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness_pipelines_tests import wheel
from harness_pipelines_tests.bench.base import Figure, Run


def measure_sizes(run: Run) -> Sequence[Figure]:
    """Megabytes of files as delivered, without byte code; each environment is a new one."""
    extras = tomllib.loads((wheel.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    with TemporaryDirectory() as folder:
        run.say("building the wheel")
        made = wheel.build(Path(folder) / "wheel")
        where = Path(folder) / "environment"
        run.say("installing it alone")
        wheel.environment(where, made)
        alone = wheel.size_mb(where)
        for extra in sorted(set(extras) - {"test"}):
            run.say(f"installing it with {extra}")
            wheel.environment(where, made, extra)
            run.note(f"wheel.with.{extra}", wheel.size_mb(where), "MB")
        size = made.stat().st_size / wheel.MB
    return [
        Figure(figure="wheel.file", value=size, unit="MB", goal=wheel.WHEEL_MB_MAX, sense="<="),
        Figure(figure="wheel.reader", value=alone, unit="MB", goal=wheel.READER_MB_MAX, sense="<="),
    ]


FIGURES: Mapping[str, Any] = {"sizes": measure_sizes}
