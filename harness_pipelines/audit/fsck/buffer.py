"""Rules of fsck for what the lake lacks: buffer and quarantine have it exactly once, the log has all above them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from harness_pipelines.audit.fsck.rule import Look, Objection, rule
from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.ports.table_state import MoveRow, kept_from, protocol_versions
from harness_pipelines.protocol.segments import may_hold, may_retire
from harness_pipelines.protocol.shape import intake_of
from harness_pipelines.protocol.topics import place
from harness_pipelines.protocol.versions import unanswered


@rule("S1", "no coordinate is in the buffer twice, or in the buffer and in quarantine")
def one_tier(look: Look) -> Iterator[Objection]:
    for row in look.books.buffered.doubled:
        where = f"partition {row['partition']}, offset {row['offset']}"
        yield Objection(f"buffer, {where}", f"{where}: {row['rows']} rows in the buffer")
    for row in look.books.buffered.refused_twice:
        where = f"partition {row['partition']}, offset {row['offset']}"
        yield Objection(f"refused, {where}", f"{where}: in the buffer and in quarantine")


@rule("S31", "a record is in quarantine, given up, or put back by a correction that is in effect")
def quarantine_agrees(look: Look) -> Iterator[Objection]:
    for partition, offset, state in look.books.unsettled:
        where, says = f"partition {partition}, offset {offset}", "is" if state == "replayed" else "is not"
        yield Objection(
            f"corrected, {where}", f"{where} is {state} in quarantine; the record {says} said to be put back"
        )


@rule("S31", "bytes of a quarantined record that the ledger says are in the lake are there, once")
def moved_bytes(look: Look) -> Iterator[Objection]:
    said, found, title = look.books.moved, look.moved, look.books.moved.title
    if isinstance(found, HarnessError):
        yield Objection(title, f"{title} cannot be read: {found}", hint=isinstance(found, TryAgain))
        return
    for partition, packed in said.offsets.items():
        wanted = np.frombuffer(packed, ">i8").astype(np.int64)
        there, times = np.unique(found.get(partition, np.empty(0, np.int64)), return_counts=True)
        if len(missing := np.setdiff1d(wanted, there)):
            where = f"partition {partition}, offset {missing[0]}"
            yield Objection(where, f"{title}: bytes of {len(missing):,} quarantined records are gone, first {where}")
        if len(doubled := np.intersect1d(there[times > 1], wanted)):
            where = f"partition {partition}, offset {doubled[0]}"
            yield Objection(
                f"twice, {where}", f"{title}: {len(doubled):,} records are there more than once, first {where}"
            )


@rule("S7", "the catalog names the bytes of quarantined records that the ledger published")
def quarantine_pointer(look: Look) -> Iterator[Objection]:
    moved = look.books.moved
    if moved.metadata is not None and moved.pointer != moved.metadata:
        named = "has no such table" if moved.pointer is None else f"names {moved.pointer}, of another writer"
        yield Objection(
            f"pointer of {moved.title}",
            f"{moved.title} was published as {moved.metadata}, the catalog {named}. The harness reads what it "
            "published; expire sets the catalog right with the next bytes that it moves",
        )


@rule("S1", "nothing is there that ingest did not commit")
def nothing_uncommitted(look: Look) -> Iterator[Objection]:
    for row in look.books.buffered.uncommitted:
        yield Objection(
            f"{row['segment']}, partition {row['partition']}",
            f"segment {row['segment']} holds {row['rows']:,} rows of partition {row['partition']} at offsets "
            f"{row['first']}..{row['last']}, which ingest has not committed",
        )
    for partition, offset in look.books.quarantined_outside:
        where = f"partition {partition}, offset {offset}"
        yield Objection(f"quarantine, {where}", f"{where} is in quarantine, but ingest has not committed it")


@rule("S32", "a record in quarantine is as it was quarantined")
def refused_as_written(look: Look) -> Iterator[Objection]:
    for partition, offset in look.changed:
        where = f"partition {partition}, offset {offset}"
        yield Objection(
            f"quarantine as written, {where}",
            f"{where}: the record in quarantine is not what the harness wrote (reason, detail, key, value, headers, "
            f"state or time were changed by hand); `harness quarantine show {look.books.name} {partition} {offset}` "
            "has what is there, Kafka what was sent, as far as its retention goes",
        )


@rule("S36", "a named snapshot is the cut that it was made of")
def pins_as_written(look: Look) -> Iterator[Objection]:
    for name, version in look.books.pins_changed:
        if name.startswith("state:"):
            way = "the next commit of the state pins another one"
        else:
            way = f"`harness snapshot drop {name}`, and make another one"
        yield Objection(
            f"snapshot {name}",
            f"snapshot {name} says version {version} with bounds that it was not made with: somebody changed it by "
            f"hand, and reads of it are refused; {way}",
        )


@rule("S13", "the buffer holds every row that ingest brought and tier has not moved")
def nothing_dropped(look: Look) -> Iterator[Objection]:
    """By count: S14 (whole segments, never single rows) shows here as well. `harness audit` names the rows."""
    if not intake_of(look.books.spec).buffered or not look.accounted_for:
        return
    brought = sum(m.rows or 0 for m in look.ingest_moves)
    moved = sum(m.rows or 0 for m in look.tier_moves if not m.accepted)
    found = sum(look.books.buffered.waiting.values())
    if brought - moved != found:
        per_partition = ", ".join(
            f"partition {p} [{row.stream_hi}, {row.buffer_hi}) {look.books.buffered.waiting.get(p, 0):,} rows"
            for p, row in look.books.positions.items()
            if row.buffer_hi != row.stream_hi
        )
        yield Objection(
            "buffered rows",
            f"ingest brought {brought:,} rows and tier moved {moved:,}, so {brought - moved:,} are only in the buffer; "
            f"it holds {found:,}" + (f": {per_partition}" if per_partition else ""),
        )


@rule("S13", "the buffer holds every row that a revert counts on")
def nothing_dropped_above_the_floor(look: Look) -> Iterator[Objection]:
    """By count, from the trim floor on: below the lake's bound too, where no read would miss the rows."""
    books = look.books
    if not intake_of(books.spec).buffered:
        return
    moves, low = kept_from(books.positions, books.moves)
    brought, found = sum(m.rows or 0 for m in moves), sum(books.buffered.kept.get(p, 0) for p in _partitions(moves))
    if brought != found:
        per_partition = ", ".join(
            f"partition {p} [{low[p]}, {books.positions[p].buffer_hi}) {books.buffered.kept.get(p, 0):,} rows"
            for p in sorted(_partitions(moves))
        )
        yield Objection(
            "rows above the trim floor",
            f"ingest brought {brought:,} rows above the trim floor, the buffer holds {found:,}: {per_partition}. "
            f"`harness revert {books.name}` to a version that has less in the lake would lose or double the difference",
        )


def _partitions(moves: Iterable[MoveRow]) -> set[int]:
    return {p for m in moves for p in m.ranges}


@rule("S31", "no partition has more rows and refused records than offsets")
def rows_fit_offsets(look: Look) -> Iterator[Objection]:
    for partition, row in look.books.positions.items():
        if row.buffer_hi is None or row.stream_hi is None:
            continue
        rows = look.books.buffered.waiting.get(partition, 0)
        refused = look.books.quarantined.get(partition, (0, 0))[1]
        span = max(row.buffer_hi - row.stream_hi, 0)
        if rows + refused > span:
            yield Objection(
                f"partition {partition}",
                f"partition {partition}: {rows:,} rows in the buffer and {refused:,} in quarantine for the {span:,} "
                f"offsets of [{row.stream_hi}, {row.buffer_hi})",
            )


@rule("S10", "every segment that a read may name is there")
def segments_stored(look: Look) -> Iterator[Objection]:
    for segment in look.books.segments:
        if segment.state != "retired" and not segment.stored:
            text = f"segment {segment.name} is {segment.state}, but its table is gone"
            low = {p: row.stream_hi for p, row in look.books.positions.items() if row.stream_hi is not None}
            needed = may_hold(segment.max_hi, low)
            yield Objection(segment.name, text + ("" if needed else " (its rows are in the lake by now)"))


@rule("S11", "a segment is retired only when all of it is below the trim floor")
def retired_below_floor(look: Look) -> Iterator[Objection]:
    floor = {p: row.trim_floor for p, row in look.books.positions.items() if row.trim_floor is not None}
    for segment in look.books.segments:
        if segment.state == "retired" and not may_retire(segment.max_hi, floor):
            yield Objection(
                segment.name, f"segment {segment.name} is retired, ends at {segment.max_hi}, the trim floor is {floor}"
            )
        if segment.state == "closed" and segment.max_hi is None:
            yield Objection(segment.name, f"segment {segment.name} is closed without an end")


@rule("S11", "the trim floor leaves what retained and leased versions and named snapshots need")
def floor_leaves_reads(look: Look) -> Iterator[Objection]:
    floor = {p: row.trim_floor for p, row in look.books.positions.items() if row.trim_floor is not None}
    for partition, row in look.books.positions.items():
        if row.trim_floor is not None and row.stream_hi is not None and row.trim_floor > row.stream_hi:
            yield Objection(
                f"partition {partition}",
                f"partition {partition}: trim_floor {row.trim_floor} is above stream_hi {row.stream_hi}",
            )
    # What reconcile took over raised the floor for reverts: it says nothing of what older versions read.
    since = max(look.taken_over, default=0)
    retained = protocol_versions([v for v in look.books.retained if v.version >= since])
    asked = [*retained, *(v for v in look.books.snapshots if v.version >= since)]
    oldest = min((v.version for v in asked), default=0)
    later = protocol_versions([v for v in look.books.versions if v.version >= oldest])
    for version in unanswered(asked, later):
        for partition, low in version.stream_hi.items():
            if floor.get(partition, -1) > low:
                yield Objection(
                    f"version {version.version}, partition {partition}",
                    f"version {version.version} needs [{low}, {version.buffer_hi[partition]}) of partition {partition} "
                    f"from the buffer, the trim floor is {floor[partition]}",
                )


@rule("L5", "what nothing needs is removed")
def leftovers(look: Look) -> Iterator[Objection]:
    grace_s = look.books.spec.retention.grace + 3600
    for segment in look.books.segments:
        age_s = (look.books.now - segment.retired_at).total_seconds() if segment.retired_at else 0.0
        if age_s > grace_s:
            text = f"segment {segment.name} was retired {age_s / 3600:.1f} h ago and is still there; does expire run?"
            yield Objection(segment.name, text, hint=True)


@rule("S12", "the log is the table's topic and still has everything above buffer_hi", "log")
def log_has_the_rest(look: Look) -> Iterator[Objection]:
    """A table that was stopped by it keeps the invariant ("or stops loudly"); then it is a hint."""
    stopped = look.books.stopped is not None
    if look.log_trouble is not None:
        yield Objection("topic", look.log_trouble, hint=stopped)
    if look.log is None:
        return
    for partition, mark in sorted(look.log.marks.items()):
        row = look.books.positions.get(partition)
        if row is None or row.buffer_hi is None or row.stream_hi is None:
            continue
        topic, there = place(look.books.topic, partition)
        where = f"partition {there} of topic {topic}"
        if mark.low > row.buffer_hi:
            text = f"{where}: records [{row.buffer_hi}, {mark.low}) were dropped before they were read"
            yield Objection(f"partition {partition}", text, hint=stopped)
        elif mark.end < row.buffer_hi:
            text = f"{where} ends at {mark.end}, read up to {row.buffer_hi}: it was truncated"
            yield Objection(f"partition {partition}", text, hint=stopped)
        elif mark.low > row.stream_hi:
            text = f"{where}: only Postgres has [{row.stream_hi}, {min(mark.low, row.buffer_hi)}); let tier move them"
            yield Objection(f"headroom {partition}", text, hint=True)
