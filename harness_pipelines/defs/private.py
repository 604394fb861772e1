"""All that is taken from inside of Dagster, where it promises nothing. A test names the version that it was read in."""

from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.instance import RUNLESS_RUN_ID
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.base import EventLogStorage
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster_shared.check import CheckError

__all__ = [
    "RUNLESS_RUN_ID",
    "AssetCheckExecutionRecordStatus",
    "AssetCheckExecutionsTable",
    "AssetEventTagsTable",
    "CheckError",
    "EventLogStorage",
    "SqlEventLogStorage",
    "SqlEventLogStorageTable",
    "UnresolvedAssetJobDefinition",
]
