"""The extras of the package: what each brings, and how it is reported that one is missing.

The package alone reads tables. Whatever needs more imports it inside of `needs`, so that every absence is a usage error
that names the extra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from harness_pipelines.errors import UsageError

_SPARK = frozenset({"grpc", "pyspark", "sqlglot"})
_REGISTRY = frozenset({"attr", "attrs", "authlib", "cachetools", "certifi", "httpx2"})
#: What the harness imports of each extra, itself or through its own library.
MODULES: Mapping[str, frozenset[str]] = {
    "connect": _SPARK,
    "contracts": frozenset({"pandas", "pandera"}),
    "dagster": frozenset({"dagster", "dagster_postgres", "dagster_shared", "dagster_webserver", "sqlalchemy"}),
    "dagster-pyspark": frozenset({"dagster_pyspark"}),
    "flight": frozenset({"duckdb", "google", "prompt_toolkit"}),
    "formats": _REGISTRY | {"fastavro", "google", "jsonschema_rs"},
    "openlineage": frozenset({"attr", "openlineage"}),
    "pandas": frozenset({"pandas"}),
    "plot": frozenset({"matplotlib"}),
    "polars": frozenset({"polars"}),
    "s3": frozenset({"botocore", "obstore"}),
    "spark": _SPARK,
    "sql": frozenset({"duckdb", "prompt_toolkit"}),
    "top": frozenset({"textual"}),
    "transform": frozenset({"duckdb"}),
}
#: Where another extra would do as well.
_INSTEAD: Mapping[str, str] = {"spark": "connect"}


class ExtraMissing(UsageError):
    """What was asked for needs packages that come with an extra, and they are not installed; nothing was done."""

    way_on = "`pip install 'harness-pipelines[EXTRA]'` with the extra that the message names"

    def __init__(self, extra: str, *, what: str, package: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs the Python package {package}, which is not installed: {pip_install(extra)}")


def pip_install(extra: str) -> str:
    """The command that installs *extra*."""
    command = f"`pip install 'harness-pipelines[{extra}]'`"
    instead = _INSTEAD.get(extra)
    return f"{command} (or `[{instead}]`, for a Spark Connect server)" if instead else command


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Import what *extra* brings inside of the block; *what* is the subject of the message.

    Raises: ExtraMissing. A package that is no part of the extra is a defect, and its error is raised as it is.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in MODULES[extra]:
            raise
        raise ExtraMissing(extra, what=what, package=package) from missing


def require(extra: str, what: str, package: str) -> None:
    """See that *package*, of *extra*, can be found, before anything is imported or done. Raises: ExtraMissing."""
    if find_spec(package) is None:
        raise ExtraMissing(extra, what=what, package=package)
