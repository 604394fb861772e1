"""Spark's properties as variables of the environment: ``HARNESS_SPARK_CONF_spark_executor_memory=4g``.

A dot is written as ``_`` and ``_`` as ``__``. Names of Spark distinguish upper from lower case, so the variable does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness_pipelines.errors import UsageError
from harness_pipelines.spec.wording import quote

PREFIX = "HARNESS_SPARK_CONF_"
_NAME = re.compile(r"spark(\.[A-Za-z0-9-][A-Za-z0-9_-]*)+")
#: What another setting says, or what the harness could not work with.
_TAKEN: Mapping[str, str] = {
    "spark.master": "HARNESS_SPARK says it",
    "spark.remote": "HARNESS_SPARK says it",
    "spark.jars": "HARNESS_JARS says it; `spark.jars.packages` and the server's own jars are free",
    "spark.submit.deployMode": "the driver is the process of the harness",
    "spark.sql.extensions": "the harness needs Iceberg's",
    "spark.sql.session.timeZone": "stages rely on UTC",
}


def variable_of(name: str) -> str:
    """The variable that says what the property *name* is."""
    return PREFIX + name.replace("_", "__").replace(".", "_")


def property_of(variable: str) -> str:
    """The property that *variable* names. Raises: UsageError."""
    said = variable.removeprefix(PREFIX)
    name = ".".join(part.replace("\0", "_") for part in said.replace("__", "\0").split("_"))
    if not _NAME.fullmatch(name):
        lower = said.lower()
        meant = lower if lower.startswith("spark_") else f"spark_{lower}"
        hint = f": {PREFIX}{meant}?" if re.fullmatch(r"[a-z0-9_-]+", meant) else ""
        raise UsageError(
            f"{quote(variable)} names no property of Spark: write its name as Spark does, with `_` for a dot and `__` "
            f"for `_`, as in {variable_of('spark.executor.memory')} or "
            f"{variable_of('spark.dynamicAllocation.maxExecutors')}{hint}"
        )
    return name


def from_env(values: Mapping[str, str], *, catalog: str) -> dict[str, str]:
    """The properties of Spark that *values* name, by name. Raises: UsageError for those that are not free."""
    found = {property_of(variable): value for variable, value in values.items() if variable.startswith(PREFIX)}
    for name, value in found.items():
        why = _TAKEN.get(name)
        if name == f"spark.sql.catalog.{catalog}" or name.startswith(f"spark.sql.catalog.{catalog}."):
            why = "the harness makes this catalog, of HARNESS_DSN and HARNESS_WAREHOUSE"
        if why is not None:
            raise UsageError(f"{variable_of(name)} cannot be set: {why}. Unset it")
        if not value.isprintable():
            raise UsageError(
                f"{variable_of(name)} has a line break or a control character in its value: {quote(value)}"
            )
    return found
