"""Pure rules of cuts: identity, size, order and times.

A cut is one version of the lake with the rows above it up to one vector of offsets, written as one snapshot of Iceberg.
The rows that the lake does not have are in *chunks*, small immutable files that later cuts name again (`chunk_plan`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b, sha256
from json import dumps
from typing import Any, Protocol
from uuid import NAMESPACE_URL, UUID, uuid5

from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.protocol.bounds import Vector
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
