"""Ingest stops where too many records were refused (`stop_above` of the spec)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.refusals import one_too_many
from harness_pipelines.stores.buffer import DecodedRange
from harness_pipelines.stores.ports import RefusedRecord, TableRow

RefusedBefore = Callable[[int, int, int], Sequence[int]]  #: partition, low, high -> offsets of records set aside there


class RefusedTooMany(HarnessError):
    """More records of a partition are refused than the spec lets pass."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a table stops, in each partition that reaches its limit."""

    table: TableRow
    at: dict[int, RefusedRecord]  #: partition -> the first record that is one too many

    def error(self) -> RefusedTooMany:
        rule, first = self.table.spec.stop_above, self.at[min(self.at)]
        assert rule is not None
        name = self.table.name
        return RefusedTooMany(
            f"{name}: partition {first.partition}, offset {first.offset}: more than {rule.records_max:,} of the last "
            f"{rule.of_last:,} offsets are refused (`stop_above: {rule.refused:.6g}`), this one as {first.reason}: "
            f"{first.detail}; nothing from this offset on was taken; `harness quarantine list {name}` has the others. "
            "Repair the producer, or the contract; to set these records aside as well, raise or remove `stop_above`, "
            "apply the spec and start the worker again"
        )


def limit_of(table: TableRow, decoded: Sequence[DecodedRange], before: RefusedBefore) -> Limit | None:
    """Where *decoded* reaches the limit of *table*; None: nowhere, or there is none."""
    rule = table.spec.stop_above
    if rule is None:
        return None
    found: dict[int, RefusedRecord] = {}
    for taken in decoded:
        if not taken.refused:
            continue
        refused = {record.offset: record for record in taken.refused}
        earlier = before(taken.partition, taken.low - rule.of_last, taken.low)
        at = one_too_many(earlier, sorted(refused), of_last=rule.of_last, records_max=rule.records_max)
        if at is not None:
            found[taken.partition] = refused[at]
    return Limit(table, found) if found else None
