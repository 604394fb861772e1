"""Check the contract again on staged rows, before tier publishes them.

Ingest checked these rows when it accepted them, so one that breaks a refusing check is there because the
contract changed since, or by a defect. No row is lost by it: rows are counted and reported, or the move stops.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import structlog

from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.formats.contract.checks import ContractJudge, RowRule, judge_of
from harness_pipelines.ports.access import HasLake, HasLakeReads
from harness_pipelines.ports.lake import judged, lake_schema
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.coordinates import OFFSET, OPERATION, PARTITION
from harness_pipelines.protocol.moves import Move

if TYPE_CHECKING:
    from harness_pipelines.ports.lake import Staged

log = structlog.get_logger(__name__)


class Ports(HasLake, HasLakeReads, Protocol):
    """The ports that it uses."""


class ContractBroken(HarnessError):
    """Rows on their way into the lake break a check of severity `stop`; nothing was published."""

    way_on = "repair the producer, or `severities: {CHECK: warn}` and `harness table apply`"

    recovery = Recovery.NEVER


@dataclass(slots=True)
class _Found:
    rows: int
    first: int  #: offset
    last: int


def look_again(stores: Ports, table: TableRow, move: Move, staged: Staged) -> Mapping[tuple[int, str], int]:
    """How many staged rows of which partition break which check that would refuse them, as the contract is today.

    Warnings were counted when the rows were accepted. With `buffer: none`, the same pass checks and writes.
    Raises: ContractBroken; ContractUnusable; LakeFileMissing, LakeUnreadable.
    """
    judge = judge_of(table.spec) if table.intake.buffered and staged.files else None
    rules = [rule for rule in judge.rules if rule.severity != "warn"] if judge else []
    if not rules:
        return {}
    began = time.monotonic()
    found: dict[tuple[int, str], _Found] = {}
    for rows in _staged(stores, table, staged, columns={name for rule in rules for name in rule.columns}):
        for rule, broken in ContractJudge(rules).broken(rows):
            _note(found, rule, rows.take(pa.array(broken)))
    _tell(table, move, rules, found)
    log.debug("tier.contract_checked", table=table.name, rows=staged.rows, seconds=round(time.monotonic() - began, 3))
    return {at: one.rows for at, one in found.items()}


def _staged(stores: Ports, table: TableRow, staged: Staged, *, columns: set[str]) -> Iterator[pa.Table]:
    """*columns* of the staged files by the names of today, with the coordinates, a bounded batch at a time."""
    view = stores.lake_reads.view(stores.lake.pointer(table, table.effects[Stage.TIER].view))
    ids, names = view.field_ids(table), {first: name for name, first in table.first_names.items()}
    wanted = columns | {PARTITION, OFFSET}
    fields = [field for field in lake_schema(table) if names.get(field.name, field.name) in wanted]
    if table.spec.key:
        fields.append(pa.field(OPERATION, pa.string()))
        ids[OPERATION] = view.field_id(OPERATION)
    schema = pa.schema(fields)
    for file in staged.files:
        with judged(table, file):
            for rows in view.tables(file, schema, ids):
                yield rows.rename_columns([names.get(name, name) for name in schema.names])


def _note(found: dict[tuple[int, str], _Found], rule: RowRule, broken: pa.Table) -> None:
    at = zip(broken.column(PARTITION).to_pylist(), broken.column(OFFSET).to_pylist(), strict=True)
    for partition, offset in at:
        one = found.setdefault((partition, rule.name), _Found(0, offset, offset))
        one.rows, one.first, one.last = one.rows + 1, min(one.first, offset), max(one.last, offset)


def _tell(table: TableRow, move: Move, rules: list[RowRule], found: Mapping[tuple[int, str], _Found]) -> None:
    """Raises: ContractBroken, before anything is reported that would not happen."""
    named = {rule.name: rule for rule in rules}
    for (partition, check), one in sorted(found.items(), key=lambda item: named[item[0][1]].severity != "stop"):
        rule = named[check]
        if rule.severity == "stop":
            raise ContractBroken(
                f"{table.name}: move {move.move_id}: partition {partition}, offsets {one.first} to {one.last}: "
                f"{one.rows} rows break `{check}` (expected {rule.expected}), and its contract says `stop`; nothing "
                "was published. They were taken before the contract was changed, or by a defect: let the check warn "
                f"(`severities: {{{check}: warn}}`), apply, and start the worker again"
            )
        log.warning(
            "tier.contract_broken", table=table.name, move=move.move_id, partition=partition, first=one.first,
            last=one.last, rows=one.rows, check=check, expected=rule.expected,
            why="the contract changed since they were taken, or a defect; they are published and counted",
        )  # fmt: skip
