"""What a Spark application on a cluster asks for, if nobody says otherwise: little, and more while there is work.

A standalone master gives an application all cores that are free, and an executor all cores of its machine. So each
command would take the cluster from the others, for as long as it runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DEFAULTS: Mapping[str, str] = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",  # no shuffle service is needed
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.dynamicAllocation.executorIdleTimeout": "60s",
    "spark.executor.cores": "1",
}
#: By each of these a user says how large the application is: then none of the defaults is added.
SIZES = (
    "spark.cores.max",
    "spark.dynamicAllocation.enabled",
    "spark.executor.cores",
    "spark.executor.instances",
)


def sizes(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """The defaults for *master* that neither *given* nor Spark's own files of settings stand in the way of."""
    if master.startswith("local"):
        return {}
    known = {**_of_files(), **given}
    if any(name in known for name in SIZES):
        return {}
    return {name: value for name, value in DEFAULTS.items() if name not in known}


def _of_files() -> dict[str, str]:
    """What ``spark-defaults.conf`` says, where Spark looks for it."""
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if (home := os.environ.get("SPARK_HOME")) else None)
    if folder is None:
        return {}
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        return {}
    words = (line.split("#", 1)[0].replace("=", " ", 1).split(None, 1) for line in text.splitlines())
    return {found[0]: found[1].strip() if len(found) > 1 else "" for found in words if found}
