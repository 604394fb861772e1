"""Rules of fsck for the log: it is the table's topic and still has all unread records."""

from __future__ import annotations

from collections.abc import Iterator

from harness_pipelines.audit.fsck.rule import Look, Objection, rule
from harness_pipelines.protocol.topics import place


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
