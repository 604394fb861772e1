"""Pure rules for one window of one partition: Kafka's records against the rows of the tiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness_pipelines.audit.proof.contents import LogContents, QuarantinedRecord
from harness_pipelines.audit.proof.report import Discrepancy, Findings, Kind, RangeAudit, Status, Tier
from harness_pipelines.formats.base import Reason
from harness_pipelines.protocol.digest import added, total_digest
from harness_pipelines.read.digested import Offsets, Rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """The content of ``[low, high)`` of a range. *records* is None where Kafka has dropped them."""

    low: int
    high: int
    records: LogContents | None
    rows: Rows
    held: Mapping[int, QuarantinedRecord]


def judge(
    part: RangeAudit, window: Window, findings: Findings, *, names: Callable[[int], list[str]] = lambda _: []
) -> Offsets:
    """Add *window* to *part* and name what is wrong; returns the offsets that have a row, each once.

    *names* tells the files that hold an offset.
    """
    found, counts = distinct(window.rows.offsets)
    held = np.fromiter(sorted(window.held), np.int64)
    part.rows += len(window.rows)
    part.quarantined += len(held)
    part.found = added(part.found, total_digest(window.rows.digests))

    def note(kind: Kind, offset: int, detail: str, tier: str = part.tier) -> None:
        findings.add(Discrepancy(kind=kind, partition=part.partition, offset=offset, tier=str(tier), detail=detail))

    for offset, count in zip(found[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
        where = f" ({', '.join(files)})" if (files := names(offset)) else ""
        note(Kind.DUPLICATED, offset, f"{count} copies in {part.tier}{where}")
    for offset in held[among(held, found)].tolist():
        note(Kind.DUPLICATED, offset, f"in {part.tier} and in quarantine", f"{part.tier}+{Tier.QUARANTINE}")
    if part.status is Status.ACCEPTED:
        for offset in found.tolist():
            note(Kind.UNEXPLAINED, offset, "a row in a range that was accepted as lost")
    if window.records is not None:
        _compare(part, window, window.records, found, note)
    return found


Note = Callable[..., None]
_BY_THE_SPEC_OF_THEN = (Reason.UNKNOWN_FIELD, Reason.CONTRACT)  #: it may have changed since, so the answer is unknown


def _compare(part: RangeAudit, window: Window, records: LogContents, found: Offsets, note: Note) -> None:
    known = records.known_from
    if known > window.low:
        part.status = Status.PARTLY
    fits = records.rows.split(known)[1]
    held = {offset: h for offset, h in window.held.items() if offset >= known}
    refused = {offset: why for offset, why in records.refused.items() if offset >= known}
    apart = among(fits.offsets, np.fromiter(sorted(held), np.int64))
    part.records += len(fits) + len(refused)
    part.expected = added(part.expected, total_digest(fits.digests[~apart]))

    there = among(fits.offsets, found)
    for offset in fits.offsets[~there & ~apart].tolist():
        note(Kind.MISSING, offset, f"Kafka has the record, {part.tier} has no row and quarantine does not hold it")
    _contents(fits, window.rows.split(known)[1], refused, note)
    _quarantine(records, held, refused, set(fits.offsets[apart].tolist()), note)
    unread = np.fromiter(sorted(set(refused) - set(held)), np.int64)
    for offset in unread[~among(unread, found)].tolist():
        note(Kind.MISSING, offset, f"Kafka's record does not fit ({refused[offset]})", Tier.QUARANTINE)


def _contents(fits: Rows, rows: Rows, refused: Mapping[int, str], note: Note) -> None:
    """Every row must be what the record at its offset decodes to."""
    explained = among(rows.offsets, fits.offsets)
    for offset in distinct(rows.offsets[~explained])[0].tolist():
        why = f"does not fit ({refused[offset]})" if offset in refused else None
        note(Kind.UNEXPLAINED, offset, f"a row, but Kafka's record {why}" if why else "a row, but Kafka has no record")
    at = np.searchsorted(fits.offsets, rows.offsets[explained])
    differs = fits.digests[at] != rows.digests[explained]
    for offset in distinct(rows.offsets[explained][differs])[0].tolist():
        note(Kind.CHANGED, offset, "the row is not what Kafka's bytes decode to")


def _quarantine(
    records: LogContents,
    held: Mapping[int, QuarantinedRecord],
    refused: Mapping[int, str],
    fitting: set[int],
    note: Note,
) -> None:
    """Every record in quarantine must be one of Kafka's, with its bytes, and one that does not fit."""
    for offset, record in sorted(held.items()):
        if offset not in records.raw:
            note(Kind.UNEXPLAINED, offset, "in quarantine, but Kafka has no record", Tier.QUARANTINE)
        elif records.raw[offset] != (record.value, record.key):
            note(Kind.CHANGED, offset, "the raw bytes in quarantine are not those of Kafka", Tier.QUARANTINE)
        elif offset in fitting and record.reason not in _BY_THE_SPEC_OF_THEN:
            note(Kind.UNEXPLAINED, offset, f"in quarantine as {record.reason}, but the record fits", Tier.QUARANTINE)


def distinct(ascending: Offsets) -> tuple[Offsets, Offsets]:
    """The values of an ascending array, each once, and how often each was there."""
    first = np.flatnonzero(np.concatenate([[True], ascending[1:] != ascending[:-1]])) if len(ascending) else ascending
    return ascending[first], np.diff(np.append(first, len(ascending)))


def among(offsets: Offsets, ascending: Offsets) -> NDArray[np.bool_]:
    """For each of *offsets*: is it in the ascending array?"""
    if not len(ascending):
        return np.zeros(len(offsets), np.bool_)
    at = np.minimum(np.searchsorted(ascending, offsets), len(ascending) - 1)
    found: NDArray[np.bool_] = ascending[at] == offsets
    return found
