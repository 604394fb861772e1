"""A move as OpenLineage events: a run of its stage's job, from datasets to datasets.

Datasets are named as the specification has it (https://openlineage.io/docs/spec/naming): a topic by its first broker, a
view of the lake by its folder, with the catalog's name as a symlink, so that what other engines tell of them meets it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, ClassVar, Protocol
from urllib.parse import urlsplit

import structlog

from harness_pipelines.extras import needs
from harness_pipelines.ports.access import (
    HasLakeReads,
    HasLeases,
    HasLineage,
    HasLog,
    HasSetAside,
    HasSettings,
    HasTables,
)
from harness_pipelines.ports.errors import MetadataMissing
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.topics import topics_of
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines.read.report.lineage import MoveLineage, MoveTold, lineage, without_files

with needs("openlineage", "OpenLineage"):
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

if TYPE_CHECKING:
    from harness_pipelines.ports.events import Event
    from harness_pipelines.ports.ledger import TableRow

PRODUCER = f"urn:harness-pipelines:{version('harness-pipelines')}"  # the specification wants URIs
log = structlog.get_logger(__name__)
NAMESPACE = uuid.UUID("5f1e9a52-7f0c-4b11-9a0b-0a1f5f3a7c21")  #: of the runs' ids


class Ports(HasLakeReads, HasLeases, HasLineage, HasLog, HasSetAside, HasSettings, HasTables, Protocol):
    """The ports that it uses."""


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
        return "urn:harness-pipelines:openlineage:harness_move:1"


def run_events(stores: Ports, table: TableRow, event: Event) -> list[RunEvent]:
    """The run that *event* tells of, its start and its end; nothing where no move took rows anywhere.

    A repeated event has the same run id. For a move whose metadata is gone or damaged the ledger reports what it
    knows. Raises: what `lineage` raises, but for that.
    """
    number = event.payload.get("move")
    if event.event != "published" or number is None:
        return []
    try:
        told = lineage(stores, table, str(number))
    except MetadataMissing as error:
        log.warning("openlineage.metadata_missing", table=table.name, move=number, error=str(error))
        told = without_files(stores, table, number)
    assert isinstance(told, MoveLineage)
    return list(_Telling(stores, table, told, stores.tables.head(table)).events()) if told.move.committed_at else []


#: Namespace and name of a dataset.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Telling:
    """One move that took effect, and the table as it is now."""

    stores: Ports
    table: TableRow
    told: MoveLineage
    head: Version

    def events(self) -> Iterator[RunEvent]:
        move, catalog = self.told.move, self.stores.settings.catalog_name
        assert move.committed_at is not None
        kind = job_type_job.JobTypeJobFacet(processingType="BATCH", integration="HARNESS", jobType="MOVE")
        job = Job(namespace=f"harness://{catalog}", name=f"{self.table.name}.{move.stage}", facets={"jobType": kind})
        run = Run(runId=_run_id(self.table, move), facets=_run_facets(self.table, move))
        inputs = [InputDataset(namespace=space, name=name) for space, name in self._sources()]
        yield RunEvent(
            eventType=RunState.START,
            eventTime=move.planned_at.isoformat(),
            producer=PRODUCER,
            run=run,
            job=job,
            inputs=inputs,
        )
        yield RunEvent(
            eventType=RunState.COMPLETE,
            eventTime=move.committed_at.isoformat(),
            producer=PRODUCER,
            run=run,
            job=job,
            inputs=inputs,
            outputs=[self._output(view) for view in self._written()],
        )

    def _sources(self) -> list[Place]:
        """Where the rows came from: by way of the buffer they came from the topic, else from views.

        A merge of a keyed table also writes rows of the batch view once more; a relayout writes nothing else.
        """
        if self._reads_topic:
            broker = (self.stores.settings.kafka or "").split(",")[0]
            return [(f"kafka://{broker}", topic) for topic in topics_of(self.table.spec.topic)]
        move, views = self.told.move, set(self.head.views)
        if move.stage != Stage.OTREE:
            return [self._place(view) for view in views & {"stream"}]
        reads: set[ViewName] = {"stream"} if move.ranges else {"batch"}
        reads |= {"batch"} if self.table.spec.key else set()
        return [self._place(view) for view in sorted(views & reads, reverse=True)]

    @property
    def _reads_topic(self) -> bool:
        return self.told.move.stage == Stage.TIER

    def _written(self) -> list[ViewName]:
        """The views that got files; the views of its stage if the files are no longer known."""
        effect = self.table.effects.get(Stage(self.told.move.stage))
        found = {file.view for file in self.told.added}
        if not self.told.complete and effect is not None:
            found.add(effect.view)
        return sorted(found & set(self.head.views))

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
            namespace=f"iceberg://{self.stores.settings.catalog_name}",
            name=f"{table.spec.namespace}.{table.views[view]}",
            type="TABLE",
        )
        fields = [schema_dataset.SchemaDatasetFacetFields(name=c.name, type=str(c.type)) for c in table.spec.columns]
        facets: dict[str, DatasetFacet] = {
            "schema": schema_dataset.SchemaDatasetFacet(fields=fields),
            "symlinks": symlinks_dataset.SymlinksDatasetFacet(identifiers=[identifier]),
            "version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(self.told.move.version)),
        }
        sources = self._sources()
        if not self._reads_topic:  # which has no columns
            same = {column.name: _same(column.name, sources) for column in table.spec.columns}
            facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(fields=same)
        move, is_known = self.told.move, self.told.complete
        written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=sum(file.rows for file in files if file.is_data) if is_known else move.rows,
            size=sum(file.bytes for file in files) if is_known else move.bytes,
            fileCount=len(files) if is_known else None,
        )
        return OutputDataset(namespace=space, name=name, facets=facets, outputFacets={"outputStatistics": written})


def _same(column: str, sources: Sequence[Place]) -> column_lineage_dataset.Fields:
    identity = column_lineage_dataset.Transformation(type="DIRECT", subtype="IDENTITY")
    origins = [
        column_lineage_dataset.InputField(namespace=space, name=name, field=column, transformations=[identity])
        for space, name in sources
    ]
    return column_lineage_dataset.Fields(inputFields=origins)


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
