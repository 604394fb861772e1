"""Purging Dagster's history. The ledger keeps its own record of moves; Dagster's history is only a display.

Dagster deletes runs and their events. What belongs to no run, evaluations of checks, what runs printed and what they
were planned from stay for ever, so they are deleted here, from tables that are private to Dagster.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

import sqlalchemy as sa
from dagster import (
    AssetKey,
    AssetRecordsFilter,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunsFilter,
)

from harness_pipelines.defs.private import (
    BULK_ACTION_TERMINAL_STATUSES,
    IMPLICIT_ASSET_JOB_NAME,
    RUNLESS_RUN_ID,
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    BackfillTagsTable,
    BulkActionsFilter,
    BulkActionsTable,
    EventLogStorage,
    RunsTable,
    RunStorage,
    SnapshotsTable,
    SnapshotType,
    SqlEventLogStorage,
    SqlEventLogStorageTable,
    SqlRunStorage,
)
from harness_pipelines.defs.work import STAGE_TAG, TABLE_TAG

ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
PAGE = 200
ROWS = 500  #: of one statement
PLAN_MARK, SNAPSHOT_DIGITS = '"execution_plan_snapshot_id": "', 40  #: in the body of a run


def purge_runs(
    instance: DagsterInstance, jobs: Collection[str], keys: Collection[AssetKey], *, before: datetime, until: float
) -> int:
    """Delete runs of stages, of *jobs* and of the assets *keys* that began *before*, but the last that did its work.

    The asset of a stage stays made, so. Goes on until the monotonic clock says *until*; returns how many went.
    """
    last = _Last(instance)
    deleted, after = 0, datetime.fromtimestamp(0, UTC)
    while time.monotonic() < until:
        found = instance.get_run_records(
            RunsFilter(statuses=ENDED, created_before=before, created_after=after), limit=PAGE, ascending=True
        )
        for record in found:
            run, after = record.dagster_run, record.create_timestamp  # what stays is not looked at again
            kind = _kind_of(run, jobs)
            if last.is_of(kind, run) if kind else not _is_by_hand(run, keys) or last.is_seen(run):
                continue
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


def _is_by_hand(run: DagsterRun, keys: Collection[AssetKey]) -> bool:
    """Return whether a person chose the run's assets or checks in Dagster's UI, and all of them are in *keys*."""
    chosen = {*(run.asset_selection or ()), *(check.asset_key for check in run.asset_check_selection or ())}
    return run.job_name == IMPLICIT_ASSET_JOB_NAME and bool(chosen) and chosen <= set(keys)


class _Last:
    """Which runs Dagster's UI stands on: it forgets with them that an asset was made."""

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._of_kinds: dict[tuple[str, str], str | None] = {}
        self._of_assets: dict[tuple[AssetKey, str | None], str] = {}

    def is_of(self, kind: tuple[str, str], run: DagsterRun) -> bool:
        """*run* is the last of its *kind* that did its work."""
        if kind not in self._of_kinds:
            self._of_kinds[kind] = _last_success(self._instance, kind)
        return run.run_id == self._of_kinds[kind]

    def is_seen(self, run: DagsterRun) -> bool:
        """An asset, or a partition of one, was last made by *run*."""
        made = self._instance.get_records_for_run(run.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION).records
        things = {(record.asset_key, record.partition_key) for record in made}
        return any(self._maker(key, partition) == run.run_id for key, partition in things if key is not None)

    def _maker(self, key: AssetKey, partition: str | None) -> str:
        if (key, partition) not in self._of_assets:
            wanted = AssetRecordsFilter(asset_key=key, asset_partitions=None if partition is None else [partition])
            [newest] = self._instance.fetch_materializations(wanted, limit=1).records
            self._of_assets[key, partition] = newest.run_id
        return self._of_assets[key, partition]


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


def last_snapshot(instance: DagsterInstance, *, before: datetime) -> int:
    """The number of the newest snapshot that a run from *before* was planned from: those below are as old, or older."""
    storage: RunStorage = instance.run_storage
    if not isinstance(storage, SqlRunStorage):  # of a service, which has its own rules
        return 0
    old = RunsTable.c.create_timestamp < before.astimezone(UTC).replace(tzinfo=None)  # as Dagster stores it
    used = sa.or_(*(SnapshotsTable.c.snapshot_id.in_(names.where(old)) for names in _used(storage).values()))
    with storage.connect() as connection:
        return connection.execute(sa.select(sa.func.max(SnapshotsTable.c.id)).where(used)).scalar() or 0


def purge_snapshots(instance: DagsterInstance, *, up_to: int) -> int:
    """Delete the snapshots of jobs and plans, of those numbered *up_to* this, that no run refers to.

    Each change of a table's definition leaves some. A run that takes one of them up in this very moment fails to start,
    and the next one makes it again. Returns how many went.
    """
    storage: RunStorage = instance.run_storage
    if not isinstance(storage, SqlRunStorage) or not up_to:
        return 0
    snapshots, deleted = SnapshotsTable, 0
    parents = _parents(instance, storage)
    for kind, used in _used(storage).items():
        stays = sa.or_(snapshots.c.snapshot_id.in_(used), snapshots.c.snapshot_id.in_(parents))
        mine = (snapshots.c.id <= up_to, snapshots.c.snapshot_type == kind.value)
        with storage.connect() as connection:
            deleted += connection.execute(sa.delete(snapshots).where(*mine, sa.not_(stays))).rowcount
    return deleted


def _used(storage: SqlRunStorage) -> Mapping[SnapshotType, sa.Select[tuple[str]]]:
    """What runs stand on: a column names the job, the body alone the plan."""
    with storage.connect() as connection:
        find = sa.func.strpos if connection.dialect.name == "postgresql" else sa.func.instr
    job, body = RunsTable.c.snapshot_id, RunsTable.c.run_body
    at = find(body, PLAN_MARK)
    plan = sa.func.substr(body, at + len(PLAN_MARK), SNAPSHOT_DIGITS)
    return {
        SnapshotType.EXECUTION_PLAN: sa.select(plan).where(at > 0),
        SnapshotType.PIPELINE: sa.select(job).where(job.is_not(None)),
    }


def _parents(instance: DagsterInstance, storage: SqlRunStorage) -> set[str]:
    """The whole jobs that the jobs of runs are a selection of: Dagster looks them up with these."""
    with storage.connect() as connection:
        used = list(connection.execute(_used(storage)[SnapshotType.PIPELINE].distinct()).scalars())
    lineages = (instance.get_job_snapshot(name).lineage_snapshot for name in used)
    return {lineage.parent_snapshot_id for lineage in lineages if lineage is not None}


def purge_backfills(instance: DagsterInstance, keys: Collection[AssetKey], *, before: datetime) -> int:
    """Delete backfills of the assets *keys* that began *before* and have ended; returns how many went."""
    storage: RunStorage = instance.run_storage
    if not isinstance(storage, SqlRunStorage):
        return 0
    ours, deleted = set(keys), 0
    for old in instance.get_backfills(
        filters=BulkActionsFilter(created_before=before, statuses=BULK_ACTION_TERMINAL_STATUSES)
    ):
        if not old.asset_selection or not ours.issuperset(old.asset_selection):
            continue
        with storage.connect() as connection:
            connection.execute(sa.delete(BackfillTagsTable).where(BackfillTagsTable.c.backfill_id == old.backfill_id))
            connection.execute(sa.delete(BulkActionsTable).where(BulkActionsTable.c.key == old.backfill_id))
        deleted += 1
    return deleted
