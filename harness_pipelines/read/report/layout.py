"""The layout of a table's batch view, from the ledger and the manifests; no row is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from harness_pipelines.errors import UsageError
from harness_pipelines.layout.cubes import Block, export
from harness_pipelines.layout.files import FileStats
from harness_pipelines.layout.labels import span_label
from harness_pipelines.layout.outline import outline
from harness_pipelines.layout.queries import synthetic
from harness_pipelines.layout.region_contents import RegionContents, contents_of
from harness_pipelines.layout.rewrites import Rewrite, due
from harness_pipelines.layout.scores import Score, Workload, score
from harness_pipelines.layout.tree import LAYER, SIDES, RegionTree, is_layered
from harness_pipelines.ports.access import HasLake, HasTables
from harness_pipelines.protocol.versions import Version, VersionGone
from harness_pipelines.read.clustering import BUDGET_BYTES, layout_of, target_bytes

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import TableRow

HISTORY_MAX = 40  #: versions that are scored
ROOT = "root"  #: how the path of the whole tree, which is empty, is written


class Ports(HasLake, HasTables, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The scores of one version of the batch view."""

    version: int
    committed_at: datetime
    relaid: bool  #: it changed the tree
    score: Score
    recorded: Mapping[str, Any]  #: what its own move measured, of the part that it wrote

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "committed_at": self.committed_at,
            "relaid": self.relaid,
            "score": asdict(self.score),
            "recorded": dict(self.recorded),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSeen:
    """The layout of one version, and how it came to be."""

    table: str
    version: int
    tree: RegionTree
    files: Sequence[FileStats]
    contents: RegionContents
    due: Sequence[Rewrite]
    target_bytes: int
    cubes: Sequence[Block]  #: the regions as blocks of the published OTree format
    history: Sequence[Scored]  #: oldest first, the last one is this version

    @property
    def score(self) -> Score:
        return self.history[-1].score

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def sizes(self) -> dict[str, float]:
        """Of the files, in bytes: median, the 95th of 100, the largest."""
        p50, p95, largest = np.percentile([file.bytes for file in self.files] or [0], [50, 95, 100]).tolist()
        return {"p50": p50, "p95": p95, "max": largest}

    @property
    def layer(self) -> dict[str, int] | None:
        """Files and bytes in regions of the sample layer; None for a view without one."""
        if not is_layered(self.tree.columns):
            return None
        inside = [region for region in self.contents.regions if region.path.startswith(SIDES[1])]
        return {"files": sum(region.files for region in inside), "bytes": sum(region.bytes for region in inside)}

    def to_json(self) -> dict[str, Any]:
        boxes = {region.path: region.box for region in self.tree.regions()}
        return {
            "table": self.table,
            "version": self.version,
            "columns": [column.name for column in self.tree.columns if column != LAYER],
            "digest": self.tree.digest,
            "files": {
                "count": len(self.files),
                "bytes": self.bytes,
                "target_bytes": self.target_bytes,
                **{name: round(size) for name, size in self.sizes.items()},
            },
            "sample_layer": self.layer,
            "staged_share": self.contents.staged_share,
            "score": asdict(self.score),
            "regions": [
                {
                    "path": region.path or ROOT,
                    "box": {
                        column.name: span_label(column, span)
                        for column, span in zip(self.tree.columns, boxes[region.path].spans, strict=True)
                    },
                    "files": region.files,
                    "rows": region.rows,
                    "bytes": region.bytes,
                    "staged_bytes": region.staged_bytes,
                }
                for region in self.contents.regions
            ],
            "astray": {
                path or ROOT: {"files": len(found), "bytes": sum(file.bytes for file in found)}
                for path, found in self.contents.astray.items()
            },
            "due": [
                {
                    "path": part.path or ROOT,
                    "files": len(part.files),
                    "bytes": part.bytes,
                    "staged_bytes": part.staged_bytes,
                    "waiting": part.waiting,
                }
                for part in self.due
            ],
            "cubes": [{"path": block.path or ROOT, **block.to_tag()} for block in self.cubes],
            "history": [one.to_json() for one in self.history],
        }


class NoLayout(UsageError):
    """The table has no batch view, or nothing was merged into it yet."""


def look(stores: Ports, table: TableRow, *, at: int | None = None, history_max: int = HISTORY_MAX) -> LayoutSeen:
    """The layout of version *at*, by default the head, and how it came to be, in at most *history_max* versions.

    Raises: NoLayout, VersionGone, LakeAway.
    """
    versions = stores.tables.versions(table)
    chosen = next((v for v in versions if at is None or v.version == at), None) if at else versions[-1]
    if chosen is None:
        raise VersionGone(f"{table.name}: version {at} is not retained; versions: {versions[0].version} to "
                          f"{versions[-1].version}")  # fmt: skip
    if chosen.batch is None:
        raise NoLayout(f"{table.name} has no batch view: its spec says `views: {table.view_set.word}`")
    found = layout_of(stores, table, chosen)
    if found is None:
        raise NoLayout(
            f"{table.name}: nothing was merged into the batch view yet, so it has no regions; "
            f"`harness run {table.name} --until-idle` does it"
        )
    tree = found.tree
    files = stores.lake.region_files(table, chosen.batch.metadata)
    target = target_bytes(table, of_bytes=sum(file.bytes for file in files))
    rules = table.spec.layout
    cells = outline(files, tree.columns)
    workload = Workload.of(cells, synthetic(cells, filters=rules.queries))
    return LayoutSeen(
        table=table.name,
        version=chosen.version,
        tree=tree,
        files=files,
        contents=contents_of(tree, files, found.clustered),
        due=due(
            tree,
            files,
            found.clustered,
            target_bytes=target,
            staged_ratio=rules.staged_ratio,
            budget_bytes=BUDGET_BYTES,
        ),
        target_bytes=target,
        cubes=export(tree, cells, layer=rules.sample),
        history=[
            _scored(stores, table, v, workload, target) for v in _thinned(versions, upto=chosen, most=history_max)
        ],
    )


def _thinned(versions: Sequence[Version], *, upto: Version, most: int) -> list[Version]:
    """Versions that changed the batch view, at most *most* of them, the newest always."""
    found: list[Version] = []
    for version in versions:
        if version.version <= upto.version and version.layout is not None:
            if found and found[-1].batch == version.batch:
                continue  # tier moved, or a revert to the same files
            found.append(version)
    if not found or found[-1].batch != upto.batch:
        found.append(upto)
    keep = np.unique(np.linspace(len(found) - 1, 0, min(most, len(found))).round().astype(int))
    return [found[i] for i in keep]


def _scored(stores: Ports, table: TableRow, version: Version, workload: Workload, target: int) -> Scored:
    state, found = stores.tables.layout(table, version), layout_of(stores, table, version)
    assert found is not None and version.batch is not None
    files = stores.lake.region_files(table, version.batch.metadata)
    share = contents_of(found.tree, files, found.clustered).staged_share
    relaid = version.layout == version.version
    return Scored(
        version=version.version,
        committed_at=version.committed_at,
        relaid=relaid,
        score=score(files, found.tree.columns, workload, target_bytes=target, staged_share=share),
        recorded=state.scores if state is not None and relaid else {},
    )
