"""The states of `cuts`, and what an engine and `fsck` find in a cut of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol import chunk_plan, cuts
from harness_pipelines.protocol.changes.corrections import settled_below
from harness_pipelines.protocol.cut_checks import ListedCut, ListedData, ListedDeletes
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import Published

ODD = 0  #: the offset of the record that is refused, where one is
IDLE, ASKED, LOOKED, WRITTEN, PUBLISHED = range(5)
Rows = tuple[tuple[int, int], ...]  #: offset and value


class File(NamedTuple):
    low: int
    high: int
    sequence: int
    rows: Rows


class Lake(NamedTuple):
    """A version; its number is its place."""

    schema: int = 1
    batch_hi: int = 0
    stream_hi: int = 0
    buffer_hi: int = 0
    stream: tuple[File, ...] = ()
    wrote: int = 1  #: the version whose metadata of the stream view it has
    sequence: int = 0  #: of the newest commit to either view
    batch: Rows = ()
    generation: int = 0  #: of recalled rows; 0: none
    recalled: Rows = ()
    revert_of: int = 0


class Piece(NamedTuple):
    """A chunk: the offsets that it says it has, and the rows of its file."""

    low: int
    high: int
    rows: Rows
    maker: str
    sequence: int


class Cut(NamedTuple):
    sequence: int
    id: int
    version: int
    bound: tuple[int, int, int, int]
    freshness: str
    chunks: tuple[Piece, ...]
    recalled: tuple[Piece, ...]
    key: str  #: of the part of the stream view
    files: tuple[File, ...]
    hidden: tuple[tuple[int, File, int], ...]  #: sequence of the deletes, file, offset
    batch: Rows

    @property
    def bounds(self) -> Mapping[int, tuple[int, int, int, int]]:
        return {0: self.bound}


class Plan(NamedTuple):
    version: int
    bound: tuple[int, int, int, int]
    decoder: int


class Load(NamedTuple):
    """One server, and the load that it is at."""

    pc: int = IDLE
    since: tuple[int, int] = (0, 0)  #: version and high of the newest answer that anybody had when the load began
    base: Cut | tuple[()] = ()
    last: int = 0  #: the highest sequence so far, when it asked
    plan: Plan | tuple[()] = ()
    draft: Cut | tuple[()] = ()
    late: bool = False  #: its lease has ended
    known: Cut | tuple[()] = ()  #: what it answered with last


class Left(NamedTuple):
    """What may still happen."""

    loads: int = 3
    merges: int = 0
    compactions: int = 0
    reverts: int = 0
    evolutions: int = 0
    decoders: int = 0
    recalls: int = 0
    forgets: int = 0
    crashes: int = 0
    lags: int = 0  #: looks at a log whose end is not known yet


class State(NamedTuple):
    buffer_hi: int
    decoder: int
    versions: tuple[Lake, ...]
    held: bool  #: the odd record is in quarantine
    slipped: bool  #: a mutant has put it into the buffer
    newest: Cut | tuple[()]
    last: int  #: the highest sequence that was given
    seen: tuple[tuple[int, int, Rows], ...]  #: sequence, id and rows of what was published
    answered: tuple[int, int]
    loads: tuple[Load, ...]
    left: Left

    @property
    def head(self) -> Lake:
        return self.versions[-1]


@cache
def settled_of(head: Lake) -> int:
    row = Published((head.stream_hi,), (head.buffer_hi,), 1, batch_hi=(head.batch_hi,), batch_snapshot=1)
    return settled_below(build.version(1, row))[0]


@cache
def chunk_of(at: int, piece: Piece) -> cuts.Chunk:
    ranges = {0: (piece.low, piece.high)}
    rows = len(piece.rows)
    return cuts.Chunk(
        path=str(at),
        ranges=ranges,
        rows=rows,
        bytes=rows,
        sequence=piece.sequence,
        maker=piece.maker,
        entry="",
        held=rows,
    )


@cache
def planned(pieces: tuple[Piece, ...], low: int, high: int, maker: str) -> tuple[tuple[int, ...], tuple[Writing, ...]]:
    """Places of the chunks that stay; and what is written: its range, places of its sources, what is read."""
    found = chunk_plan.chunk_plan(
        [chunk_of(at, one) for at, one in enumerate(pieces)], {0: low}, {0: high}, maker=maker
    )
    writing = tuple((w.ranges[0], tuple(int(c.path) for c in w.sources), w.read.get(0)) for w in found.written)
    return tuple(int(chunk.path) for chunk in found.kept), writing


Writing = tuple[tuple[int, int], tuple[int, ...], tuple[int, int] | None]


@cache
def id_of(version: int, bound: tuple[int, int, int, int], makers: tuple[str, ...], sequence: int) -> int:
    return cuts.snapshot_id(1, version, {0: bound}, makers=makers, sequence=sequence)


def between(rows: Rows, low: int, high: int) -> Rows:
    return tuple(row for row in rows if low <= row[0] < high)


def rows_of(cut: Cut) -> Rows:
    """What an engine finds: deletes hide rows of files that are no newer."""
    hidden = {(file, offset) for sequence, file, offset in cut.hidden if sequence >= file.sequence}
    stream = [row for file in cut.files for row in file.rows if (file, row[0]) not in hidden]
    chunks = [row for piece in (*cut.chunks, *cut.recalled) for row in piece.rows]
    return tuple(sorted([*cut.batch, *stream, *chunks]))


def listed_of(cut: Cut) -> ListedCut:
    """What the metadata of a cut says."""
    pieces = enumerate((*cut.chunks, *cut.recalled))
    data = [ListedData(path="batch", rows=len(cut.batch), sequence=0)]
    data += [ListedData(path=str(file), rows=len(file.rows), sequence=file.sequence) for file in cut.files]
    data += [ListedData(path=f"chunk {at}", rows=len(piece.rows), sequence=piece.sequence) for at, piece in pieces]
    deletes = [
        ListedDeletes(path=f"deletes of {file}", sequence=at, hidden={str(file): offsets})
        for file in cut.files
        for at in {sequence for sequence, of, _ in cut.hidden if of == file}
        if (offsets := sum(of == file and sequence == at for sequence, of, _ in cut.hidden))
    ]
    return ListedCut(
        snapshot_id=cut.id,
        sequence=cut.sequence,
        version=cut.version,
        bounds=cut.bounds,
        freshness=cut.freshness,
        data=tuple(data),
        deletes=tuple(deletes),
    )
