"""The sensors, five for any number of tables. Each tick computes the claimable work from the ledger.

No cursor carries truth: one that is lost costs a tick. What several ticks request at once, claims keep apart.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dagster import (
    AssetCheckKey,
    AssetSelection,
    AutomationConditionSensorDefinition,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    JobDefinition,
    RunRecord,
    RunRequest,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from harness_pipelines.app.client import Harness
from harness_pipelines.app.probes import Ask, probes
from harness_pipelines.defs.liveness import BEAT_TAG, Beats
from harness_pipelines.defs.private import AssetCheckExecutionRecordStatus, UnresolvedAssetJobDefinition
from harness_pipelines.defs.reports import due, keep, kept_of, shown_until
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines.defs.tables import AUDIT, job_name, stage_assets, stage_checks
from harness_pipelines.defs.work import HANDOVER_S, RETRY_S, RETRY_S_MAX, RUN_S, STAGE_TAG, TABLE_TAG, WHY_TAG
from harness_pipelines.errors import HarnessError
from harness_pipelines.ledgers.postgres.views.status import Overview
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import Watermark
from harness_pipelines.ports.upkeep import TableWork
from harness_pipelines.protocol.claims import CONTINUOUS_STAGES, Stage
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.protocol.shape import intake_of
from harness_pipelines.spec.settings import EngineWord, Settings
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages import compact
from harness_pipelines.stages.run.due import Due, due_moves, due_upkeep, is_held

WAKE_S, LAG_S, UPKEEP_S, RECONCILE_S = 5, 5, 30, 5
REQUESTS_MAX = 25  #: of one tick; the tables that are furthest behind come first
LOOKS_MAX = 25  #: tables whose lake one tick of maintenance checks
CHECK_S = (
    3600.0  #: two thirds of what a run of tier leaves behind is its checks; one that failed is asked again by each run
)
STARTED_S = 120.0  #: a process that did not come to its work in so long will not
WATCHED = frozenset({*(stage.value for stage in CONTINUOUS_STAGES), AUDIT})
FAILURES_SEEN = 8
ACTIVE = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
BEGUN = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]

Tables = Mapping[str, TableSpec]
Jobs = Sequence[JobDefinition | UnresolvedAssetJobDefinition]


def table_sensors(specs: Sequence[TableSpec], jobs: Jobs, *, declared: bool = False) -> list[SensorDefinition]:
    """All sensors of *specs*; those that start runs, of *jobs*, look after tables of ``mode: runs``.

    *declared*: the sensor lag lets the ledger follow the specs.
    """
    run = {spec.table: spec for spec in specs if spec.mode == "runs"}
    lag = [_lag_sensor({spec.table: spec for spec in specs}, declared=declared)] if specs else []
    starting = [_wake_sensor(run, jobs), _maintenance_sensor(run, jobs), _reconcile_sensor(run)] if run else []
    return [*starting, *lag, _downstream_sensor()]


# -- wake and maintenance -----------------------------------------------------------------------------------


def _wake_sensor(tables: Tables, jobs: Jobs) -> SensorDefinition:
    @sensor(
        name="harness_wake",
        jobs=jobs,
        minimum_interval_seconds=WAKE_S,
        default_status=DefaultSensorStatus.RUNNING,
        description="Starts ingest and tier where they have something to do and nobody works on it.",
    )
    def harness_wake(context: SensorEvaluationContext, harness: HarnessResource) -> Iterator[RunRequest | SkipReason]:
        with harness.opened() as opened:
            found = opened.stores.watch.work(tables)
        runs = _Runs.of(context.instance, _Needed.of(opened.settings))
        yield from _some(_wake_requests(runs, work, tables[work.name]) for work in found)

    return harness_wake


def _maintenance_sensor(tables: Tables, jobs: Jobs) -> SensorDefinition:
    @sensor(
        name="harness_maintenance",
        jobs=jobs,
        minimum_interval_seconds=UPKEEP_S,
        default_status=DefaultSensorStatus.RUNNING,
        description="Starts compact, otree, mirror and expire where they are due. Takes turns with many tables.",
    )
    def harness_maintenance(
        context: SensorEvaluationContext, harness: HarnessResource
    ) -> Iterator[RunRequest | SkipReason]:
        names = _turn(sorted(tables), context.cursor)
        context.update_cursor(names[-1])
        with harness.opened() as opened:
            runs = _Runs.of(context.instance, _Needed.of(opened.settings))
            found = opened.stores.watch.work(names)
            yield from _some(_due_requests(runs, tables[work.name], _upkeep(context, opened, work)) for work in found)

    return harness_maintenance


def _turn(names: Sequence[str], after: str | None) -> list[str]:
    """The next `LOOKS_MAX` of *names* behind *after*, from the beginning again at the end."""
    behind = [name for name in names if after is not None and name > after]
    return [*behind, *(name for name in names if name not in behind)][:LOOKS_MAX]


def _upkeep(context: SensorEvaluationContext, harness: Harness, work: TableWork) -> dict[Stage, Due]:
    try:
        table = harness.table(work.name).row
        due = due_upkeep(harness.stores, table, work)
        if not is_held(work, Stage.COMPACT):  # else the worker that holds it says so
            worth_it = Stage.COMPACT in due and due[Stage.COMPACT].why == compact.FILES
            harness.stores.stalls.note_small_files(table.table_id, worth_it=worth_it)
        return due
    except HarnessError as error:  # one sick table never stops another
        context.log.warning(f"{work.name}: {error}")
        return {}


def _wake_requests(runs: "_Runs", work: TableWork, spec: TableSpec) -> Iterator[RunRequest]:
    """Return what is due, and the successor of an ingest run that is about to end, which waits for the claim."""
    yield from _due_requests(runs, spec, due_moves(spec, work))
    if (ending := runs.ending(work.name, Stage.INGEST)) is not None:
        yield _request(runs, work.name, Stage.INGEST, key=f"after/{ending}", why="hand-over")


def _request(runs: "_Runs", table: str, stage: Stage, *, key: str, why: str) -> RunRequest:
    checks = stage_checks(table, stage)
    return RunRequest(
        run_key=f"{table}/{stage}/{key}",
        job_name=job_name(stage),
        asset_selection=stage_assets(table, stage),
        asset_check_keys=checks if runs.want(checks) else [],  # without a selection Dagster runs the audit too
        tags={TABLE_TAG: table, STAGE_TAG: stage.value, WHY_TAG: why},
    )


def _due_requests(runs: "_Runs", spec: TableSpec, due: Mapping[Stage, Due]) -> Iterator[RunRequest]:
    for stage, reason in due.items():
        if runs.may_start(spec, stage):
            key = f"{reason.attempt}/{reason.position}/{runs.last(spec.table, stage)}"
            yield _request(runs, spec.table, stage, key=key, why=reason.why)


def _some(requests: Iterator[Iterator[RunRequest]]) -> Iterator[RunRequest | SkipReason]:
    """The first `REQUESTS_MAX` of all."""
    count = 0
    for of_table in requests:
        for request in of_table:
            if count == REQUESTS_MAX:
                return
            count += 1
            yield request
    if not count:
        yield SkipReason("nothing is due")


@dataclass(frozen=True, slots=True)
class _Needed:
    """The servers that stages need. Each is asked once in a tick, and only after a failure."""

    asks: Mapping[str, Ask]
    engine: EngineWord  #: of specs that name none
    answered: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> "_Needed":
        return cls(probes(settings), settings.engine)

    def answer(self, spec: TableSpec, stage: Stage) -> bool:
        return all(self._answers(service) for service in _needs(spec, stage, self.engine) if service in self.asks)

    def _answers(self, service: str) -> bool:
        if service not in self.answered:
            try:
                self.asks[service]()
                self.answered[service] = True
            except HarnessError:
                self.answered[service] = False
        return self.answered[service]


def _needs(spec: TableSpec, stage: Stage, engine: EngineWord) -> Sequence[str]:
    """The servers that the work of a stage needs beside Postgres and the lake; *engine* is for specs that name none."""
    kafka = ["kafka"] if stage is intake_of(spec).reader else []
    moves = stage in (Stage.TIER, Stage.OTREE, Stage.COMPACT)
    spark = ["spark"] if moves and (spec.engine or engine) != "arrow" else []
    return kafka + spark


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of one Dagster instance, as far as a tick asks for them."""

    instance: DagsterInstance
    needed: _Needed
    active: Mapping[tuple[str, str], Sequence[RunRecord]]  #: by table and stage

    @classmethod
    def of(cls, instance: DagsterInstance, needed: _Needed) -> "_Runs":
        found: dict[tuple[str, str], list[RunRecord]] = {}
        for record in instance.get_run_records(RunsFilter(statuses=ACTIVE)):
            tags = record.dagster_run.tags
            found.setdefault((tags.get(TABLE_TAG, ""), tags.get(STAGE_TAG, "")), []).append(record)
        return cls(instance, needed, found)

    def ending(self, table: str, stage: Stage) -> str | None:
        """The only active run of a stage, if it will end soon."""
        records = self.active.get((table, stage.value), ())
        if len(records) != 1 or records[0].dagster_run.status is not DagsterRunStatus.STARTED:
            return None
        started = records[0].start_time
        is_late = started is not None and time.time() - started >= RUN_S - HANDOVER_S
        return records[0].dagster_run.run_id if is_late else None

    def may_start(self, spec: TableSpec, stage: Stage) -> bool:
        """Neither under way nor failed a moment ago: each failure in a row doubles the pause.

        While a server that it needs does not answer, the next run would fail too and double the pause. So the next run
        waits for the server, but not longer than the longest pause: runs may reach what this process does not.
        """
        if (spec.table, stage.value) in self.active:
            return False
        records = self.instance.get_run_records(RunsFilter(tags=_tags(spec.table, stage)), limit=FAILURES_SEEN)
        failed = 0
        for record in records:
            if record.dagster_run.status is not DagsterRunStatus.FAILURE:
                break
            failed += 1
        if not failed:
            return True
        pause: float = min(RETRY_S * 2 ** (failed - 1), RETRY_S_MAX)
        waited = time.time() - (records[0].end_time or 0.0)
        if waited < -RETRY_S_MAX:  # a clock was set back since, or the other machine's is far ahead
            return self.needed.answer(spec, stage)
        return waited >= pause and (waited >= RETRY_S_MAX or self.needed.answer(spec, stage))

    def want(self, checks: Sequence[AssetCheckKey]) -> bool:
        """*checks* have not been made for a while, or one of them did not pass."""
        found = self.instance.event_log_storage.get_latest_asset_check_execution_by_key(checks) if checks else {}
        recent = [
            one for one in found.values()
            if one.status is AssetCheckExecutionRecordStatus.SUCCEEDED and time.time() - one.create_timestamp < CHECK_S
        ]  # fmt: skip
        return len(recent) < len(checks)

    def last(self, table: str, stage: Stage) -> str:
        """The run before this one: a key that names it is never blocked by a run that failed."""
        found = self.instance.get_runs(RunsFilter(tags=_tags(table, stage)), limit=1)
        return found[0].run_id if found else "first"


def _tags(table: str, stage: Stage) -> dict[str, str]:
    return {TABLE_TAG: table, STAGE_TAG: stage.value}


# -- lag ----------------------------------------------------------------------------------------------------


def _lag_sensor(tables: Tables, *, declared: bool) -> SensorDefinition:
    @sensor(
        name="harness_lag",
        minimum_interval_seconds=LAG_S,
        default_status=DefaultSensorStatus.RUNNING,
        description="Asks Kafka where the topics end, notes it in the ledger, and shows how far each table is behind.",
    )
    def harness_lag(context: SensorEvaluationContext, harness: HarnessResource) -> SensorResult | SkipReason:
        now = time.time()
        with harness.opened() as opened:
            if declared:
                _apply(context, opened, tables)
            _note_ends(context, opened, tables)
            opened.stores.stalls.note(tables)
            works = opened.stores.watch.work(tables)
        kept = kept_of(context.instance, tables, until=shown_until(context.cursor))
        reports = due(works, kept, now)
        if not reports:
            return SkipReason("nothing has changed that was not shown already")
        keep(context.instance, kept, reports, now)
        return SensorResult(asset_events=[event for report in reports for event in report.events()], cursor=repr(now))

    return harness_lag


def _apply(context: SensorEvaluationContext, harness: Harness, tables: Tables) -> None:
    """Create tables that the ledger lacks and apply changed settings. A refused change is reported and not applied."""
    known = {row.name: row.spec for row in harness.stores.tables.tables()}
    for name, spec in tables.items():
        if known.get(name) != spec:
            try:
                harness.apply(spec)
            except HarnessError as error:
                context.log.error(f"{name}: {error}")
            else:
                context.log.info(f"{name}: applied")


def _note_ends(context: SensorEvaluationContext, harness: Harness, tables: Tables) -> None:
    """Ask Kafka where the logs of all tables end. Of one that fails the others know nothing."""
    stores = harness.stores
    rows, known = stores.tables.tables(), Overview(stores.readers).partitions()
    readers: dict[str, list[TableRow]] = {}
    for row in rows:
        if row.name in tables and row.table_id in known:
            readers.setdefault(row.spec.topic, []).append(row)
    wanted = {topic: {p for row in found for p in known[row.table_id]} for topic, found in readers.items()}
    try:
        answers = stores.log.watermarks_of(wanted)
    except HarnessError as error:  # what was noted before gets old
        context.log.warning(str(error))
        return
    seen: dict[int, Mapping[int, Watermark]] = {}
    for topic, answer in answers.items():
        if isinstance(answer, HarnessError):
            context.log.warning(f"{', '.join(row.name for row in readers[topic])}: {answer}")
        else:
            seen |= {row.table_id: {p: answer[p] for p in known[row.table_id]} for row in readers[topic]}
    stores.watch.record_ends(seen)


# -- reconcile ----------------------------------------------------------------------------------------------


def _reconcile_sensor(tables: Tables) -> SensorDefinition:
    @sensor(
        name="harness_reconcile",
        minimum_interval_seconds=RECONCILE_S,
        default_status=DefaultSensorStatus.RUNNING,
        description="Ends runs whose process is gone, so that their stage can be started again. Names stuck moves.",
    )
    def harness_reconcile(context: SensorEvaluationContext, harness: HarnessResource) -> SkipReason:
        with harness.opened() as opened:
            found = {work.name: work for work in opened.stores.watch.work(tables)}
        beats = Beats.of(context.cursor)
        gone = list(_gone(context.instance, found, beats))
        for run_id in gone:
            _end(context, run_id)
        context.update_cursor(beats.cursor())
        stuck = [
            f"{name}: {stage} is held by a move that failed in every attempt; `harness run {name} --retry-stuck`"
            for name, work in found.items()
            for stage, move in work.open.items()
            if move["state"] == MoveState.QUARANTINED
        ]
        for text in stuck:
            context.log.error(text)
        return SkipReason("; ".join([f"ended run {run_id}" for run_id in gone] + stuck) or "nothing to settle")

    return harness_reconcile


def _gone(instance: DagsterInstance, found: Mapping[str, TableWork], beats: Beats) -> Iterator[str]:
    """Runs of the tables *found* whose process is silent for too long, or did not reach its work in time."""
    records = [
        record
        for record in instance.get_run_records(RunsFilter(statuses=BEGUN))
        if record.dagster_run.tags.get(TABLE_TAG) in found and record.dagster_run.tags.get(STAGE_TAG) in WATCHED
    ]
    beats.look(records, time.time())
    for record in records:
        run = record.dagster_run
        if record.start_time is None:
            is_gone = beats.silent_s(run.run_id) >= STARTED_S  # its times are of the daemon's clock
        else:
            # A run of before beats were written has none, and nothing but its claim.
            is_known = BEAT_TAG in run.tags or run.tags[STAGE_TAG] not in found[run.tags[TABLE_TAG]].busy
            is_gone = is_known and beats.is_gone(run.run_id)
        if is_gone:
            yield run.run_id


def _end(context: SensorEvaluationContext, run_id: str) -> None:
    """What its process committed is committed; the stage continues in another run."""
    run = context.instance.get_run_by_id(run_id)
    if run is not None and not run.is_finished:
        context.instance.report_run_failed(run, "Its process is gone: it gives no sign of life any more.")


# -- downstream ---------------------------------------------------------------------------------------------


def _downstream_sensor() -> SensorDefinition:
    """Evaluates the automation conditions of the users' own assets, which may depend on a table's."""
    return AutomationConditionSensorDefinition(
        name="harness_downstream",
        target=AssetSelection.all(),
        default_status=DefaultSensorStatus.RUNNING,
        description="Starts assets of yours that depend on a table, by their automation conditions.",
    )
