"""What a move did, in OpenLineage's words: a run of the job of its stage, from datasets to datasets.

Datasets are named as the specification has it (https://openlineage.io/docs/spec/naming): a topic by its first broker, a
view of the lake by its folder, with the catalog's name as a symlink, so that what other engines tell of them meets it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import attr
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    RunFacet,
    column_lineage_dataset,
    dataset_version_dataset,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    symlinks_dataset,
)

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines.read.lineage import MoveLineage, MoveTold, lineage

if TYPE_CHECKING:
    from harness_pipelines.stores.open import Stores
    from harness_pipelines.stores.outbox import Event
    from harness_pipelines.stores.ports import TableRow

PRODUCER = f"harness-pipelines/{version('harness-pipelines')}"
NAMESPACE = uuid.UUID("5f1e9a52-7f0c-4b11-9a0b-0a1f5f3a7c21")  #: of the runs' ids


@attr.define
class MoveRunFacet(RunFacet):
    """The facet ``harness_move``: what the ledger knows of a move. Described in docs/reference/openlineage.md."""

    table: str
    move: int
    stage: str
    trigger: str
    attempt: int
    version: int | None  #: that it made
    offsets: dict[str, list[int]]  #: {partition: [first, behind the last]}

    _additional_skip_redact: ClassVar[list[str]] = ["table", "stage", "trigger"]

    @staticmethod
    def _get_schema() -> str:
        return "docs/reference/openlineage.md#harness_move"


def run_event(stores: Stores, table: TableRow, event: Event) -> RunEvent | None:
    """The completed run that *event* tells of; None where no move took rows from somewhere to somewhere.

    One that is told again has the same run id. Raises: what `lineage` raises.
    """
    number = event.payload.get("move")
    if event.event != "published" or number is None:
        return None
    told = lineage(stores, table, str(number))
    assert isinstance(told, MoveLineage)
    return _Telling(stores, table, told, stores.tables.head(table)).event() if told.move.committed_at else None


#: Namespace and name of a dataset.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Telling:
    """One move that took effect, and the table as it is now."""

    stores: Stores
    table: TableRow
    told: MoveLineage
    head: Version

    def event(self) -> RunEvent:
        move, catalog = self.told.move, self.stores.catalog.name
        assert move.committed_at is not None
        kind = job_type_job.JobTypeJobFacet(processingType="BATCH", integration="HARNESS", jobType="MOVE")
        job = Job(namespace=f"harness://{catalog}", name=f"{self.table.name}.{move.stage}", facets={"jobType": kind})
        space, name = self._source()
        return RunEvent(
            eventType=RunState.COMPLETE,
            eventTime=move.committed_at.isoformat(),
            producer=PRODUCER,
            run=Run(runId=_run_id(self.table, move), facets=_run_facets(self.table, move)),
            job=job,
            inputs=[InputDataset(namespace=space, name=name)],
            outputs=[self._output(view) for view in sorted({f.view for f in self.told.added} & set(self.head.views))],
        )

    def _source(self) -> Place:
        """Where the rows came from: by way of the buffer they came from the topic, else from a view."""
        if self._reads_topic:
            broker = (self.stores.settings.kafka or "").split(",")[0]
            return f"kafka://{broker}", self.table.spec.topic
        return self._place("stream" if "stream" in self.head.views else "batch")

    @property
    def _reads_topic(self) -> bool:
        return self.told.move.stage == Stage.TIER

    def _place(self, view: ViewName) -> Place:
        """Of a view by its folder."""
        folder = urlsplit(self.head.views[view].metadata.rpartition("/metadata/")[0])
        if folder.scheme in ("", "file"):
            return "file", folder.path
        return f"{folder.scheme}://{folder.netloc}", folder.path.strip("/")

    def _output(self, view: ViewName) -> OutputDataset:
        space, name = self._place(view)
        table, files = self.table, [file.entry for file in self.told.added if file.view == view]
        identifier = symlinks_dataset.Identifier(
            namespace=f"iceberg://{self.stores.catalog.name}",
            name=f"{table.spec.namespace}.{table.views[view]}",
            type="TABLE",
        )
        fields = [schema_dataset.SchemaDatasetFacetFields(name=c.name, type=str(c.type)) for c in table.spec.columns]
        facets: dict[str, DatasetFacet] = {
            "schema": schema_dataset.SchemaDatasetFacet(fields=fields),
            "symlinks": symlinks_dataset.SymlinksDatasetFacet(identifiers=[identifier]),
            "version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(self.told.move.version)),
        }
        if not self._reads_topic:  # which has no columns
            same = {column.name: self._same(column.name) for column in table.spec.columns}
            facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(fields=same)
        written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=sum(file.rows for file in files if file.is_data),
            size=sum(file.bytes for file in files),
            fileCount=len(files),
        )
        return OutputDataset(namespace=space, name=name, facets=facets, outputFacets={"outputStatistics": written})

    def _same(self, column: str) -> column_lineage_dataset.Fields:
        space, name = self._source()
        identity = column_lineage_dataset.Transformation(type="DIRECT", subtype="IDENTITY")
        origin = column_lineage_dataset.InputField(namespace=space, name=name, field=column, transformations=[identity])
        return column_lineage_dataset.Fields(inputFields=[origin])


def _run_id(table: TableRow, move: MoveTold) -> str:
    return str(uuid.uuid5(NAMESPACE, f"{table.identity}/{table.name}/{move.move_id}/{move.attempt}"))


def _run_facets(table: TableRow, move: MoveTold) -> dict[str, RunFacet]:
    offsets = {str(r.partition): [r.low, r.high] for r in move.ranges}
    return {
        "harness_move": MoveRunFacet(
            table=table.name,
            move=move.move_id,
            stage=move.stage,
            trigger=move.trigger,
            attempt=move.attempt,
            version=move.version,
            offsets=offsets,
        ),
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=version("harness-pipelines"), name="harness"
        ),
    }
