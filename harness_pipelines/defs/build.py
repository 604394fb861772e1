"""Definitions of many tables: what each has, and what they share."""

from dagster import Definitions, in_process_executor

from harness_pipelines.defs.replays import REPLAY_JOBS
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines.defs.schedules import table_schedules
from harness_pipelines.defs.sensors import table_sensors
from harness_pipelines.defs.tables import stage_jobs, table_definitions, topics
from harness_pipelines.spec.table import TableSpec


def build(specs: list[TableSpec]) -> Definitions:
    """Definitions of *specs*: assets, checks and jobs of each table, and what they share."""
    return Definitions.merge(shared(specs), *(table_definitions(spec) for spec in specs))


def shared(specs: list[TableSpec], *, declared: bool = False) -> Definitions:
    """What the tables of a code location have together: topics, jobs, sensors, schedules, and the way to the ledger.

    *declared*: the specs are the user's, and the ledger is to follow them.
    """
    jobs = stage_jobs(specs)
    return Definitions(
        assets=topics(specs),
        jobs=[*jobs, *REPLAY_JOBS],
        sensors=table_sensors(specs, jobs, declared=declared),
        schedules=table_schedules(specs),
        resources={"harness": HarnessResource()},
        executor=in_process_executor,
    )
