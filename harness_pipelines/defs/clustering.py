"""The batch view as an asset: a run without partitions merges what is due, a backfill of regions rewrites them.

Dagster's partitions are 16 parts of the value space, the tops of the table's region tree, whatever the tree is below.
A backfill records one request in the ledger; moves take it up within their byte budget, and what is done stays done.
Cancelling the backfill withdraws the request, and so the part of it that has not begun. So does an error that a
repetition does not end. After an outage the request stays: a retry of the run, or any other worker, continues it.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from itertools import product
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetsDefinition,
    BackfillPolicy,
    DagsterRunStatus,
    MaterializeResult,
    StaticPartitionsDefinition,
    multi_asset,
)
from pydantic import Field

from harness_pipelines.app.installation import Stores
from harness_pipelines.defs.names import step_name, table_key, table_tag
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines.defs.work import TABLE_TAG, Shown, StageConfig, last_committed, pinned, table_asset, work
from harness_pipelines.errors import HarnessError, OutcomeUnknown, TryAgain
from harness_pipelines.layout.requested import Request
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.read.clustering import layout_of
from harness_pipelines.read.report.layout import NoLayout, look
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.otree.recluster import NothingToRecluster, plan_recluster, run

DEPTH = 4
_PASSING = (TryAgain, OutcomeUnknown)  #: what a repetition may end
REQUEST_TAG = "harness/request"  #: of a run: the number of the request to rewrite regions that it made
REGIONS = StaticPartitionsDefinition(["".join(steps) for steps in product("01", repeat=DEPTH)])


class OtreeConfig(StageConfig):
    """How long a run may continue, and what a backfill rewrites."""

    rebuild: bool = Field(default=False, description="a backfill rewrites clustered files too")


def otree_asset(spec: TableSpec, shown: Shown) -> AssetsDefinition:
    """The stage otree of *spec*, partitioned by `REGIONS`."""
    key = table_key(spec.table, Stage.OTREE.value)
    about = (
        f"The batch view: the rows clustered by {', '.join(spec.indexed)}. A backfill of regions rewrites what is not "
        "clustered there."
    )

    @multi_asset(
        name=step_name(spec.table, "rewrite_otree"),
        specs=[
            table_asset(spec, shown, "otree", deps=[table_key(spec.table, "tier")], kinds="spark iceberg", about=about)
        ],
        partitions_def=REGIONS,
        backfill_policy=BackfillPolicy.single_run(),
        op_tags={TABLE_TAG: table_tag(spec.table)},
    )
    def rewrite(
        context: AssetExecutionContext, config: OtreeConfig, harness: HarnessResource
    ) -> Iterator[MaterializeResult[Any]]:
        with harness.opened_with_spark() as opened:
            stores, table = opened.stores, opened.table(spec.table).row
            if context.has_partition_key or context.has_partition_key_range:
                done = _recluster(context, stores, table, rebuild=config.rebuild)
            else:
                done = dict(work(context, stores, table, Stage.OTREE, config.for_s))
                _mark_all(context, key, stores, table)
            layout = _layout_metadata(stores, table)
            if done.get("moves") or done.get("parts"):
                # Dagster plots nothing over time of an asset with partitions: the table itself shows how it stands.
                context.log_event(
                    AssetObservation(table_key(spec.table), metadata=layout, description="layout of the batch view")
                )
            yield MaterializeResult(asset_key=key, metadata={**done, **layout})

    return rewrite


def _mark_all(context: AssetExecutionContext, key: AssetKey, stores: Stores, table: TableRow) -> None:
    """Show that the regions are there: a merge writes all of them, once is enough, and more would be many events."""
    if layout_of(stores, table, stores.tables.head(table)) is not None:
        for region in sorted(set(REGIONS.get_partition_keys()) - context.instance.get_materialized_partitions(key)):
            context.log_event(AssetMaterialization(key, partition=region, description="merged, with all other regions"))


def _recluster(context: AssetExecutionContext, stores: Stores, table: TableRow, *, rebuild: bool) -> dict[str, Any]:
    """Rewrite the regions of this run; without anything to do it says so, since a backfill waits for every one."""
    chosen = list(context.partition_keys)
    try:
        plan = plan_recluster(stores, table, regions=covered(_paths(stores, table), chosen), rebuild=rebuild)
    except NothingToRecluster as error:
        return {"regions": ", ".join(chosen), "parts": 0, "why": str(error)}
    before = asdict(look(stores, table).score)
    if plan.parts:
        with _requested(context, stores, table, plan.request) as request:
            for left in run(stores, table, request, run_id=context.run.run_id):
                context.log.info(f"{table.name}: {len(left.parts)} parts are left, {left.bytes} bytes")
    return {
        "regions": ", ".join(chosen),
        "parts": len(plan.parts),
        "bytes_rewritten": plan.bytes,
        **{f"{name}_before": value for name, value in before.items()},
    }


@contextmanager
def _requested(context: AssetExecutionContext, stores: Stores, table: TableRow, wanted: Request) -> Iterator[Request]:
    """Ask for *wanted*; withdraw the request that this made when its rest is not wanted, or a person is needed first.

    The next holder of otree finishes a move that has begun, and moves that are published stay. A request that was
    there before is somebody else's, unless this run is the retry of the one that made it: Dagster gives a retry the
    tags of its parent. A run that ends for another reason, as when its machine does, leaves its request to other
    workers.
    """
    own: list[Request] = []
    tags = context.run.tags

    def ask() -> Request:
        asked = stores.reclusters.ask(table, paths=wanted.paths, upto=wanted.upto, rebuild=wanted.rebuild)
        if asked.is_new or tags.get(REQUEST_TAG) == str(asked.request.request_id):
            own.append(asked.request)
        return asked.request

    try:
        # Dagster interrupts the main thread: in another one the ledger's answer comes, and `own` names the request.
        with ThreadPoolExecutor(max_workers=1) as pool:
            request = pool.submit(ask).result()
        if own:
            context.instance.add_run_tags(context.run.run_id, {REQUEST_TAG: str(request.request_id)})
        yield request
    except BaseException as error:  # Dagster's interruption is no Exception
        if _is_cancelled(context) or (isinstance(error, Exception) and not isinstance(error, _PASSING)):
            for one in own:
                stores.reclusters.cancel(table, one)
                context.log.info(f"{table.name}: request {one.request_id} to rewrite regions is withdrawn")
        elif isinstance(error, _PASSING):
            context.log.info(
                f"{table.name}: what is left of the request to rewrite regions is done by a retry of this run or by "
                f"another worker; `harness recluster {table.name} --cancel` ends it"
            )
        raise


def _is_cancelled(context: AssetExecutionContext) -> bool:
    run = context.instance.get_run_by_id(context.run.run_id)
    return run is not None and run.status in (DagsterRunStatus.CANCELING, DagsterRunStatus.CANCELED)


def covered(paths: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """The regions of *paths* that lie in the parts *chosen*; a region above such a part belongs to it."""
    found = set()
    for wanted in chosen:
        above = [path for path in paths if wanted.startswith(path)]
        found.update(above or [wanted])
    return sorted(found)


def _paths(stores: Stores, table: TableRow) -> list[str]:
    layout = layout_of(stores, table, stores.tables.head(table))
    return [""] if layout is None else layout.tree.paths()


def _layout_metadata(stores: Stores, table: TableRow) -> Mapping[str, Any]:
    """The state of the batch view as numbers that Dagster plots over time."""
    head = stores.tables.head(table)
    assert head.batch is not None
    shown = pinned(head, head.batch) | last_committed(stores, table, Stage.OTREE)
    try:
        seen = look(stores, table)
    except (NoLayout, HarnessError):
        return shown
    return {**shown, **asdict(seen.score), "files": len(seen.files), "regions_in_tree": len(seen.tree)}
