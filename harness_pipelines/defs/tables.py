"""The assets, checks and jobs of one table: topic -> ingest + buffer (one step) -> tier -> table, rewrites -> expire.

A step runs the worker of `harness run` for a bounded time; what it reports are moves that the ledger has committed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    Config,
    DataVersion,
    Definitions,
    MaterializeResult,
    define_asset_job,
    in_process_executor,
    multi_asset,
    multi_asset_check,
)
from pydantic import Field

from harness_pipelines.app.checks import CHECKS, is_complete
from harness_pipelines.app.installation import Stores
from harness_pipelines.defs.clustering import otree_asset
from harness_pipelines.defs.names import step_name, table_key, table_tag, topic_key
from harness_pipelines.defs.private import UnresolvedAssetJobDefinition
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines.defs.work import (
    PLAIN,
    STAGE_TAG,
    TABLE_TAG,
    Shown,
    StageConfig,
    costs_today,
    last_committed,
    pinned,
    table_asset,
    work,
)
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.shape import view_set_of
from harness_pipelines.protocol.topics import topics_of
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.run.claims import ClaimKeeper
from harness_pipelines.stages.run.worker import CLAIM_LEASE
from harness_pipelines.stages.table.expire import expire_once

AUDIT = "audit"  #: name of the check that is no part of the stages' jobs


def table_definitions(spec: TableSpec, shown: Shown = PLAIN) -> Definitions:
    """The assets and checks of one table; what runs them is in `stage_jobs`."""
    return Definitions(
        assets=[
            _ingest(spec, shown),
            _tier(spec, shown),
            *(_REWRITES[stage](spec, shown) for stage in _rewriters(spec)),
            *([_mirror(spec, shown)] if spec.catalogs else []),
            _expiring(spec, shown),
        ],
        asset_checks=[_checks(spec), _audit(spec)],
    )


def _about(spec: TableSpec) -> str:
    what = f"The logical table {spec.table}"
    return what if spec.description is None else f"{spec.description}\n\n{what}"


def topics(specs: Sequence[TableSpec]) -> list[AssetSpec]:
    """The source topics of the tables, each once, as external assets."""
    found = {topic: spec for spec in specs for topic in topics_of(spec.topic)}
    return [
        AssetSpec(topic_key(topic), group_name=spec.namespace, kinds={"kafka"}, description=f"Kafka topic {topic}")
        for topic, spec in found.items()
    ]


def stage_jobs(specs: Sequence[TableSpec]) -> list[UnresolvedAssetJobDefinition]:
    """A job per stage, over all tables: a run is of one of them, by its selection and its tags.

    With jobs per table Dagster, which works each of them out against all assets whenever a process loads the
    definitions, needs ten seconds for 200 tables instead of one.
    """
    found: dict[Stage, list[AssetKey]] = {}
    for spec in specs:
        mirror = (Stage.MIRROR,) if spec.catalogs else ()
        for stage in (Stage.INGEST, Stage.TIER, *_rewriters(spec), *mirror, Stage.EXPIRE):
            found.setdefault(stage, []).extend(stage_assets(spec.table, stage))
    audits = audits_of(specs)
    return [
        define_asset_job(
            job_name(stage),
            selection=AssetSelection.assets(*keys) - audits,
            executor_def=in_process_executor,
            tags={STAGE_TAG: stage.value},
        )
        for stage, keys in found.items()
    ]


def stage_assets(table: str, stage: Stage) -> list[AssetKey]:
    """The assets that a stage of a table makes."""
    parts: Mapping[Stage, Sequence[Sequence[str]]] = {
        Stage.INGEST: (["ingest"], ["buffer"]),
        Stage.TIER: (["tier"], []),
    }
    return [table_key(table, *part) for part in parts.get(stage, ([stage.value],))]


def stage_checks(table: str, stage: Stage) -> list[AssetCheckKey]:
    """The checks at the end of a stage's run: of its result, from the ledger alone."""
    logical = table_key(table)
    return [AssetCheckKey(logical, name) for name in CHECKS] if logical in stage_assets(table, stage) else []


def audits_of(specs: Sequence[TableSpec]) -> AssetSelection:
    """The checks that read the records: they cost what was added, so they are no part of the stages' jobs."""
    keys = [AssetCheckKey(table_key(spec.table), AUDIT) for spec in specs]
    return AssetSelection.checks(*keys)


def job_name(stage: Stage) -> str:
    """Name of the job that runs one stage."""
    return f"harness_{stage.value}"


def _ingest(spec: TableSpec, shown: Shown) -> AssetsDefinition:
    sources = [topic_key(topic) for topic in topics_of(spec.topic)]
    taken, buffered = stage_assets(spec.table, Stage.INGEST)

    @multi_asset(
        name=step_name(spec.table, "take"),
        specs=[
            table_asset(
                spec,
                shown,
                "ingest",
                deps=sources,
                kinds="python",
                about="Records, read and decoded",
            ),
            table_asset(
                spec, shown, "buffer", deps=[taken], kinds="postgres", about="Rows in Postgres, readable at once"
            ),
        ],
        op_tags={TABLE_TAG: table_tag(spec.table)},
    )
    def ingest(
        context: AssetExecutionContext, config: StageConfig, harness: HarnessResource
    ) -> Iterator[MaterializeResult[Any]]:
        with harness.opened() as opened:
            table = opened.table(spec.table).row
            progress = work(context, opened.stores, table, Stage.INGEST, config.for_s)
            last = last_committed(opened.stores, table, Stage.INGEST)
            yield MaterializeResult(asset_key=taken, metadata=progress | last)
            yield MaterializeResult(asset_key=buffered, metadata=_lags(opened.stores, table) | last)

    return ingest


def _tier(spec: TableSpec, shown: Shown) -> AssetsDefinition:
    buffer, (tiered, logical) = table_key(spec.table, "buffer"), stage_assets(spec.table, Stage.TIER)

    @multi_asset(
        name=step_name(spec.table, "move"),
        specs=[
            table_asset(spec, shown, "tier", deps=[buffer], kinds="spark iceberg", about="Buffered rows, moved"),
            table_asset(spec, shown, deps=[tiered], kinds="table", about=_about(spec)),
        ],
        op_tags={TABLE_TAG: table_tag(spec.table)},
    )
    def tier(
        context: AssetExecutionContext, config: StageConfig, harness: HarnessResource
    ) -> Iterator[MaterializeResult[Any]]:
        with harness.opened_with_spark() as opened:
            table = opened.table(spec.table).row
            progress = work(context, opened.stores, table, Stage.TIER, config.for_s)
            head = opened.stores.ledger.head(table)
            last = last_committed(opened.stores, table, Stage.TIER)
            about = pinned(head, head.stream)
            yield MaterializeResult(asset_key=tiered, metadata=progress | last | about)
            yield MaterializeResult(
                asset_key=logical,
                metadata=_lags(opened.stores, table) | about | last | costs_today(opened.stores, table),
                data_version=DataVersion(str(head.version)),
            )

    return tier


def _rewriters(spec: TableSpec) -> tuple[Stage, ...]:
    """The stages that rewrite the rows of the lake."""
    return tuple(stage for stage in (Stage.COMPACT, Stage.OTREE) if stage in view_set_of(spec).effects)


def _compact(spec: TableSpec, shown: Shown) -> AssetsDefinition:
    key = table_key(spec.table, Stage.COMPACT.value)
    about = "Small files of the stream view, put together in offset order"

    @multi_asset(
        name=step_name(spec.table, "rewrite_compact"),
        specs=[
            table_asset(
                spec, shown, "compact", deps=[table_key(spec.table, "tier")], kinds="spark iceberg", about=about
            )
        ],
        op_tags={TABLE_TAG: table_tag(spec.table)},
    )
    def rewrite(
        context: AssetExecutionContext, config: StageConfig, harness: HarnessResource
    ) -> Iterator[MaterializeResult[Any]]:
        with harness.opened_with_spark() as opened:
            table = opened.table(spec.table).row
            progress = work(context, opened.stores, table, Stage.COMPACT, config.for_s)
            head = opened.stores.ledger.head(table)
            last = last_committed(opened.stores, table, Stage.COMPACT)
            yield MaterializeResult(asset_key=key, metadata=progress | last | pinned(head, head.stream))

    return rewrite


_REWRITES = {Stage.COMPACT: _compact, Stage.OTREE: otree_asset}


def _mirror(spec: TableSpec, shown: Shown) -> AssetsDefinition:
    key = table_key(spec.table, Stage.MIRROR.value)
    behind = [table_key(spec.table, stage.value) for stage in (Stage.TIER, *_rewriters(spec))]
    names = ", ".join(one.name for one in spec.catalogs)
    about = f"The views in foreign catalogs ({names}), which follow the published versions"

    @multi_asset(
        name=step_name(spec.table, "mirror"),
        specs=[table_asset(spec, shown, "mirror", deps=behind, kinds="iceberg", about=about)],
        op_tags={TABLE_TAG: table_tag(spec.table)},
    )
    def mirror(
        context: AssetExecutionContext, config: StageConfig, harness: HarnessResource
    ) -> Iterator[MaterializeResult[Any]]:
        with harness.opened() as opened:
            table = opened.table(spec.table).row
            work(context, opened.stores, table, Stage.MIRROR, config.for_s)
            found = opened.stores.mirrors.lags([spec.table])
            yield MaterializeResult(asset_key=key, metadata={one.catalog: one.version or "none yet" for one in found})

    return mirror


def _expiring(spec: TableSpec, shown: Shown) -> AssetsDefinition:
    key = table_key(spec.table, Stage.EXPIRE.value)
    behind = [table_key(spec.table, stage.value) for stage in (Stage.TIER, *_rewriters(spec))]

    about = "What no version, snapshot or reader needs any more goes, in two runs at least"

    @multi_asset(
        name=step_name(spec.table, "remove"),
        specs=[table_asset(spec, shown, "expire", deps=behind, kinds="postgres iceberg", about=about)],
        op_tags={TABLE_TAG: table_tag(spec.table)},
    )
    def expire(context: AssetExecutionContext, harness: HarnessResource) -> MaterializeResult[Any]:
        with harness.opened() as opened:
            stores, table = opened.stores, opened.table(spec.table).row
            stores.guard.check(table, stores.ledger)
            keeper = ClaimKeeper(stores.ledger, table, Stage.EXPIRE, holder=str(uuid4()), lease=CLAIM_LEASE)
            if not keeper.acquire():
                return MaterializeResult(asset_key=key, metadata={"left_to": "another worker"})
            try:
                done = expire_once(stores, table, keeper.current())
            finally:
                keeper.release()
        return MaterializeResult(
            asset_key=key,
            metadata={
                "segments_retired": len(done.retired),
                "segments_dropped": len(done.dropped),
                "files_condemned": len(done.condemned),
                "files_deleted": len(done.deleted),
                "retained_from": done.retained_from,
                "quarantined_moved": done.quarantined.records,
            },
        )

    return expire


def _checks(spec: TableSpec) -> AssetChecksDefinition:
    key = table_key(spec.table)

    @multi_asset_check(
        name=step_name(spec.table, "checks"),
        specs=[AssetCheckSpec(name, asset=key, description=CHECKS[name].__doc__) for name in CHECKS],
    )
    def checks(context: AssetCheckExecutionContext, harness: HarnessResource) -> Iterator[AssetCheckResult]:
        with harness.opened() as opened:
            table = opened.table(spec.table).row
            for name, check in CHECKS.items():
                found = check(opened.stores, table)
                yield AssetCheckResult(
                    passed=found.passed,
                    asset_key=key,
                    check_name=name,
                    severity=AssetCheckSeverity.WARN if found.is_advice else AssetCheckSeverity.ERROR,
                    description=found.description,
                    metadata=dict(found.numbers),
                )

    return checks


class AuditConfig(Config):
    """How much an audit reads."""

    full: bool = Field(default=False, description="also what earlier audits have signed off, and the batch view")


def _audit(spec: TableSpec) -> AssetChecksDefinition:
    @multi_asset_check(  # of one check: a step gets its name from us, not from joined parts of the key
        name=step_name(spec.table, AUDIT),
        specs=[AssetCheckSpec(AUDIT, asset=table_key(spec.table), description=is_complete.__doc__)],
    )
    def audit(
        context: AssetCheckExecutionContext, config: AuditConfig, harness: HarnessResource
    ) -> Iterator[AssetCheckResult]:
        with harness.opened() as opened:
            found = is_complete(opened.stores, opened.table(spec.table).row, full=config.full)
        yield AssetCheckResult(
            passed=found.passed,
            asset_key=table_key(spec.table),
            check_name=AUDIT,
            severity=AssetCheckSeverity.ERROR,
            description=found.description,
            metadata=dict(found.numbers),
        )

    return audit


def _lags(stores: Stores, table: TableRow) -> dict[str, Any]:
    positions = stores.ledger.positions(table)
    return {
        "buffer_offsets": sum(p.bounds.buffer_hi - p.bounds.stream_hi for p in positions),
        "lake_offsets": sum(p.bounds.stream_hi - p.bounds.start for p in positions),
        "partitions": len(positions),
    }
