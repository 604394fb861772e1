"""Common parts of the steps of a table's stages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetSpec,
    Config,
    Failure,
    TableColumn,
    TableColumnConstraints,
    TableSchema,
)
from pydantic import Field

from harness_pipelines.app.installation import Stores
from harness_pipelines.defs.names import table_key, table_tag
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import Version, View
from harness_pipelines.read.report.costs import Prices, table_costs
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.run.worker import Worker, WorkerOptions

TABLE_TAG, STAGE_TAG = "harness/table", "harness/stage"
WHY_TAG = "harness/why"  #: of a run that a sensor started
RUN_S = 1800.0  #: each run of ingest leaves as many events, however long it lasts
HANDOVER_S = 60.0  #: so long before its end the successor of a run is asked for; a busy machine starts it slowly
RETRY_S, RETRY_S_MAX = 10.0, 600.0  #: before work that failed is tried again: doubles with each failure in a row
_CODE_VERSION = version("harness-pipelines")  # each call reads a file
LINGER_S = 30.0  #: a run of ingest without records waits so long for more: another run costs more than that


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How Dagster shows the assets of a table, beyond what its spec says."""

    group: str | None = None  #: by default the table's namespace
    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


PLAIN = Shown()


def table_asset(
    spec: TableSpec, shown: Shown, *name: str, deps: Sequence[AssetKey], kinds: str, about: str
) -> AssetSpec:
    """An asset of a table: the logical one, or by *name* one of a stage. Its columns are those of the spec.

    *kinds*: Dagster's, with spaces between them.
    """
    columns = [
        TableColumn(
            c.name,
            str(c.type),
            description=c.description,
            constraints=TableColumnConstraints(nullable=not c.required),
        )
        for c in spec.columns
    ]
    return AssetSpec(
        table_key(spec.table, *name),
        deps=deps,
        kinds=set(kinds.split()),
        group_name=shown.group or spec.namespace,
        owners=list(dict.fromkeys([*spec.owners, *shown.owners])),
        description=about,
        code_version=_CODE_VERSION,
        tags={TABLE_TAG: table_tag(spec.table), **dict(spec.tags), **shown.tags},
        metadata={"dagster/column_schema": TableSchema(columns=columns), "dagster/table_name": spec.table},
    )


class StageConfig(Config):
    """How long a run of a stage may continue."""

    for_s: float = Field(default=RUN_S, gt=0, description="seconds before the run hands over to the next one")


def work(context: AssetExecutionContext, stores: Stores, table: TableRow, stage: Stage, for_s: float) -> dict[str, Any]:
    """Run one stage until nothing is due or its time is over; trouble of the table fails the run by its own message.

    Ingest runs until it is idle. The others move what the spec's rules ask for, since to move early whatever there is
    would leave a small file for each run; one that a person starts moves what is there once.
    """
    options = WorkerOptions(
        stages=frozenset({stage}),
        until_idle=True,
        for_s=for_s,
        linger_s=LINGER_S if stage is Stage.INGEST else 0.0,
        only_due=stage is not Stage.INGEST,
        rest_first=WHY_TAG not in context.run.tags,
        run_id=context.run.run_id,
    )
    worker = Worker(stores, [table], options)
    try:
        worker.run()
    except HarnessError as error:
        context.log.error(str(error))
        raise
    [progress] = worker.progress
    if progress.trouble:  # a run that could not do its work is never green; the next tick tries again
        raise Failure(description="; ".join(f"{stage}: {why}" for stage, why in progress.trouble.items()))
    return {
        "rows": progress.rows,
        "refused": progress.refused,
        "commits": progress.commits,
        "moves": progress.moves,
    }


def pinned(head: Version, view: View) -> dict[str, Any]:
    """The version that a run leaves, and the state of *view* that it pins."""
    return {"version": head.version, "snapshot": str(view.snapshot), "metadata": view.metadata}


def costs_today(stores: Stores, table: TableRow) -> dict[str, Any]:
    """What `harness cost` shows of today (UTC), as far as it was counted: sensors and workers do every five minutes."""
    found = table_costs([table.name], stores.costs.days([table.name], days=1), lake={}, buffers={}, prices=Prices())
    return {
        name: value
        for one in found
        for day in one.days
        for name, value in {
            "records_today": day.records,
            "bytes_written_today": day.written,
            "bytes_written_again_today": day.written_again,
            "worker_cpu_s_today": round(day.cpu_s, 3),
        }.items()
    }


def last_committed(stores: Stores, table: TableRow, stage: Stage) -> dict[str, Any]:
    """The committed move that a materialization stands for (S30)."""
    move = stores.proof.last_committed(table, stage)
    if move is None:
        return {"move": "none yet"}
    ranges = ", ".join(f"{p}: [{low}, {move['hi'][p]})" for p, low in sorted(move["lo"].items()))
    return {"move": move["move_id"], "move_rows": move["rows"] or 0, "move_offsets": ranges}
