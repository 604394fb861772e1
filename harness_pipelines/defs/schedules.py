"""What is done by the clock: all tables are audited each night, fully each week; runs that nobody asks for any more go.

Expire has no schedule: the sensor maintenance starts it where something is due.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dagster import (
    Config,
    DagsterInstance,
    DagsterRunStatus,
    DefaultScheduleStatus,
    OpExecutionContext,
    RunsFilter,
    ScheduleDefinition,
    define_asset_job,
    in_process_executor,
    job,
    op,
)
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from pydantic import Field

from harness_pipelines.defs.names import step_name
from harness_pipelines.defs.tables import AUDIT, audits_of
from harness_pipelines.defs.work import STAGE_TAG, TABLE_TAG
from harness_pipelines.spec.table import TableSpec

AUDIT_AT, FULL_AUDIT_AT, PURGE_AT = "0 3 * * 1-6", "0 3 * * 0", "30 2 * * *"  #: cron, UTC
KEEP_DAYS = 14
PURGE_S = 600.0  #: what is left after so long goes the next night
PAGE = 200
ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


def table_schedules(specs: Sequence[TableSpec]) -> list[ScheduleDefinition]:
    """Of all tables together: one table that fails its audit does not keep the others from theirs."""
    purge = ScheduleDefinition(
        name="harness_purge",
        job=harness_purge,
        cron_schedule=PURGE_AT,
        default_status=DefaultScheduleStatus.RUNNING,
        description=f"Deletes runs of stages that ended more than {KEEP_DAYS} days ago, with their events.",
    )
    if not specs:
        return [purge]
    fully = {"ops": {audit_op(spec): {"config": {"full": True}} for spec in specs}}
    return [
        _auditing("harness_audit", specs, AUDIT_AT, {}, "Audits what came since the last audit, each night but one."),
        _auditing("harness_audit_full", specs, FULL_AUDIT_AT, fully, "Audits every record of every tier, each week."),
        purge,
    ]


def audit_op(spec: TableSpec) -> str:
    """Name of the op that audits a table, for run configs."""
    return step_name(spec.table, AUDIT)


def _auditing(
    name: str, specs: Sequence[TableSpec], cron: str, run_config: dict[str, Any], about: str
) -> ScheduleDefinition:
    audits: UnresolvedAssetJobDefinition = define_asset_job(
        name,
        selection=audits_of(specs),
        executor_def=in_process_executor,
        config=run_config or None,
        tags={STAGE_TAG: AUDIT},
    )
    return ScheduleDefinition(
        name=name,
        job=audits,
        cron_schedule=cron,
        default_status=DefaultScheduleStatus.RUNNING,
        description=about,
    )


class PurgeConfig(Config):
    """What of Dagster's history stays."""

    keep_days: int = Field(default=KEEP_DAYS, ge=1, description="runs that ended later stay")


@op
def purge_runs(context: OpExecutionContext, config: PurgeConfig) -> None:
    """Delete old runs of stages, but the last of each stage that did its work: its asset stays materialized.

    The ledger has its own record of moves; Dagster's history is for looking at.
    """
    before = datetime.now(UTC) - timedelta(days=config.keep_days)
    until, deleted = time.monotonic() + PURGE_S, 0
    kept: set[str] = set()
    while time.monotonic() < until:
        found = context.instance.get_run_records(
            RunsFilter(statuses=ENDED, created_before=before), limit=PAGE + len(kept), ascending=True
        )
        fresh = [record.dagster_run for record in found if record.dagster_run.run_id not in kept]
        if not fresh:
            break
        for run in fresh:
            table, stage = run.tags.get(TABLE_TAG), run.tags.get(STAGE_TAG)
            if table is None or stage is None or run.run_id == _last_success(context.instance, table, stage):
                kept.add(run.run_id)
            else:
                context.instance.delete_run(run.run_id)
                deleted += 1
    context.log.info(f"{deleted} runs deleted that began before {before:%Y-%m-%d}, {len(kept)} kept")


def _last_success(instance: DagsterInstance, table: str, stage: str) -> str | None:
    tags = {TABLE_TAG: table, STAGE_TAG: stage}
    [*found] = instance.get_runs(RunsFilter(tags=tags, statuses=[DagsterRunStatus.SUCCESS]), limit=1)
    return found[0].run_id if found else None


@job(executor_def=in_process_executor)
def harness_purge() -> None:
    """Delete what nobody asks for any more from Dagster's history."""
    purge_runs()
