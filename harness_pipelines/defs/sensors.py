"""The one sensor: each tick works out from the ledger and the log what can be done; no cursor carries truth."""

from collections.abc import Iterator, Mapping, Sequence

from dagster import (
    DagsterRunStatus,
    DefaultSensorStatus,
    JobDefinition,
    RunRequest,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from harness_pipelines.client import Harness
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines.defs.tables import STAGE_TAG, TABLE_TAG, job_name
from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.wake import due_stages

TICK_S = 5
ACTIVE = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def wake_sensor(tables: Mapping[str, Sequence[JobDefinition | UnresolvedAssetJobDefinition]]) -> SensorDefinition:
    """Request runs of the stages that are due, for all of *tables* (name -> its jobs)."""

    @sensor(
        name="harness_wake",
        jobs=[job for jobs in tables.values() for job in jobs],
        minimum_interval_seconds=TICK_S,
        default_status=DefaultSensorStatus.RUNNING,
        description="Starts the stages that have something to do and that nobody works on.",
    )
    def harness_wake(context: SensorEvaluationContext, harness: HarnessResource) -> Iterator[RunRequest | SkipReason]:
        requested = False
        with harness.opened() as opened:
            for name in sorted(tables):
                for request in _requests(context, opened, name):
                    requested = True
                    yield request
        if not requested:
            yield SkipReason("nothing is due")

    return harness_wake


def _requests(context: SensorEvaluationContext, harness: Harness, name: str) -> Iterator[RunRequest]:
    try:
        table = harness.table(name).row
        due = due_stages(harness.stores, table)
    except HarnessError as error:  # one sick table never stops another
        context.log.warning(f"{name}: {error}")
        return
    for stage, reason in due.items():
        if not _is_active(context, name, stage):
            key = f"{name}/{stage}/{reason.attempt}/{reason.position}/{_last_run(context, name, stage)}"
            yield RunRequest(
                run_key=key,
                job_name=job_name(name, stage),
                tags={TABLE_TAG: name, STAGE_TAG: stage.value, "harness/why": reason.why},
            )


def _last_run(context: SensorEvaluationContext, table: str, stage: Stage) -> str:
    """The run before this one: a key that names it is never blocked by a run that failed."""
    tags = {TABLE_TAG: table, STAGE_TAG: stage.value}
    found = context.instance.get_runs(RunsFilter(tags=tags), limit=1)
    return found[0].run_id if found else "first"


def _is_active(context: SensorEvaluationContext, table: str, stage: Stage) -> bool:
    tags = {TABLE_TAG: table, STAGE_TAG: stage.value}
    return bool(context.instance.get_runs(RunsFilter(statuses=ACTIVE, tags=tags), limit=1))
