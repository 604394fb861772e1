"""All imports of Dagster's private names. A test names the Dagster version that they were checked with."""

from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES, BulkActionsFilter
from dagster._core.instance import RUNLESS_RUN_ID
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.base import EventLogStorage
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.runs.base import RunStorage
from dagster._core.storage.runs.schema import BackfillTagsTable, BulkActionsTable, RunsTable, SnapshotsTable
from dagster._core.storage.runs.sql_run_storage import SnapshotType, SqlRunStorage
from dagster._grpc.server import DagsterApiServer
from dagster_shared.check import CheckError

__all__ = [
    "BULK_ACTION_TERMINAL_STATUSES",
    "IMPLICIT_ASSET_JOB_NAME",
    "RUNLESS_RUN_ID",
    "AssetCheckExecutionRecordStatus",
    "AssetCheckExecutionsTable",
    "AssetEventTagsTable",
    "BackfillTagsTable",
    "BulkActionsFilter",
    "BulkActionsTable",
    "CheckError",
    "DagsterApiServer",
    "EventLogStorage",
    "RunStorage",
    "RunsTable",
    "SnapshotType",
    "SnapshotsTable",
    "SqlEventLogStorage",
    "SqlEventLogStorageTable",
    "SqlRunStorage",
    "UnresolvedAssetJobDefinition",
]
