"""The history in the lake's metadata, and how a lost or restored ledger continues it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.bounds import OffsetRange, Vector

RANGES_PROPERTY = "harness.ranges"
HISTORY_LOST, PROMOTED = "history_lost", "promoted"  #: events behind which versions continue from a larger number


class HistoryBroken(HarnessError):
    """The lake's metadata does not continue the ledger; nothing can be adopted from it."""

    way_on = "restore the warehouse or the database from a backup; then run `harness reconcile TABLE --dry-run`"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastMove:
    """A published move, as the summary of its snapshot tells it."""

    move_id: int
    attempt: int
    schema_version: int
    ranges: tuple[OffsetRange, ...]
    rows: int
    bytes: int
    snapshot: int
    nonce: str = ""  #: "": the move is older than nonces

    @property
    def lo(self) -> dict[int, int]:
        return {r.partition: r.low for r in self.ranges}

    @property
    def hi(self) -> dict[int, int]:
        return {r.partition: r.high for r in self.ranges}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NamedMove:
    """A move that a metadata file names."""

    move_id: int
    nonce: str  #: "": nothing tells it


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRows:
    """The live rows of one partition: their count and the run of offsets ``[low, high)`` that they lie in."""

    rows: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """How the ledger continues after it takes over the lake's newest metadata."""

    stream_hi: Mapping[int, int]  #: of every partition that ledger or lake know
    moves: tuple[PastMove, ...]  #: that the ledger does not count as published, oldest first
    unnamed: Mapping[int, tuple[int, int]]  #: ranges whose snapshots have expired: no move names them


def parse_ranges(text: str) -> tuple[OffsetRange, ...]:
    """The ranges of a summary, ``"0:5-9,1:0-4"``. Raises: HistoryBroken."""
    try:
        named = [part.split(":") for part in text.split(",") if part]
        found = [(int(partition), *map(int, offsets.split("-"))) for partition, offsets in named]
        return tuple(OffsetRange(partition=p, low=low, high=high) for p, low, high in found)
    except ValueError as error:
        raise HistoryBroken(f"a snapshot's {RANGES_PROPERTY} is {text!r}, which are no ranges") from error


def continue_from(stream_hi: Vector, moves: Sequence[PastMove], extents: Mapping[int, LiveRows]) -> Continued:
    """Return what follows the ledger's *stream_hi* in a lake whose main branch *moves* made (oldest first).

    A partition of which no kept snapshot tells ends behind its last row: what lies above it up to the true position
    were records without a row, and taking them from Kafka again is right.

    Raises: HistoryBroken when the lake holds less than the ledger, or ranges leave a gap or overlap.
    """
    reached = dict(stream_hi)
    unnamed: dict[int, tuple[int, int]] = {}
    told: set[int] = set()
    following = []
    for move in moves:
        fresh = tuple(r for r in move.ranges if r.high > stream_hi.get(r.partition, -1))
        for taken in fresh:
            before = reached.get(taken.partition, taken.low)
            if taken.low > before and taken.partition not in told:
                unnamed[taken.partition] = (before, taken.low)
            elif taken.low != before:
                raise HistoryBroken(
                    f"move {move.move_id} takes partition {taken.partition} from offset {taken.low}, but what is "
                    f"published before it ends at {before}: the lake does not continue this ledger"
                )
            reached[taken.partition] = taken.high
            told.add(taken.partition)
        if fresh:
            following.append(move)
    for partition, extent in extents.items():
        known = reached.get(partition, extent.low)
        reached.setdefault(partition, known)
        if extent.high > known:
            if partition in told:
                raise HistoryBroken(
                    f"partition {partition} has rows up to offset {extent.high - 1}, its last move ends at {known}"
                )
            unnamed[partition] = (known, extent.high)
            reached[partition] = extent.high
    return Continued(stream_hi=reached, moves=tuple(following), unnamed=unnamed)


def floor_after(trim_floor: int, *, buffer_hi: int, stream_hi: int) -> int:
    """From where on the buffer has every record of a partition once the ledger has taken over a lake up to *stream_hi*.

    The buffer never held the lake's rows above *buffer_hi*: no revert may return them to the buffer.
    """
    return max(trim_floor, stream_hi) if stream_hi > buffer_hi else trim_floor


def check_not_shorter(stream_hi: Vector, moves: Iterable[PastMove]) -> None:
    """The lake must reach at least as far as the ledger, where it records its reach.

    Raises: HistoryBroken.
    """
    reached: dict[int, int] = {}
    for move in moves:
        reached.update(move.hi)
    for partition, high in sorted(reached.items()):
        if high < stream_hi.get(partition, 0):
            raise HistoryBroken(
                f"the lake's newest metadata ends partition {partition} at {high}, the ledger at "
                f"{stream_hi[partition]}: it is the lake that was set back, not the ledger"
            )


def lost_of(named: Iterable[NamedMove], known: Mapping[int, Collection[str]], *, highest: int) -> list[NamedMove]:
    """Of the moves that the lake names those that the ledger never had, or gave the number of to another move.

    No move writes a file before the ledger has its row, so each of them stands for history that the ledger lost.
    *known* has the nonces of the ledger's moves by number. Without a nonce only the number can tell: above *highest*,
    the largest that the ledger gave to a move of the table that writes files.
    """

    def is_lost(one: NamedMove) -> bool:
        if not one.nonce:
            return one.move_id > highest and one.move_id not in known
        return not {one.nonce, ""} & set(known.get(one.move_id, ()))

    return sorted(one for one in set(named) if is_lost(one))


def number_behind(given: int, *, now: datetime) -> int:
    """A number that no history gave before: the present moment in milliseconds, if not yet larger.

    What a lost history gave out cannot be asked for. But each history continues from one more than it has, from its own
    beginning or from such a moment, and no table publishes a thousand versions a second for long.
    """
    return max(given + 1, int(now.timestamp() * 1000))
