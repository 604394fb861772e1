"""Whether the chunks of a decoded tail are still what a read of the log gives.

A row of the buffer never changes, one that is decoded from the log may: a record is no row while the registry does not
know its schema, and an unclean leader election gives its offset to another record. So a chunk of a tail says what its
rows depend on besides the decoder (`Chunk.read_as`), and that is compared before it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import orjson
import structlog

from harness_pipelines.errors import TryAgain
from harness_pipelines.ports.errors import LogRewritten
from harness_pipelines.ports.serving.cuts import Cut
from harness_pipelines.ports.source import check_epochs
from harness_pipelines.protocol.cuts import Chunk, CutBounds
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.plan import TailPart
from harness_pipelines.read.plan import Looked
from harness_pipelines.read.tail import Ports, tail_batches

log = structlog.get_logger(__name__)
Unsettled = Mapping[int, tuple[int, ...]]  #: partition -> ascending offsets of records that may be rows later


class LogEndsBelowCut(TryAgain):
    """Kafka has lost records that a cut shows, and no older state is shown while engines may use that cut."""

    way_on = (
        "restore the broker from a replica that has them; else wait: once the time of that cut has ended (`--keep`), "
        "cuts begin again with what the log has"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAs:
    """What the rows of a chunk of a tail depend on, besides its maker."""

    epochs: Mapping[int, int] = field(default_factory=dict)  #: partition -> leader epoch of its last record
    unsettled: Unsettled = field(default_factory=dict)

    def to_json(self) -> str:
        """Of the records that may be rows later it has a digest, and where the first and the last one are."""
        if not (self.epochs or any(self.unsettled.values())):
            return ""
        spans = {str(p): (found[0], found[-1] + 1) for p, found in sorted(self.unsettled.items()) if found}
        told = {"epochs": {str(p): epoch for p, epoch in sorted(self.epochs.items())}, "spans": spans}
        return orjson.dumps(told | ({"digest": digest_of(self.unsettled)} if spans else {})).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What `ReadAs.to_json` said."""

    epochs: Mapping[int, int]
    spans: Ranges
    digest: str

    @classmethod
    def of(cls, chunk: Chunk) -> _Told:
        told = orjson.loads(chunk.read_as) if chunk.read_as else {"epochs": {}, "spans": {}}
        return cls(
            epochs={int(p): epoch for p, epoch in told["epochs"].items()},
            spans={int(p): (low, high) for p, (low, high) in told["spans"].items()},
            digest=told.get("digest", ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Chunks that are there, and whose rows are those that a read would give."""

    chunks: tuple[Chunk, ...]
    read_as: Mapping[str, ReadAs] = field(default_factory=dict)  #: by path, of those of a tail
    replaced: frozenset[str] = frozenset()  #: paths of those whose records the log does not have any more

    def has(self, chunks: Iterable[Chunk]) -> bool:
        """True if all of *chunks* are among them."""
        paths = {chunk.path for chunk in self.chunks}
        return all(chunk.path in paths for chunk in chunks)


def digest_of(unsettled: Unsettled) -> str:
    said = [[p, found] for p, found in sorted(unsettled.items()) if found]
    return blake2b(orjson.dumps(said), digest_size=16).hexdigest()


def check_log_reaches(looked: Looked, newest: Cut | None, bounds: CutBounds) -> None:
    """Raises: LogEndsBelowCut where the log of a decoded tail ends below a cut that may be in use."""
    table = looked.table
    if newest is None or newest.is_over or table.intake.buffered or looked.plan.key:
        return
    for p, (_, _, _, was) in sorted(newest.bounds.items()):
        end = bounds[p][3] if p in bounds else 0
        if end < was:
            raise LogEndsBelowCut(
                f"{table.name}: partition {p} of {table.spec.topic!r} ends at offset {end}, and a cut was given out "
                f"with the records below {was}: Kafka has lost some (an unclean leader election); nothing was published"
            )


def still_right(stores: Ports, looked: Looked, chunks: Sequence[Chunk], *, maker: str, compare: bool) -> Known:
    """Those of *chunks* whose rows a read would give as well; of a buffer all of them.

    With *compare* the log is asked whether it still has what chunks of *maker* were decoded from; if not, none of them
    is left, and the tail is decoded again. Raises: LogNotCompared, and what `tail_batches` does.
    """
    tail, ours = looked.plan.tail, [chunk for chunk in chunks if chunk.maker == maker]
    if looked.table.intake.buffered or tail is None or not ours:
        return Known(chunks=tuple(chunks))
    told = {chunk.path: _Told.of(chunk) for chunk in ours}
    if compare and _is_rewritten(stores, looked, ours, told):
        others = tuple(chunk for chunk in chunks if chunk.maker != maker)
        return Known(chunks=others, replaced=frozenset(told))
    found: dict[str, ReadAs] = {}
    changed: set[str] = set()
    for chunk in ours:
        one = told[chunk.path]
        is_read = all(tail.low.get(p, high) <= low and high <= tail.high[p] for p, (low, high) in one.spans.items())
        unsettled = _unsettled_now(stores, looked, tail, one.spans) if one.spans and is_read else {}
        # What the lake has a part of is decoded again: the log may not have the rest any more.
        if one.spans and digest_of(unsettled) != one.digest:
            changed.add(chunk.path)
        found[chunk.path] = ReadAs(epochs=one.epochs, unsettled=unsettled)
    return Known(chunks=tuple(chunk for chunk in chunks if chunk.path not in changed), read_as=found)


def _is_rewritten(stores: Ports, looked: Looked, chunks: Iterable[Chunk], told: Mapping[str, _Told]) -> bool:
    """Whether the log has other records where those of *chunks* were.

    The newest one of each partition answers for all below: two logs with one record of one leader agree up to it.
    """
    read: dict[int, tuple[int, int | None]] = {}
    for chunk in chunks:
        for p, epoch in told[chunk.path].epochs.items():
            high = chunk.ranges[p][1]
            if high > read.get(p, (-1, None))[0]:
                read[p] = (high, epoch)
    try:
        check_epochs(looked.table, stores.log, read)
    except LogRewritten as error:
        log.warning("cut.log_rewritten", table=looked.table.name, detail=str(error))
        return True
    return False


def _unsettled_now(stores: Ports, looked: Looked, tail: TailPart, spans: Ranges) -> dict[int, tuple[int, ...]]:
    """Which records of *spans* are no rows now, and may be rows later."""
    low, high = ({p: run[at] for p, run in spans.items()} for at in (0, 1))
    found: dict[int, tuple[int, ...]] = {p: () for p in spans}
    for batch in tail_batches(stores, looked.table, replace(tail, low=low, high=high)):
        found[batch.partition] += batch.unsettled
    return found
