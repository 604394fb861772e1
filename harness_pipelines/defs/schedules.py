"""Schedules: audits of all tables each night, full ones each week, and the purge of old runs.

Expire has no schedule: the sensor maintenance starts it where something is due.
"""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from dagster import (
    AssetCheckKey,
    AssetKey,
    Config,
    DagsterInstance,
    DefaultScheduleStatus,
    JobDefinition,
    OpExecutionContext,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    define_asset_job,
    in_process_executor,
    job,
    op,
    schedule,
)
from pydantic import Field

from harness_pipelines.defs.history import (
    last_snapshot,
    purge_backfills,
    purge_events,
    purge_runs,
    purge_snapshots,
)
from harness_pipelines.defs.names import step_name, table_key
from harness_pipelines.defs.private import UnresolvedAssetJobDefinition
from harness_pipelines.defs.replays import REPLAY_JOBS
from harness_pipelines.defs.tables import AUDIT, audits_of, job_name
from harness_pipelines.defs.work import STAGE_TAG, TABLE_TAG
from harness_pipelines.protocol.claims import CONTINUOUS_STAGES, Stage
from harness_pipelines.spec.table import TableSpec

AUDIT_AT, FULL_AUDIT_AT, PURGE_AT = "0 3 * * 1-6", "0 3 * * 0", "30 * * * *"  #: cron, UTC
PURGE, AUDITS, FULL_AUDITS = "harness_purge", "harness_audit", "harness_audit_full"
AUDIT_S_MAX = 24 * 3600  #: of one table; a run whose process is gone is ended long before this
PRIORITY_TAG, MAX_RUNTIME_TAG = "dagster/priority", "dagster/max_runtime"  #: what moves records goes first
KEEP_DAYS = 14
PARTS = ["ingest", "buffer", *(stage.value for stage in CONTINUOUS_STAGES - {Stage.INGEST})]
OUR_JOBS = frozenset({PURGE, AUDITS, FULL_AUDITS, *map(job_name, Stage), *(made.name for made in REPLAY_JOBS)})
PURGE_S = 2700.0  #: what is left after so long goes the next time


def table_schedules(specs: Sequence[TableSpec]) -> list[ScheduleDefinition]:
    """Of all tables together: one table that fails its audit does not keep the others from theirs."""
    purge = ScheduleDefinition(
        name=PURGE,
        job=purge_job(specs),
        cron_schedule=PURGE_AT,
        default_status=DefaultScheduleStatus.RUNNING,
        description=f"Deletes runs of the harness that began more than {KEEP_DAYS} days ago, with their events.",
    )
    if not specs:
        return [purge]
    return [
        _auditing(AUDITS, specs, AUDIT_AT, "Audits what came since the last audit, each night but one."),
        _auditing(FULL_AUDITS, specs, FULL_AUDIT_AT, "Audits all records of all tiers, each week.", full=True),
        purge,
    ]


def audit_op(spec: TableSpec) -> str:
    """Name of the op that audits a table, for run configs."""
    return step_name(spec.table, AUDIT)


def _auditing(
    name: str, specs: Sequence[TableSpec], cron: str, about: str, *, full: bool = False
) -> ScheduleDefinition:
    """One run per table: none waits for another, and a tick that is repeated starts only what it had not started."""
    words = {spec.table: {audit_op(spec): {"config": {"full": full}}} for spec in specs}
    audits: UnresolvedAssetJobDefinition = define_asset_job(
        name,
        selection=audits_of(specs),
        executor_def=in_process_executor,
        config={"ops": {step: word for steps in words.values() for step, word in steps.items()}},  # of a run by hand
        tags={STAGE_TAG: AUDIT},
    )

    @schedule(
        name=name,
        job=audits,
        cron_schedule=cron,
        default_status=DefaultScheduleStatus.RUNNING,
        description=about,
    )
    def auditing(context: ScheduleEvaluationContext) -> Iterator[RunRequest]:
        at = context.scheduled_execution_time.isoformat()
        for table, steps in words.items():
            yield RunRequest(
                run_key=f"{name}/{table}/{at}",
                run_config={"ops": steps},
                asset_selection=[],
                asset_check_keys=[AssetCheckKey(table_key(table), AUDIT)],
                tags={TABLE_TAG: table, STAGE_TAG: AUDIT, PRIORITY_TAG: "-1", MAX_RUNTIME_TAG: str(AUDIT_S_MAX)},
            )

    return auditing


class PurgeConfig(Config):
    """What of Dagster's history stays."""

    keep_days: int = Field(default=KEEP_DAYS, ge=1, description="runs that began later stay, events too")


def purge_all(instance: DagsterInstance, keys: Sequence[AssetKey], *, before: datetime) -> dict[str, int]:
    """Delete from *before* what has to do with the assets *keys*; returns how much of each kind went."""
    until = time.monotonic() + PURGE_S
    planned = last_snapshot(instance, before=before)  # while the runs are there that are so old
    return {
        "events": purge_events(instance, keys, before=before, until=until),
        "runs": purge_runs(instance, OUR_JOBS, keys, before=before, until=until),
        "backfills": purge_backfills(instance, keys, before=before),
        "snapshots": purge_snapshots(instance, up_to=planned),
    }


def keys_of(specs: Sequence[TableSpec]) -> list[AssetKey]:
    """All assets of tables."""
    return [table_key(spec.table, *part) for spec in specs for part in ((), *((name,) for name in PARTS))]


def purge_job(specs: Sequence[TableSpec]) -> JobDefinition:
    """Delete outdated entries of Dagster's history; see `harness_pipelines.defs.history`."""
    keys = keys_of(specs)

    @op
    def purge(context: OpExecutionContext, config: PurgeConfig) -> None:
        before = datetime.now(UTC) - timedelta(days=config.keep_days)
        context.log.info(f"deleted from before {before:%Y-%m-%d}: {purge_all(context.instance, keys, before=before)}")

    @job(name=PURGE, executor_def=in_process_executor, description=purge_job.__doc__)
    def made() -> None:
        purge()

    return made
