"""Pure rules of cuts: identity, order, and which rows of the buffer go to which chunk.

A cut is one version of the lake with the rows above it up to one vector of offsets, written as one snapshot of Iceberg.
The rows that the lake does not have are in *chunks*, small immutable files that later cuts name again. That small
chunks are put together while they are smaller than twice the next one is the rule of a log-structured merge (O'Neil et
al., "The Log-Structured Merge-Tree", 1996): each row is written about log2 times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from uuid import NAMESPACE_URL, UUID, uuid5

import orjson

BEHIND_MS = 10_000  #: a cut's time before the server's clock: engines read as of the start of their transaction

#: Per partition ``(start, batch_hi, stream_hi, high)``: `high` is `buffer_hi`, or the end of a decoded tail.
CutBounds = Mapping[int, tuple[int, int, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One file with the rows of *ranges* that the lake does not have."""

    path: str
    ranges: Mapping[int, tuple[int, int]]  #: half-open offsets by partition; all rows of these, none besides
    rows: int
    bytes: int
    sequence: int  #: of the first cut that named it
    #: What its rows were made with: its columns, and for a tail the decoder. Another maker starts new chunks.
    maker: str
    entry: str  #: JSON of the lake, which alone reads it: what the manifest says of the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """A chunk that has to be written."""

    ranges: Mapping[int, tuple[int, int]]
    sources: tuple[Chunk, ...]  #: the chunks whose rows in *ranges* it takes over
    read: Mapping[int, tuple[int, int]]  #: the ranges that have to be read from the tier itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlan:
    """Which chunks a cut has: together they have the wanted offsets, each once."""

    kept: tuple[Chunk, ...]
    written: tuple[Writing, ...]


def table_uuid(warehouse: str, table_id: int) -> UUID:
    """The id that all cuts of a table have: the same in all servers."""
    return uuid5(NAMESPACE_URL, f"{warehouse.rstrip('/')}#{table_id}")


def snapshot_id(table_id: int, version: int, bounds: CutBounds) -> int:
    """The id of a cut's snapshot, positive and of 63 bits."""
    told = f"{table_id}/{version}/{bounds_text(bounds)}".encode()
    return int.from_bytes(blake2b(told, digest_size=8).digest()) >> 1 or 1


def bounds_text(bounds: CutBounds) -> str:
    """*bounds* as JSON, by partition: the same text for the same bounds."""
    return orjson.dumps({str(p): list(bounds[p]) for p in sorted(bounds)}).decode()


def timestamp_ms(now_ms: int, last_ms: int | None) -> int:
    """The time of a cut that is made at *now_ms*, after one of *last_ms*."""
    return max(now_ms - BEHIND_MS, 0 if last_ms is None else last_ms + 1)


def fresh_folder(warehouse: str, *, namespace: str, name: str, uuid: UUID) -> str:
    """Where the files of a table's cuts lie: beside its views."""
    return f"{warehouse.rstrip('/')}/{namespace}/{name}__fresh-{uuid.hex[:8]}"
