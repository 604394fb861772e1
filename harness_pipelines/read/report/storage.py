"""Rows and bytes of a version's Iceberg tables, from their manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness_pipelines.ports.lake import LakeReads, reachable
from harness_pipelines.protocol.versions import Version, ViewName

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import TableRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewCost:
    """One Iceberg table of a version."""

    view: ViewName
    name: str  #: ``namespace.name`` in the catalog
    metadata: str
    files: int
    rows: int
    bytes: int  #: of its data files
    reached: Mapping[int, int]  #: per partition the offset below which it has everything

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "metadata": self.metadata,
            "files": self.files,
            "rows": self.rows,
            "bytes": self.bytes,
            "reached": {str(partition): high for partition, high in self.reached.items()},
        }


def costs(table: TableRow, version: Version, lake: LakeReads) -> list[ViewCost]:
    """Each view of *version*, the stream view first. Raises: LakeAway."""
    reached: Mapping[ViewName, dict[int, int]] = {
        "stream": {p: b.stream_hi for p, b in sorted(version.bounds.items())},
        "batch": {p: b.batch_hi for p, b in sorted(version.bounds.items())},
    }
    found = []
    for name, view in version.views.items():
        with reachable(table.name, f"reading the {name} view's manifests"):
            files = lake.view(view.metadata).files
        found.append(
            ViewCost(
                view=name,
                name=f"{table.spec.namespace}.{table.views[name]}",
                metadata=view.metadata,
                files=len(files),
                rows=sum(file.rows for file in files),
                bytes=sum(file.bytes for file in files),
                reached=reached[name],
            )
        )
    return found
