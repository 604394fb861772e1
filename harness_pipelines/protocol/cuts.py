"""Pure rules of cuts: identity, order, and which rows of the buffer go to which chunk.

A cut is one version of the lake with the rows above it up to one vector of offsets, written as one snapshot of Iceberg.
The rows that the lake does not have are in *chunks*, small immutable files that later cuts name again. That small chunks
are put together while they are smaller than twice the next one is the rule of a log-structured merge (O'Neil et al.,
"The Log-Structured Merge-Tree", 1996): each row is written about log2 times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

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
    maker: (
        str  #: what its rows were made with: its columns, and for a tail the decoder; another maker starts new chunks
    )
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


def cut_folder(name: str, metadata: str) -> str:
    """The folder of the cuts of the table *name*, whose tiered view has the metadata file *metadata*.

    It lies beside the folder of that view, and is named after it: that folder's name is only this table's. The ledger
    works it out by itself (`harness.cut_folder`), since expire lists it, and since a cut may name no other files.
    Below it are `data` and `metadata`, as in the folder of a view.
    """
    view = re.sub(r"/metadata/[^/]*\Z", "", metadata)
    return f"{view.rpartition('/')[0]}/{name}__fresh-{sha256(view.encode()).hexdigest()[:8]}"


def is_cut_folder(folder: str) -> bool:
    """Return whether a folder is named as those of cuts are."""
    return re.search(r"/[a-z0-9_]+__fresh-[0-9a-f]{8}\Z", folder) is not None
