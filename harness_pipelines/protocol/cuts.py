"""Pure rules of cuts: identity, order, times, and which rows of the buffer go to which chunk.

A cut is one version of the lake with the rows above it up to one vector of offsets, written as one snapshot of Iceberg.
The rows that the lake does not have are in *chunks*, small immutable files that later cuts name again. That small
chunks are put together while they are smaller than twice the next one is the rule of a log-structured merge (O'Neil et
al., "The Log-Structured Merge-Tree", 1996): each row is written about log2 times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b, sha256
from itertools import pairwise
from json import dumps
from typing import Any, Protocol
from uuid import NAMESPACE_URL, UUID, uuid5

from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.ranges import hull, offset_count
from harness_pipelines.protocol.reading.narrowing import Ranges

#: Per partition ``(start, batch_hi, stream_hi, high)``: `high` is `buffer_hi`, or the end of a decoded tail. A cut has
#: the rows below it, and no others. In the merged state of a keyed table `high` and `stream_hi` are `batch_hi`.
CutBounds = Mapping[int, tuple[int, int, int, int]]

#: A chunk has no more, but for a single row, and is not put together with others beyond it: its rows are held in memory
#: while it is written. Bytes are those of the rows in memory; the file has fewer.
CHUNK_ROWS_MAX = 1 << 19
CHUNK_BYTES_MAX = 64 * 2**20
#: The ledger takes 10,000 cuts of a table that are alive; servers whose `--keep` differ make fewer.
CUTS_ALIVE_MAX = 5_000
REUSE = timedelta(milliseconds=100)  #: engines load a table two to four times in one query
MAKING_MAX = timedelta(minutes=2)  #: from the look to the publication of a cut: the maker's lease
#: How old a chunk that no cut names may be when a server begins a cut with it: what one cut had no time for, the next
#: one of the same server goes on from.
UNNAMED_MAX = timedelta(minutes=15)
#: No file that no cut names is an orphan earlier, whatever the grace is, nor is deleted earlier than this after it was
#: found to be one (`upkeep/ripe`).
CONDEMNED_FROM = UNNAMED_MAX + 2 * MAKING_MAX
#: What the ledger takes of a cut (`cuts_are_small` of its migration), as JSON. It keeps chunks and parts of the last
#: cut of a table alone. A topic of 2,000 partitions has 190 KB of bounds, and up to 105 KB of ranges in each chunk, of
#: which it may have 150: 20 for the last half a million rows, and one for each half a million below.
FILES_MAX = 1_000  #: that a cut names in the fresh folder: chunks, deletes, manifests, its list and its metadata
FILES_BYTES_MAX = 256 * 2**10  #: of their paths
BOUNDS_BYTES_MAX = 2**20
PARTS_BYTES_MAX = 2**20
CHUNKS_BYTES_MAX = 16 * 2**20
BEHIND_MS = 10_000  #: an engine may read as of the start of its transaction
#: Among the makers of the cut of a named snapshot: it has the same rows as a cut of that moment had, and another id.
NAMED_MAKER = "as of a named snapshot"


class OlderCut(HarnessError):
    """A cut would follow one that shows more; the newest one is served instead."""

    recovery = Recovery.REFRESH


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One file with the rows of *ranges* that the lake does not have."""

    path: str
    ranges: Ranges  #: all rows of these, none besides
    rows: int
    bytes: int
    sequence: int  #: of the first cut that named it
    #: What its rows were made with: its columns, and for a tail the decoder. Another maker starts new chunks.
    maker: str
    entry: str  #: JSON of the lake, which alone reads it: what the manifest says of the file
    held: int = 0  #: bytes of its rows in memory
    read_as: str = ""  #: JSON of the tail, which alone reads it: what its rows depend on besides the maker


# -- identity ---------------------------------------------------------------------------------------------------


def snapshot_id(table_id: int, version: int, bounds: CutBounds, *, sequence: int, makers: Iterable[str] = ()) -> int:
    """The id of a cut's snapshot: positive, of 63 bits, and made of its number and all that decides its rows.

    *makers* are those of its chunks, recalled ones too: they name the columns, the decoder of a tail, and generations.
    Their order, and that of partitions, does not count. *sequence* is the cut's: a state that comes back, as when a
    decoder is changed and changed back, has another cut, and both may be alive. Whether a cut is that of a state shows
    by the id that the state has with the cut's sequence.
    """
    content = [table_id, version, bounds_text(bounds), sorted(set(makers)), sequence]
    digest = blake2b(dumps(content).encode(), digest_size=8, person=b"harness-cut").digest()
    return (int.from_bytes(digest, "big") >> 1) or 1


def table_uuid(warehouse: str, table_id: int) -> UUID:
    """The id that all cuts of a table have: the same in all servers."""
    return uuid5(NAMESPACE_URL, f"{warehouse.rstrip('/')}#{table_id}")


def is_cut_folder(folder: str) -> bool:
    """Return whether a folder is named as those of cuts are."""
    return re.search(r"/[a-z0-9_]+__fresh-[0-9a-f]{8}\Z", folder) is not None


def bounds_text(bounds: CutBounds) -> str:
    """*bounds* as JSON, by partition: the same text for the same bounds."""
    return dumps(bounds_json(bounds), separators=(",", ":"))


def etag(metadata: str) -> str:
    """The ETag of an answer: the same answer names the same files.

    The snapshot id does not do. A table that does not move has the same id again once its cut was forgotten, with other
    files, and an engine that is answered that nothing has changed goes on with those that are gone.
    """
    return f'"{blake2b(metadata.encode(), digest_size=16, person=b"harness-etag").hexdigest()}"'


def part_key(metadata: str, read: Vector | Ranges, *shape: object) -> str:
    """The key of a view's part of a cut: what the manifests of its files, and deletes of other rows, are made of.

    *read* are the offsets that a plan reads of the view, or where these begin; *shape* is JSON of its columns.
    """
    return dumps([metadata, sorted(read.items()), *shape], separators=(",", ":"))


def cut_folder(name: str, metadata: str) -> str:
    """The folder of the cuts of the table *name*, whose tiered view has the metadata file *metadata*.

    It lies beside the folder of that view, and is named after it: that folder's name is only this table's. The ledger
    works it out by itself (`harness.cut_folder`), since expire lists it, and since a cut may name no other files.
    Below it are `data` and `metadata`, as in the folder of a view.
    """
    view = re.sub(r"/metadata/[^/]*\Z", "", metadata)
    return f"{view.rpartition('/')[0]}/{name}__fresh-{sha256(view.encode()).hexdigest()[:8]}"


# -- JSON -------------------------------------------------------------------------------------------------------


def bounds_json(bounds: CutBounds) -> dict[str, list[int]]:
    """Bounds as the ledger has them."""
    return {str(p): list(bounds[p]) for p in sorted(bounds)}


def bounds_of_json(written: Mapping[str, Any]) -> CutBounds:
    """The bounds of `bounds_json`. Raises: ValueError, LookupError, TypeError, AttributeError for anything else."""
    return {int(p): (bound[0], bound[1], bound[2], bound[3]) for p, bound in written.items()}


def chunk_json(chunk: Chunk) -> dict[str, object]:
    """A chunk as the ledger has it."""
    fields = {word: getattr(chunk, word) for word in Chunk.__dataclass_fields__}
    return {**fields, "ranges": {str(p): list(span) for p, span in chunk.ranges.items()}}


def chunk_of_json(written: Mapping[str, Any]) -> Chunk:
    """The chunk of `chunk_json`. Raises: as `bounds_of_json`."""
    ranges = {int(p): (span[0], span[1]) for p, span in written["ranges"].items()}
    return Chunk(**{**written, "ranges": ranges})


def parts_json(parts: Mapping[str, tuple[str, str]]) -> dict[str, dict[str, str]]:
    """The parts of a cut as the ledger has them; each has a key and manifests."""
    return {name: {"key": key, "manifests": manifests} for name, (key, manifests) in parts.items()}


# -- size -------------------------------------------------------------------------------------------------------


def too_large(
    bounds: CutBounds,
    *,
    chunks: Iterable[Chunk] = (),
    parts: Mapping[str, tuple[str, str]] | None = None,
    files: Sequence[str] = (),
) -> str | None:
    """What of a cut is more than the ledger takes, with the way on; None: nothing. *parts* have a key and manifests.

    JSON is measured as it is written here, which is no shorter than what the ledger stores: characters beyond ASCII are
    longer. What is known before files are written is asked before; all of it when the cut is published.
    """
    sizes = (
        ("files", len(files), FILES_MAX, _MANY_FILES),
        ("bytes of paths of files", sum(len(path.encode()) for path in files), FILES_BYTES_MAX, _MANY_FILES),
        (f"bytes of bounds of {len(bounds):,} partitions", len(dumps(bounds_json(bounds))), BOUNDS_BYTES_MAX, _WIDE),
        ("bytes of parts", len(dumps(parts_json(parts or {}))), PARTS_BYTES_MAX, _MANY_FILES),
        ("bytes of chunks", len(dumps([chunk_json(one) for one in chunks])), CHUNKS_BYTES_MAX, _MUCH_BUFFERED),
    )
    found = next(((what, size, most, way_on) for what, size, most, way_on in sizes if size > most), None)
    if found is None:
        return None
    what, size, most, way_on = found
    return f"a cut of it has {size:,} {what}, and the ledger takes {most:,}; {way_on}"


_MANY_FILES = "let otree merge up to `stream_hi`, so that fewer files of the stream view reach across `batch_hi`"
_MUCH_BUFFERED = "let a worker tier the table, so that less is above the lake"
_WIDE = "read it by `harness sql`: a table of so many partitions cannot be served"


# -- order ------------------------------------------------------------------------------------------------------


class HasOrder(Protocol):
    """What the order of two cuts depends on."""

    @property
    def sequence(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def bounds(self) -> CutBounds: ...


def check_newest(table: str, *, newest: int | None, previous: int | None) -> None:
    """A cut is published only on the newest one: *previous* is the sequence of the one that it was made after.

    Raises: OlderCut (REFRESH).
    """
    if newest != previous:
        raise OlderCut(
            f"{table}: a cut was made after the one with sequence {previous}, the newest one has {newest}; it was not "
            "published"
        )


def follows(table: str, previous: HasOrder, following: HasOrder) -> None:
    """The cut *following* shows no older state than *previous*: who has read one may be given the other (S4).

    No partition's `high` falls, none vanishes, the version does not fall, the sequence rises. The merged state of a
    keyed table ends at `batch_hi`, which a revert lowers: it may fall with a new version, if both cuts are such.
    Raises: OlderCut (REFRESH).
    """
    if following.sequence <= previous.sequence:
        raise OlderCut(f"{table}: a cut with sequence {following.sequence} cannot follow {previous.sequence}")
    if following.version < previous.version:
        raise OlderCut(f"{table}: a cut of version {following.version} cannot follow one of version {previous.version}")
    for partition, (_, batch_hi, _, high) in sorted(previous.bounds.items()):
        now = following.bounds.get(partition)
        if now is None:
            raise OlderCut(f"{table}: a cut without partition {partition} cannot follow one with it, below {high}")
        is_reverted = high == batch_hi and now[3] == now[1] and following.version > previous.version
        if now[3] < high and not is_reverted:
            raise OlderCut(
                f"{table}: partition {partition} of a cut ends at offset {now[3]}, that of the cut before at {high}"
            )


def next_sequence(last: int | None, views: Iterable[int]) -> int:
    """The sequence number of the next cut: above that of the *last* one and those of the *views* that it names.

    Position deletes hide rows of files with the same or a lower sequence number only, so commits to a view that no cut
    has followed count. *last* is the highest number ever given, not that of the newest cut that is still there.
    """
    return max([last or 0, *views]) + 1


def next_timestamp(last_ms: int | None, now_ms: int) -> int:
    """The time of the next cut in milliseconds: ten seconds before *now_ms*, and after that of the *last* one."""
    return now_ms - BEHIND_MS if last_ms is None else max(last_ms + 1, now_ms - BEHIND_MS)


# -- times ------------------------------------------------------------------------------------------------------


def shows_all_of(cut: HasOrder, *, version: int, bounds: CutBounds) -> bool:
    """Whether *cut* shows all that a look at *version* and *bounds* has found, so that it answers for that look."""
    ends = {p: high for p, (_, _, _, high) in cut.bounds.items()}
    return cut.version >= version and all(ends.get(p, -1) >= high for p, (_, _, _, high) in bounds.items())


def is_young(looked_at: datetime, until: datetime, *, now: datetime, every: timedelta = REUSE, keep: timedelta) -> bool:
    """True if a cut may be served without a look, since its maker's was less than *every* ago, whatever server it was.

    Or less than the part of the time that files stay by which the ledger is never full: the longest *keep* of all
    servers counts, since who serves a cut for longer than its maker promised has moved *until*. All times are by the
    ledger's clock, so that several servers make no more cuts than one.
    """
    return was_within(max(every, max(keep, until - looked_at) / CUTS_ALIVE_MAX), looked_at, now=now)


def was_within(time: timedelta, moment: datetime, *, now: datetime) -> bool:
    """True if *moment* was less than *time* ago. One that has not come is of a clock that was set back: it was not."""
    return timedelta(0) <= now - moment < time


def may_forget(until: datetime, *, now: datetime, grace: timedelta) -> bool:
    """True once the row of a cut may go: the files of its last answer were promised up to *until*.

    Whatever a cut names stays as long as its row is there, whatever the clock says: a server may be about to serve it.
    So expire first removes rows, which waits for servers that move *until*, and decides about files afterwards.
    """
    return until + grace <= now


def may_condemn(written_at: datetime, *, now: datetime, grace: timedelta) -> bool:
    """True if a file of the fresh folder that no row names is an orphan: a cut that is being made has younger ones.

    The files that such a cut takes over have the row of the cut before, or the cut cannot be published; or its server
    wrote them for a cut that it did not publish. These were no older than `UNNAMED_MAX` when the cut was begun, and so
    are no older than that and `MAKING_MAX` when it is published. As much again is for clocks: *written_at* is the
    store's.
    """
    return written_at + max(grace, CONDEMNED_FROM) <= now


def may_begin_with(written_at: datetime, *, now: datetime) -> bool:
    """True if a cut that is begun *now* may name a chunk that its server wrote before, and that no cut names.

    *written_at* is a moment before the chunk was written. Both times are of the ledger's clock, by which the lease of a
    maker ends too: a server that slept does not take an old file for a young one.
    """
    return now - written_at <= UNNAMED_MAX


# -- chunks -----------------------------------------------------------------------------------------------------


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
