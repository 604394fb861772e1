"""What goes from Dagster's history. The ledger has its own record of moves; this one is for looking at.

Dagster deletes runs and their events. What belongs to no run, evaluations of checks and what runs printed stay for
ever, so they are deleted here: events and evaluations from the tables of its event log, which are private to Dagster.
"""

import time
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

import sqlalchemy as sa
from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from harness_pipelines.defs.private import (
    RUNLESS_RUN_ID,
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    EventLogStorage,
    SqlEventLogStorage,
    SqlEventLogStorageTable,
)
from harness_pipelines.defs.work import STAGE_TAG, TABLE_TAG

ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
PAGE = 200
ROWS = 500  #: of one statement


def purge_runs(instance: DagsterInstance, jobs: Collection[str], *, before: datetime, until: float) -> int:
    """Delete runs of stages and of *jobs* that began *before*, but the last of each that did its work.

    The asset of a stage stays made, so. Goes on until the monotonic clock says *until*; returns how many went.
    """
    deleted, last, after = 0, dict[tuple[str, str], str | None](), datetime.fromtimestamp(0, UTC)
    while time.monotonic() < until:
        found = instance.get_run_records(
            RunsFilter(statuses=ENDED, created_before=before, created_after=after), limit=PAGE, ascending=True
        )
        for record in found:
            run, after = record.dagster_run, record.create_timestamp  # what stays is not looked at again
            kind = _kind_of(run, jobs)
            if kind is None:
                continue
            if kind not in last:
                last[kind] = _last_success(instance, kind)
            if run.run_id != last[kind]:
                instance.delete_run(run.run_id)
                instance.compute_log_manager.delete_logs(prefix=[run.run_id])
                deleted += 1
        if len(found) < PAGE:
            break
    return deleted


def _kind_of(run: DagsterRun, jobs: Collection[str]) -> tuple[str, str] | None:
    """Table and stage of a run, or the name of its job, which is one of *jobs*; None for a run that is not ours.

    Tables are ``namespace.name``, which no name of a job is.
    """
    table, stage = run.tags.get(TABLE_TAG), run.tags.get(STAGE_TAG)
    if table and stage:
        return table, stage
    return (run.job_name, "") if run.job_name in jobs else None


def _last_success(instance: DagsterInstance, kind: tuple[str, str]) -> str | None:
    name, stage = kind
    done = [DagsterRunStatus.SUCCESS]
    if stage:
        wanted = RunsFilter(tags={TABLE_TAG: name, STAGE_TAG: stage}, statuses=done)
    else:
        wanted = RunsFilter(job_name=name, statuses=done)
    found = instance.get_runs(wanted, limit=1)
    return found[0].run_id if found else None


def purge_events(instance: DagsterInstance, keys: Iterable[AssetKey], *, before: datetime, until: float) -> int:
    """Delete events of the assets *keys* that belong to no run, and evaluations of their checks, from *before*.

    The newest of each kind stays: it is what Dagster shows. Goes on until the monotonic clock says *until*.
    """
    storage: EventLogStorage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):  # of a service, which has its own rules
        return 0
    events, checks, tags = SqlEventLogStorageTable, AssetCheckExecutionsTable, AssetEventTagsTable
    moment = before.astimezone(UTC).replace(tzinfo=None)  # as Dagster stores it
    deleted = 0
    for key in keys:
        runless = (events.c.asset_key == key.to_string(), events.c.run_id == RUNLESS_RUN_ID)
        evaluated = (checks.c.asset_key == key.to_string(),)
        for table, mine, kind, at in (
            (events, runless, events.c.dagster_event_type, events.c.timestamp),
            (checks, evaluated, checks.c.check_name, checks.c.create_timestamp),
        ):
            newest = sa.select(sa.func.max(table.c.id)).where(*mine).group_by(kind)
            old = sa.select(table.c.id).where(*mine, at < moment, table.c.id.not_in(newest)).limit(ROWS)
            while time.monotonic() < until:
                with storage.index_connection() as connection:
                    ids = list(connection.execute(old).scalars())
                    connection.execute(sa.delete(table).where(table.c.id.in_(ids)))
                    if table is events:
                        connection.execute(sa.delete(tags).where(tags.c.event_id.in_(ids)))
                deleted += len(ids)
                if len(ids) < ROWS:
                    break
    return deleted
