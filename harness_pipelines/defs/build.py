"""Build the definitions of many tables: their own parts and the shared ones."""

from dagster import AssetSpec, DagsterError, Definitions, get_dagster_logger, in_process_executor

from harness_pipelines.defs.names import broken_key
from harness_pipelines.defs.private import CheckError
from harness_pipelines.defs.replays import REPLAY_JOBS
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines.defs.schedules import table_schedules
from harness_pipelines.defs.sensors import table_sensors
from harness_pipelines.defs.tables import stage_jobs, table_definitions, topics
from harness_pipelines.spec.table import TableSpec


def build(specs: list[TableSpec]) -> Definitions:
    """Definitions of *specs*: assets, checks and jobs of each table, and what they share.

    A table that Dagster does not take is shown in its place with the reason, and the others are as they would be.
    """
    taken: list[TableSpec] = []
    made: list[Definitions] = []
    for spec in specs:
        try:
            made.append(table_definitions(spec))
        except (DagsterError, CheckError) as error:
            made.append(Definitions(assets=[broken_asset(spec.table, str(error))]))
        else:
            taken.append(spec)
    return Definitions.merge(shared(taken), *made)


def broken_asset(name: str, why: str) -> AssetSpec:
    """What stands for a table that cannot be shown."""
    get_dagster_logger().error(f"{name}: {why}")
    return AssetSpec(broken_key(name), description=why, kinds={"error"})


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
