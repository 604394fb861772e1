"""Which rows above the lake go to which chunk of a cut: what stays, what is put together, what is read.

That small chunks are put together while they are smaller than twice the next one is the rule of a log-structured merge
(O'Neil et al., "The Log-Structured Merge-Tree", 1996): each row is written about log2 times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.cuts import CHUNK_BYTES_MAX, CHUNK_ROWS_MAX, Chunk
from harness_pipelines.protocol.ranges import hull, offset_count
from harness_pipelines.protocol.reading.narrowing import Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """A chunk that has to be written."""

    ranges: Ranges
    sources: tuple[Chunk, ...]  #: the chunks whose rows in *ranges* it takes over, oldest offsets first
    read: Ranges  #: the ranges that have to be read from the tier itself, above or below the sources


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlan:
    """Which chunks a cut has: together they have the wanted offsets, each once."""

    kept: tuple[Chunk, ...]
    written: tuple[Writing, ...]
    gone: tuple[Chunk, ...] = ()  #: those of the last cut that are not kept; some are sources


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A run of wanted offsets in each of some partitions, which one chunk has, or none. Its size is an estimate."""

    ranges: Ranges
    rows: int
    bytes: int
    source: Chunk | None = None


def chunk_plan(
    chunks: Iterable[Chunk],
    low: Vector,
    high: Vector,
    *,
    maker: str,
    rows_max: int = CHUNK_ROWS_MAX,
    bytes_max: int = CHUNK_BYTES_MAX,
) -> ChunkPlan:
    """Which chunks of the last cut stay, which are written, and which offsets are read from the buffer.

    *chunks* are those of the last cut, in any order, but the recalled ones, which lie at offsets of the batch view.
    Wanted are the offsets ``[low, high)`` of each partition of *high*, with columns of *maker*. What is read at one end
    of the chunks is one `Writing`, however much it is: it is read in one pass, and written as several chunks if its
    rows turn out to be more than one may have.

    The weight of a chunk is its rows, since these are what is written again. Of offsets that are still to be read it is
    their number, which is known before they are read and no less than their rows. So a log with gaps costs no more than
    one without. From the newest on, a piece joins the next newer ones while it is smaller than twice these. Afterwards
    each chunk has at least twice the rows of the next newer one, so there are about log2 of all rows, and a row that is
    written again is in a chunk 1.5 times as large. What would be larger than *rows_max* or *bytes_max* is not joined.
    """
    known = list(chunks)
    wanted = {p: (low[p], end) for p, end in sorted(high.items()) if low[p] < end}
    pieces = _in_order(_usable(known, wanted, maker))
    rows = sum(piece.rows for piece in pieces)
    size = -(-sum(piece.bytes for piece in pieces) // rows) if rows else 0
    below, between, above = _gaps([piece.ranges for piece in pieces], wanted)
    ordered = [*_unread(below, size), *pieces]
    for gap in (*between, above):
        ordered += _unread(gap, size)
    groups = _grouped(ordered, rows_max, bytes_max)
    kept = [chunk for group in groups if (chunk := _kept(group)) is not None]
    written = [_writing(group) for group in groups if _kept(group) is None]
    gone = tuple(chunk for chunk in known if not any(chunk is one for one in kept))
    return ChunkPlan(kept=tuple(kept), written=tuple(written), gone=gone)


def _usable(chunks: Iterable[Chunk], wanted: Ranges, maker: str) -> list[_Piece]:
    """What the chunks have of the *wanted* offsets.

    One that reaches above them, or into another one, cannot be. Its rows are read again rather than trusted.
    """
    pieces: list[_Piece] = []
    for chunk in chunks:
        runs = {p: run for p, run in chunk.ranges.items() if run[0] < run[1]}
        if chunk.maker != maker or any(run[1] > wanted.get(p, run)[1] for p, run in runs.items()):
            continue
        inside = {p: (max(a, wanted[p][0]), b) for p, (a, b) in runs.items() if p in wanted and b > wanted[p][0]}
        if not inside or any(_overlap(inside, piece.ranges) for piece in pieces):
            continue
        rows, size = (-(-whole * offset_count(inside) // offset_count(runs)) for whole in (chunk.rows, chunk.held))
        pieces.append(_Piece(ranges=inside, rows=rows, bytes=size, source=chunk))
    return pieces


def _in_order(pieces: Iterable[_Piece]) -> list[_Piece]:
    """By offsets, lowest first, wherever two have a partition in common."""
    left, ordered = list(pieces), list[_Piece]()
    while left:
        lowest = next((one for one in left if not any(_is_below(other, one) for other in left)), left[0])
        left.remove(lowest)
        ordered.append(lowest)
    return ordered


def _gaps(held: Sequence[Ranges], wanted: Ranges) -> tuple[Ranges, list[Ranges], Ranges]:
    """The wanted offsets that nothing holds: below what is held (after a revert), between (cannot be), above."""
    below, between, above = dict[int, tuple[int, int]](), list[Ranges](), dict[int, tuple[int, int]]()
    for p, (low, high) in wanted.items():
        runs = sorted(ranges[p] for ranges in held if p in ranges)
        if not runs:
            above[p] = (low, high)
            continue
        if low < runs[0][0]:
            below[p] = (low, runs[0][0])
        between += [{p: (a[1], b[0])} for a, b in pairwise(runs) if a[1] < b[0]]
        if runs[-1][1] < high:
            above[p] = (runs[-1][1], high)
    return below, between, above


def _unread(gap: Ranges, row_bytes: int) -> Iterator[_Piece]:
    """*gap* as a piece, if it has an offset."""
    if gap:
        yield _Piece(ranges=gap, rows=offset_count(gap), bytes=offset_count(gap) * row_bytes)


def _grouped(pieces: Sequence[_Piece], rows_max: int, bytes_max: int) -> list[list[_Piece]]:
    """The pieces that are put together, oldest first."""
    groups: list[list[_Piece]] = []  # newest first, as are the pieces in each
    for piece in reversed(pieces):
        if groups and _joins(piece, groups[-1], rows_max, bytes_max):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return [group[::-1] for group in reversed(groups)]


def _joins(older: _Piece, newer: Sequence[_Piece], rows_max: int, bytes_max: int) -> bool:
    rows = sum(piece.rows for piece in newer)
    if older.rows + rows > rows_max or older.bytes + sum(piece.bytes for piece in newer) > bytes_max:
        return False
    # Without rows a chunk counts as one, else empty ones would never join.
    return max(older.rows, 1) < 2 * max(rows, 1) and _fits(older, newer)


def _fits(older: _Piece, newer: Sequence[_Piece]) -> bool:
    """A chunk has one run of each partition, and reads one."""
    shared = {p: [piece for piece in newer if p in piece.ranges] for p in older.ranges}
    if any(held and older.ranges[p][1] != min(piece.ranges[p][0] for piece in held) for p, held in shared.items()):
        return False
    return older.source is not None or not any(
        older.ranges[p][1] != piece.ranges[p][0] for p, held in shared.items() for piece in held if piece.source is None
    )


def _kept(group: Sequence[_Piece]) -> Chunk | None:
    """The chunk that a group is, if it stays as it is."""
    source = group[0].source
    return source if source is not None and len(group) == 1 and dict(group[0].ranges) == dict(source.ranges) else None


def _writing(group: Sequence[_Piece]) -> Writing:
    return Writing(
        ranges=hull(piece.ranges for piece in group),
        sources=tuple(piece.source for piece in group if piece.source is not None),
        read=hull(piece.ranges for piece in group if piece.source is None),
    )


def _is_below(one: _Piece, other: _Piece) -> bool:
    """True if *one* has lower offsets than *other* in a partition of both."""
    return any(p in other.ranges and run[0] < other.ranges[p][0] for p, run in one.ranges.items())


def _overlap(one: Ranges, other: Ranges) -> bool:
    return any(p in other and run[0] < other[p][1] and other[p][0] < run[1] for p, run in one.items())
