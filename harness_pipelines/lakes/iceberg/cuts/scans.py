"""`ScanPlans` by PyIceberg: the files of a scan by the partitions and bounds in manifests.

Engines write literals in other ways: a hex text may be bytes or a string. So files are left out only by a filter whose
literals are whole numbers, strings and booleans, compared with columns of these types. With any other filter all files
are named, which is as right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.rest.scan_planning import PlanTableScanRequest
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import BooleanType, IcebergType, IntegerType, LongType, StringType

from harness_pipelines.lakes.iceberg.checked_io import opened_io
from harness_pipelines.lakes.iceberg.cuts.sound import readable
from harness_pipelines.lakes.iceberg.read.manifests import metadata_of
from harness_pipelines.ports.lake import reachable
from harness_pipelines.ports.serving.scans import FILES_MAX, ScanOfUnknown, ScanTooLarge, ScanWanted

DEPTH_MAX = 50  #: of filters that files are left out by
_COMPARED = frozenset({"lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq", "starts-with", "not-starts-with"})
_SETS, _NULLS = frozenset({"in", "not-in"}), frozenset({"is-null", "not-null"})
_LITERALS: tuple[tuple[tuple[type[IcebergType], ...], type[object]], ...] = (
    ((IntegerType, LongType), int),
    ((StringType,), str),
    ((BooleanType,), bool),
)


class IcebergScans:
    """Plans scans of the metadata files of this warehouse."""

    def plan(self, metadata: str, wanted: ScanWanted) -> Mapping[str, Any]:
        """The tasks of a scan. Raises: as the port."""
        with reachable(metadata, "planning a scan"), readable(metadata):
            io = opened_io()
            told = metadata_of(metadata, io)
            head = _snapshot(told, wanted, metadata)
            tasks: list[FileScanTask] = []
            if head is not None:
                _check_size(head, metadata)
                table = Table(("cut", "scan"), told, metadata, io, NoopCatalog("cut"))
                scan = table.scan(
                    row_filter=_left_out_by(told, head, wanted),
                    case_sensitive=wanted.case_sensitive,
                    snapshot_id=head.snapshot_id,
                )
                tasks = list(scan.plan_files())
        return _answer(tasks, wanted.where)


def _snapshot(told: TableMetadata, wanted: ScanWanted, metadata: str) -> Snapshot | None:
    """None: of a view without rows. Raises: ScanOfUnknown."""
    if wanted.snapshot_id is None:
        return told.current_snapshot()
    found = told.snapshot_by_id(wanted.snapshot_id)
    if found is None:
        raise ScanOfUnknown(f"{metadata} has no snapshot {wanted.snapshot_id}")
    return found


def _check_size(head: Snapshot, metadata: str) -> None:
    summary = head.summary.additional_properties if head.summary else {}
    files = sum(int(summary.get(name) or 0) for name in ("total-data-files", "total-delete-files"))
    if files > FILES_MAX:
        raise ScanTooLarge(
            f"the state at {metadata} has {files:,} files, and the server plans scans of {FILES_MAX:,} at most"
        )


# -- the filter -------------------------------------------------------------------------------------------------


def _left_out_by(told: TableMetadata, head: Snapshot, wanted: ScanWanted) -> BooleanExpression:
    schema = next((one for one in told.schemas if one.schema_id == head.schema_id), told.schema())
    if wanted.where is None or not _is_plain(wanted.where, schema, wanted.case_sensitive, DEPTH_MAX):
        return AlwaysTrue()
    found = PlanTableScanRequest.model_validate({"filter": wanted.where}).filter
    return AlwaysTrue() if found is None else found


def _is_plain(told: object, schema: Schema, case_sensitive: bool, depth: int) -> bool:
    """Whether all of a filter is compared in the one way that there is."""
    if not isinstance(told, Mapping) or not depth:
        return isinstance(told, bool)
    kind = told.get("type")

    def inner(*names: str) -> bool:
        return all(_is_plain(told.get(name), schema, case_sensitive, depth - 1) for name in names)

    if kind in ("and", "or"):
        return inner("left", "right")
    if kind == "not":
        return inner("child")
    is_literal = _literals_of(told.get("term"), schema, case_sensitive)
    if is_literal is None:
        return False
    if kind in _SETS:
        values = told.get("values")
        return isinstance(values, list) and bool(values) and all(map(is_literal, values))
    return kind in _NULLS or (kind in _COMPARED and is_literal(told.get("value")))


def _literals_of(term: object, schema: Schema, case_sensitive: bool) -> Callable[[object], bool] | None:
    """What the literals are that a column is compared with; None: the term is no column of a plain type."""
    if not isinstance(term, str):
        return None
    try:
        field = schema.find_field(term, case_sensitive)
    except ValueError:
        return None
    kind = next((found for types, found in _LITERALS if isinstance(field.field_type, types)), None)
    return None if kind is None else lambda value: type(value) is kind  # a bool is an int, too


# -- the answer -------------------------------------------------------------------------------------------------


def _answer(tasks: list[FileScanTask], where: object) -> Mapping[str, Any]:
    """Each delete file is listed once. The engine filters the rows of each file by all of *where*."""
    numbers: dict[str, int] = {}
    deletes: list[Mapping[str, Any]] = []
    told = []
    for task in tasks:
        for file in sorted(task.delete_files, key=lambda one: one.file_path):
            if file.file_path not in numbers:
                numbers[file.file_path] = len(deletes)
                deletes.append(_file(file, "position-deletes"))
        one: dict[str, Any] = {"data-file": _file(task.file, "data")}
        if task.delete_files:
            one["delete-file-references"] = sorted(numbers[file.file_path] for file in task.delete_files)
        if where is not None:
            one["residual-filter"] = where
        told.append(one)
    return {"status": "completed", "delete-files": deletes, "file-scan-tasks": told}


def _file(file: DataFile, content: str) -> Mapping[str, Any]:
    found = {
        "spec-id": file.spec_id,
        "partition": [file.partition[at] for at in range(len(file.partition))],
        "content": content,
        "file-path": file.file_path,
        "file-format": file.file_format.value.lower(),
        "file-size-in-bytes": file.file_size_in_bytes,
        "record-count": file.record_count,
    }
    return found | ({"split-offsets": list(file.split_offsets)} if file.split_offsets else {})
