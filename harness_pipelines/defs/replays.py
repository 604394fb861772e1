"""Replays as jobs that an operator starts, with the table and the records in the run's config.

They do what `harness quarantine replay` and `harness replay` do. A run that published shows it as a materialization of
the table, which names the committed move (S30); one that has to wait tries again, and fails by name in the end.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dagster import (
    AssetMaterialization,
    Config,
    JobDefinition,
    OpExecutionContext,
    RetryRequested,
    in_process_executor,
    job,
    op,
)
from pydantic import Field

from harness_pipelines.defs.names import table_key
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines.defs.work import RETRY_S, RETRY_S_MAX, STAGE_TAG, TABLE_TAG
from harness_pipelines.errors import HarnessError, TryAgain, UsageError
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.changes.corrections import Wanted
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.reading.reads import moment_of
from harness_pipelines.spec.load import load_spec_text
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.replay.quarantine import replay
from harness_pipelines.stages.replay.ranges import replay_range

RETRIES = 6  #: ten minutes with the pauses, which double


class RecordsWait(TryAgain):
    """Records fit but cannot be replayed yet; the others are replayed."""


class ReplayConfig(Config):
    """The settings of both jobs."""

    table: str = Field(description="its name, such as shop.orders")
    decoder: str | None = Field(
        default=None,
        description="text of a spec (YAML) with the table's columns that says otherwise how values are written; for "
        "this time only",
    )
    dry_run: bool = Field(default=True, description="only count what would be done; false does it")

    def spec(self) -> TableSpec | None:
        """The decoder. Raises: SpecError."""
        return None if self.decoder is None else load_spec_text(self.decoder)


class QuarantineConfig(ReplayConfig):
    """Which records of the quarantine; all that are held, where nothing is said."""

    reasons: list[str] = Field(default=[], description="only those refused for one of these")
    partition: int | None = Field(default=None, description="only this partition")
    offset: int | None = Field(default=None, description="only this offset, of the partition")
    detail: str | None = Field(default=None, description="only those whose detail contains this text")
    schema_id: int | None = Field(default=None, description="only those whose value names this schema of the registry")
    since: str | None = Field(default=None, description="only those of that time in Kafka or later")
    until: str | None = Field(default=None, description="only those from before that time in Kafka")
    set_aside_since: str | None = Field(default=None, description="only those quarantined then or later")
    set_aside_until: str | None = Field(default=None, description="only those quarantined before")

    def wanted(self) -> Wanted:
        """Raises: UsageError."""
        return Wanted(
            reasons=tuple(self.reasons),
            partition=self.partition,
            offset=self.offset,
            detail=self.detail,
            schema_id=self.schema_id,
            since=_moment("since", self.since),
            until=_moment("until", self.until),
            set_aside_since=_moment("set_aside_since", self.set_aside_since),
            set_aside_until=_moment("set_aside_until", self.set_aside_until),
        )


class RangeConfig(ReplayConfig):
    """Which range of offsets."""

    partition: int = Field(ge=0, description="the Kafka partition")
    low: int = Field(ge=0, alias="from", description="the first offset")
    high: int = Field(ge=1, alias="to", description="one above the last offset")


@op
def replay_quarantine(context: OpExecutionContext, config: QuarantineConfig, harness: HarnessResource) -> None:
    """Decode quarantined records again, and put those that fit now back into the table."""
    _tag(context, config)
    with harness.opened() as opened:
        try:
            done = replay(
                opened.stores,
                opened.table(config.table).row,
                config.wanted(),
                decoder=config.spec(),
                dry_run=config.dry_run,
                progress=lambda so_far: context.log.info(
                    f"{so_far.records:,} records looked at, {so_far.replayed:,} put back"
                ),
                run_id=context.run.run_id,
            )
        except HarnessError as error:
            raise _again(context, error) from error
    _show(context, config, done.to_json(), moves=done.moves, version=max(done.versions, default=None))
    if done.waiting and not config.dry_run:
        why = "; ".join(f"{count:,} wait: {why}" for why, count in done.waiting.items())
        waits = RecordsWait(f"{config.table}: {done.replayed:,} records put back, {why}; `{done.way_on}`, then again")
        raise _again(context, waits)


@op
def replay_offsets(context: OpExecutionContext, config: RangeConfig, harness: HarnessResource) -> None:
    """Decode the records of a range again, and replace the rows that come out otherwise."""
    _tag(context, config)
    with harness.opened() as opened:
        try:
            if config.low >= config.high:
                raise UsageError(f"from: {config.low} is not below to: {config.high}")
            done = replay_range(
                opened.stores,
                opened.table(config.table).row,
                OffsetRange(partition=config.partition, low=config.low, high=config.high),
                decoder=config.spec(),
                dry_run=config.dry_run,
                run_id=context.run.run_id,
            )
        except HarnessError as error:
            raise _again(context, error) from error
    _show(context, config, done.to_json(), moves=[] if done.move is None else [done.move], version=done.version)


@job(executor_def=in_process_executor)
def harness_replay_quarantine() -> None:
    """Put quarantined records back that fit now: `harness quarantine replay`. A dry run, unless `dry_run: false`."""
    replay_quarantine()


@job(executor_def=in_process_executor)
def harness_replay_range() -> None:
    """Decode a range of records again: `harness replay`. A dry run, unless `dry_run: false`."""
    replay_offsets()


REPLAY_JOBS: list[JobDefinition] = [harness_replay_quarantine, harness_replay_range]


def _tag(context: OpExecutionContext, config: ReplayConfig) -> None:
    """Runs are found, and deleted when they are old, by these."""
    context.instance.add_run_tags(context.run.run_id, {TABLE_TAG: config.table, STAGE_TAG: Stage.REPLAY.value})


def _again(context: OpExecutionContext, error: HarnessError) -> Exception:
    """Return what a step raises for *error*: a retry with a doubling pause if a repetition is safe."""
    context.log.error(str(error))
    if not isinstance(error, TryAgain):
        return error
    return RetryRequested(RETRIES, min(RETRY_S * 2**context.retry_number, RETRY_S_MAX))


def _show(
    context: OpExecutionContext,
    config: ReplayConfig,
    told: Mapping[str, Any],
    *,
    moves: list[int],
    version: int | None,
) -> None:
    """The counts with the step; and of what was published, the table as it is from that version on."""
    shown = {name: value for name, value in told.items() if value is not None}
    context.add_output_metadata(shown)
    if version is not None:
        context.log_event(
            AssetMaterialization(
                table_key(config.table),
                description=f"replayed in version {version}",
                metadata={**shown, "version": version, "move": moves[-1], "moves": moves},
                tags={"dagster/data_version": str(version)},
            )
        )


def _moment(name: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else moment_of(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a time such as 2026-11-22T10:30:00Z") from None
