"""Stop ingest after too many refused records: `stop_above` of the spec, and tables that accept none."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.culprits import Notices
from harness_pipelines.ports.decoded import DecodedRange, stopped
from harness_pipelines.ports.ledger import Beginning, RefusedRecord, TableRow

FIRST_RECORDS = 1_000  #: of a table: when all of them are refused, it is the spec that is wrong, not a producer


_NOTICES = Notices("records.refused")


class RefusedTooMany(HarnessError):
    """More records of a partition are refused than the spec lets pass."""

    way_on = (
        "look at `harness quarantine list TABLE`; repair the producer or the contract, or raise `stop_above`; "
        "apply, start the worker again"
    )


class NothingFits(RefusedTooMany):
    """No record of a table became a row, and the number of refused ones shows that its spec is wrong."""

    way_on = (
        "correct the spec's words of decoding, `harness table apply`, start the worker again, `harness quarantine "
        "replay TABLE`"
    )


One = Callable[[], RefusedRecord]  #: one of the refused records; costs a look at them


class Refusals(Protocol):
    """The source of what was quarantined before."""

    def refused(self, table: TableRow, partition: int, low: int, high: int) -> Sequence[int]:
        """Offsets of the records in ``[low, high)`` of a partition that were quarantined, ascending."""
        ...

    def beginning(self, table: TableRow, *, limit: int) -> Beginning:
        """How *table* began; no more than *limit* refused records are counted."""
        ...


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a table stops, in each partition that reaches its limit."""

    table: TableRow
    at: dict[int, RefusedRecord]  #: partition -> the first record that is one too many
    why: Callable[[TableRow, RefusedRecord], RefusedTooMany]

    def error(self) -> RefusedTooMany:
        return self.why(self.table, self.at[min(self.at)])


def limit_of(table: TableRow, decoded: Sequence[DecodedRange], before: Refusals) -> Limit | None:
    """Where *decoded* reaches the limit of *table*; None: nowhere, or there is none."""
    if table.spec.stop_above is None:
        return _nothing_fits(table, decoded, before)
    rule = table.spec.stop_above
    found: dict[int, RefusedRecord] = {}
    for taken in decoded:
        if not taken.refused:
            continue
        refused = {record.offset: record for record in taken.refused}
        earlier = before.refused(table, taken.partition, taken.low - rule.of_last, taken.low)
        at = one_too_many(earlier, sorted(refused), of_last=rule.of_last, records_max=rule.records_max)
        if at is not None:
            found[taken.partition] = refused[at]
    return Limit(table, found, _too_many) if found else None


def note_refused(table: TableRow, refused: Iterable[RefusedRecord]) -> None:
    """Log what was quarantined: one line per reason and minute, with the first of its records."""
    first: dict[str, RefusedRecord] = {}
    counts: Counter[str] = Counter()
    for record in refused:
        first.setdefault(record.reason, record)
        counts[record.reason] += 1
    for reason, one in first.items():
        where = {"reason": str(reason), "partition": one.partition, "offset": one.offset}
        _NOTICES.note(table.name, one.detail, kind=reason, records=counts[reason], **where)


def _nothing_fits(table: TableRow, decoded: Sequence[DecodedRange], before: Refusals) -> Limit | None:
    """Where a table stops of which no record became a row."""
    if any(taken.filtered for taken in decoded) or not any(taken.refused for taken in decoded):
        return None
    first = [leading(_offsets(taken), [record.offset for record in taken.refused]) for taken in decoded]
    began = [n for n, taken in zip(first, decoded, strict=True) if taken.rows.num_rows]
    if began and min(began) < FIRST_RECORDS:
        return None
    seen = before.beginning(table, limit=FIRST_RECORDS)
    if seen.taken:
        return None
    left = FIRST_RECORDS - seen.refused
    if began and min(began) <= left:
        return None
    found: dict[int, RefusedRecord] = {}
    for count, taken in zip(first, decoded, strict=True):
        if count > left:
            found[taken.partition] = sorted(taken.refused, key=lambda record: record.offset)[left]
        left = max(left - count, 0)
    return Limit(table, found, _none_taken) if found else None


def check_move(table: TableRow, *, rows: int, refused: int, one: One, before: Refusals) -> None:
    """Without a buffer a move is taken whole or not at all: do its records stop the table?

    *rows* and *refused*: what they became; *one* finds one of the refused. Raises: RecordRefused, NothingFits.
    """
    if refused and table.spec.on_error == "stop":
        raise stopped(table, one(), by_check=False)
    transform = table.spec.transform
    leaves_out = transform is not None and transform.filter is not None  # their number is not counted here
    if rows or leaves_out or table.spec.stop_above is not None or not refused:
        return
    seen = before.beginning(table, limit=FIRST_RECORDS)
    if seen.taken or seen.refused + refused <= FIRST_RECORDS:
        return
    found = one()
    raise NothingFits(
        f"{table.name}: partition {found.partition}, offset {found.offset}: all of the first {FIRST_RECORDS:,} records "
        f"are refused, this one as {found.reason}: {found.detail}; nothing was taken. Is the spec right? Its words "
        "of decoding (`format`, `schema`, `from` of a column, ...) may change while no record is a row: stop the "
        "worker, correct them, apply the spec and start it again"
    )


def _offsets(taken: DecodedRange) -> list[int]:
    offsets: list[int] = taken.rows.column("_kafka_offset").to_pylist()
    return offsets


def _too_many(table: TableRow, first: RefusedRecord) -> RefusedTooMany:
    rule, name = table.spec.stop_above, table.name
    assert rule is not None
    return RefusedTooMany(
        f"{name}: partition {first.partition}, offset {first.offset}: more than {rule.records_max:,} of the last "
        f"{rule.of_last:,} offsets are refused (`stop_above: {rule.refused:.6g}`), this one as {first.reason}: "
        f"{first.detail}; nothing from this offset on was taken; `harness quarantine list {name}` has the others. "
        "Repair the producer, or the contract; to set these records aside as well, raise or remove `stop_above`, "
        "apply the spec and start the worker again"
    )


def _none_taken(table: TableRow, first: RefusedRecord) -> RefusedTooMany:
    name = table.name
    return NothingFits(
        f"{name}: partition {first.partition}, offset {first.offset}: all of the first {FIRST_RECORDS:,} records are "
        f"refused, this one as {first.reason}: {first.detail}; nothing from this offset on was taken; `harness "
        f"quarantine list {name}` has the others. Is the spec right? Its words of decoding (`format`, `schema`, `from` "
        "of a column, ...) may change while no record is a row: correct them, apply the spec and start the worker "
        f"again; `harness quarantine replay {name}` then puts back what fits. To quarantine such records as well, "
        "write your own `stop_above` (`stop_above: {refused: 100%}` never stops) and apply the spec"
    )


def leading(rows: Sequence[int], refused: Sequence[int]) -> int:
    """How many offsets of *refused* lie below the first of *rows*."""
    first = min(rows, default=None)
    return len(refused) if first is None else sum(1 for offset in refused if offset < first)


def one_too_many(earlier: Sequence[int], refused: Sequence[int], *, of_last: int, records_max: int) -> int | None:
    """The first offset of *refused* with which more than *records_max* of the last *of_last* offsets are refused.

    Both are ascending offsets of one partition, *earlier* those below *refused* that are refused already (of the last
    *of_last* offsets at least). The answer depends on offsets alone: not on how records came in batches.
    """
    known = [*earlier, *refused]
    for i in range(len(earlier), len(known)):
        within = i + 1 - bisect_right(known, known[i] - of_last)
        if within > records_max:
            return known[i]
    return None
