"""Dagster resources: the harness, and Spark through dagster-pyspark."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagster import ConfigurableResource, InitResourceContext
from pydantic import Field

from harness_pipelines.app.client import Harness, connect
from harness_pipelines.defs.liveness import beating
from harness_pipelines.defs.work import STAGE_TAG
from harness_pipelines.extras import needs
from harness_pipelines.spec.settings import Settings


class HarnessResource(ConfigurableResource[Harness]):
    """The harness of one installation. Addresses that are not set come from the environment (``HARNESS_DSN``, ...)
    or from the embedded services of *home*.
    """

    home: str | None = Field(default=None, description="HARNESS_HOME of the embedded services")

    @contextmanager
    def yield_for_execution(self, context: InitResourceContext) -> Iterator[Any]:
        """Itself; a run of a stage says that it lives for as long as it has it, its checks included."""
        run = context.run
        if context.instance is None or run is None or STAGE_TAG not in run.tags:
            yield self
        else:
            with beating(context.instance, run.run_id):
                yield self

    @contextmanager
    def opened(self) -> Iterator[Harness]:
        """The harness, closed at the end of the step."""
        with connect(Settings.from_env(home=Path(self.home) if self.home else None)) as harness:
            yield harness

    @contextmanager
    def opened_with_spark(self) -> Iterator[Harness]:
        """The harness with Spark: of Connect, or the session of a master that dagster-pyspark makes on first use."""
        with self.opened() as harness:
            harness.stores.spark_sessions.use(_session)
            yield harness


def _session(options: Mapping[str, str]) -> Any:
    with needs("dagster-pyspark", "A Spark master under Dagster"):
        from dagster_pyspark import LazyPySparkResource  # with PySpark behind it: only runs that need Spark wait for it
    return LazyPySparkResource(spark_config=dict(options)).spark_session
