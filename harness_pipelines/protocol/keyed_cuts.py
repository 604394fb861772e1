"""Pure rules of the cuts of a keyed table: which version of a key is shown, and which rows are hidden.

The *hot* versions, those above the batch view, are in *levels*, as in a log-structured merge (O'Neil et al., 1996).
Each has the newest version of every key of its ranges of offsets, deletes too. Its puts are the rows of one chunk. A
newer level hides the rows that an older one has of its keys, and the rows of the *cold* files, those of the batch view:
both as position deletes that belong to the newer level. So what a level hides lies in older levels and in the batch
view. When the newest levels are joined to one, no other level names a chunk that goes.

Keys are numbers of 128 bits (`key_hashes`), in order. What changes with a new version costs as much as the new versions
and their look-up. What changes with a merge, or a batch view that was written again, costs as much as there are hot
keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.errors import TryAgain
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.coordinates import OFFSET, OPERATION, PARTITION
from harness_pipelines.protocol.cuts import CHUNK_BYTES_MAX, CHUNK_ROWS_MAX, Chunk
from harness_pipelines.protocol.key_hashes import KeyHasher, Keys, Places, among, in_order, matches, same_as_before
from harness_pipelines.protocol.keys import PUT, key_in_two_partitions
from harness_pipelines.protocol.ranges import hull
from harness_pipelines.protocol.reading.fold import int_column, key_text
from harness_pipelines.protocol.reading.narrowing import Ranges

GONE = -1  #: the place of a key whose newest version deletes it
_NONE: Places = np.empty(0, np.int64)
_NO_KEYS: Keys = np.empty((2, 0), np.uint64)


class KeysMeet(TryAgain):
    """Two keys have the same number of 128 bits."""

    way_on = "start the server again: it numbers keys in another way then"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cold:
    """Rows of the batch view's files with keys that are hot."""

    keys: Keys
    files: Places  #: of each row the number of its file among all of the batch view
    places: Places  #: and its place in the file
    live: NDArray[np.bool_]  #: whether the batch view itself shows it
    partitions: Places

    @classmethod
    def none(cls) -> Cold:
        return cls(keys=_NO_KEYS, files=_NONE, places=_NONE, live=np.empty(0, np.bool_), partitions=_NONE)

    @classmethod
    def of(cls, several: Sequence[Cold]) -> Cold:
        every = [cls.none(), *several]
        return cls(
            keys=np.concatenate([one.keys for one in every], axis=1),
            files=np.concatenate([one.files for one in every]),
            places=np.concatenate([one.places for one in every]),
            live=np.concatenate([one.live for one in every]),
            partitions=np.concatenate([one.partitions for one in every]),
        )

    def __len__(self) -> int:
        return len(self.files)

    def take(self, which: NDArray[np.bool_] | Places) -> Cold:
        return Cold(
            keys=self.keys[:, which],
            files=self.files[which],
            places=self.places[which],
            live=self.live[which],
            partitions=self.partitions[which],
        )


Hidden = Mapping[str, Places]  #: by the path of a file the places of rows that are hidden, in order, each once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """The newest version of each key in some ranges of offsets."""

    ranges: Ranges
    keys: Keys  #: in order, each once; the other columns are in the same order
    values: pa.Table  #: the key columns
    partitions: Places
    offsets: Places
    places: Places  #: of its row in the chunk; `GONE`: the key is deleted
    chunk: Chunk | None = None  #: None: there is no put
    is_whole: bool = True  #: False: the chunk has rows of other versions, and is to be written again
    warm: Hidden  #: rows of older levels' chunks that it hides
    cold: Cold  #: rows of the batch view that it hides, if they are live
    hides: Chunk | None = None  #: the file of position deletes; None: there is nothing to hide, or it is to be written

    def __len__(self) -> int:
        return int(self.keys.shape[1])

    @property
    def puts(self) -> int:
        return int(np.count_nonzero(self.places != GONE))

    def hidden(self, paths: Sequence[str]) -> dict[str, Places]:
        """All that it hides, by file; *paths* are those of the batch view's files, by number."""
        cold = self.cold.take(self.cold.live)
        order = np.lexsort((cold.places, cold.files))
        files, places = cold.files[order], cold.places[order]
        found = dict(self.warm)
        for number in np.unique(files).tolist():
            first, last = np.searchsorted(files, [number, number + 1])
            found[paths[number]] = places[first:last]
        return dict(sorted(found.items()))


def folded(rows: pa.Table, *, key: Sequence[str], ranges: Ranges, hasher: KeyHasher) -> tuple[Level, pa.Table]:
    """A level of *rows*, which are the newest version of each key in *ranges*; and its puts, as its chunk has them.

    It hides nothing yet. Raises: KeysMeet.
    """
    rows = rows.take(pa.array(np.lexsort((int_column(rows, OFFSET), int_column(rows, PARTITION)))))
    is_put = np.asarray(pc.equal(rows.column(OPERATION), PUT).to_numpy()).astype(np.bool_)
    values = rows.select(list(key))
    keys = hasher.of(values.columns)
    order = in_order(keys)
    level = Level(
        ranges=ranges,
        keys=np.ascontiguousarray(keys[:, order]),
        values=values.take(pa.array(order)),
        partitions=int_column(rows, PARTITION)[order],
        offsets=int_column(rows, OFFSET)[order],
        places=np.where(is_put, np.cumsum(is_put) - 1, GONE)[order],
        warm={},
        cold=Cold.none(),
    )
    if np.any(same := same_as_before(level.keys)):
        one = int(np.argmax(same))
        first, second = (key_text(level.values, key, at) for at in (one - 1, one))
        raise KeysMeet(f"the keys {first} and {second} have the same number of 128 bits; nothing was written")
    return level, rows.filter(pa.array(is_put))


def found_in(levels: Sequence[Level], level: Level, *, table: str, key: Sequence[str]) -> tuple[Hidden, Places]:
    """The rows of *levels*, oldest first, that the newer *level* hides, and the places of its keys that none has.

    In each level only the newest version of a key that it hides counts: that one hides all older ones.
    Raises: KeyInTwoPartitions.
    """
    hidden: dict[str, Places] = {}
    rest = np.arange(len(level))
    for older in reversed(levels):
        one, other = matches(level.keys[:, rest], older.keys)
        moved = np.flatnonzero(level.partitions[rest[one]] != older.partitions[other])
        if len(moved):
            at, was = int(rest[one[moved[0]]]), int(other[moved[0]])
            raise key_in_two_partitions(
                table, key_text(level.values, key, at), first=_place(older, was), second=_place(level, at)
            )
        places = older.places[other]
        if older.chunk is not None and np.any(places != GONE):
            hidden[older.chunk.path] = np.sort(places[places != GONE])
        stays = np.ones(len(rest), np.bool_)
        stays[one] = False
        rest = rest[stays]
    return hidden, rest


def check_partitions(level: Level, cold: Cold, *, table: str, key: Sequence[str]) -> None:
    """No key of *level* is in another partition in the batch view. Raises: KeyInTwoPartitions."""
    live = cold.take(cold.live)
    one, other = matches(live.keys, level.keys)
    moved = np.flatnonzero(live.partitions[one] != level.partitions[other])
    if len(moved):
        row, at = int(one[moved[0]]), int(other[moved[0]])
        where = (int(live.partitions[row]), "in the batch view")
        raise key_in_two_partitions(table, key_text(level.values, key, at), first=where, second=_place(level, at))


def _place(level: Level, at: int) -> tuple[int, int]:
    return int(level.partitions[at]), int(level.offsets[at])


def to_join(levels: Sequence[Level], level: Level, size: int) -> int:
    """How many of the newest *levels* one of *size* bytes above them is joined with.

    They are joined while one has fewer than twice the keys of what is above it. So each row is written about log2
    times. What would be larger than the largest chunk stays apart.
    """
    keys, count = max(len(level), 1), 0
    for older in reversed(levels):
        rows, size = keys + len(older), size + (older.chunk.bytes if older.chunk else 0)
        if len(older) >= 2 * keys or rows > CHUNK_ROWS_MAX or size > CHUNK_BYTES_MAX:
            break
        keys, count = rows, count + 1
    return count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joined:
    """A level made of some that follow each other, and where the rows of its chunk are."""

    level: Level
    rows: Places  #: of each row of the new chunk its place among those of all their chunks, one after another


def joined(levels: Sequence[Level], sizes: Sequence[int]) -> Joined:
    """The newest version of each key of *levels*, oldest first, of whose chunks each has *sizes* rows."""
    newest_first = list(reversed(range(len(levels))))
    of = np.concatenate([np.full(len(levels[at]), at) for at in newest_first])
    keys = np.concatenate([levels[at].keys for at in newest_first], axis=1)
    order = in_order(keys)
    order = order[~same_as_before(keys[:, order])]
    offsets, partitions, places = (
        np.concatenate([getattr(levels[at], name) for at in newest_first])[order]
        for name in ("offsets", "partitions", "places")
    )
    values = pa.concat_tables([levels[at].values for at in newest_first]).take(pa.array(order))
    firsts = np.cumsum([0, *sizes])[:-1]
    puts = np.flatnonzero(places != GONE)
    puts = puts[np.lexsort((offsets[puts], partitions[puts]))]
    rows = firsts[of[order[puts]]] + places[puts]
    now = np.full(len(order), GONE)
    now[puts] = np.arange(len(puts))
    level = Level(
        ranges=hull(level.ranges for level in levels),
        keys=np.ascontiguousarray(keys[:, order]),
        values=values.combine_chunks(),
        partitions=partitions,
        offsets=offsets,
        places=now,
        warm=_beside([level.chunk for level in levels], [level.warm for level in levels]),
        cold=Cold.of([level.cold for level in levels]),
    )
    return Joined(level=level, rows=rows)


def _beside(chunks: Sequence[Chunk | None], several: Sequence[Hidden]) -> Hidden:
    """What *several* hide in other files than *chunks*."""
    gone = {chunk.path for chunk in chunks if chunk is not None}
    found: dict[str, list[Places]] = {}
    for hidden in several:
        for path, places in hidden.items():
            if path not in gone:
                found.setdefault(path, []).append(places)
    return {path: np.sort(np.concatenate(places)) for path, places in found.items()}


# -- a batch view that moves ------------------------------------------------------------------------------------


def cut_off(level: Level, low: Vector) -> Level | None:
    """The versions of *level* at offsets from *low* on; None: there are none."""
    kept = np.zeros(len(level), np.bool_)
    for partition in level.ranges:
        kept |= (level.partitions == partition) & (level.offsets >= low.get(partition, 0))
    ranges = {p: (max(a, low.get(p, a)), b) for p, (a, b) in level.ranges.items() if b > low.get(p, a)}
    if not np.any(kept):
        return None
    if np.all(kept):
        return replace(level, ranges=ranges)
    rest = np.flatnonzero(kept)
    return replace(
        level,
        ranges=ranges,
        keys=np.ascontiguousarray(level.keys[:, rest]),
        values=level.values.take(pa.array(rest)),
        partitions=level.partitions[rest],
        offsets=level.offsets[rest],
        places=level.places[rest],
        is_whole=level.is_whole and not np.any(level.places[~kept] != GONE),
    )


def hot_keys(levels: Sequence[Level]) -> int:
    """How many keys have a version above the batch view."""
    if len(levels) < 2:
        return sum(map(len, levels))
    keys = np.concatenate([level.keys for level in levels], axis=1)
    return int(np.count_nonzero(~same_as_before(keys[:, in_order(keys)])))


def newest_of(levels: Sequence[Level]) -> Iterator[tuple[Level, Places]]:
    """Each hot key once: of each level the places of keys that no newer one has."""
    for at, level in enumerate(levels):
        rest = np.arange(len(level))
        for newer in levels[at + 1 :]:
            rest = rest[~among(level.keys[:, rest], newer.keys)]
        yield level, rest


def renumbered(cold: Cold, was: Sequence[str], now: Mapping[str, int]) -> Cold:
    """*cold* with the numbers that files have *now*, by path, without rows of files that are gone."""
    numbers = np.array([now.get(path, -1) for path in was], np.int64)
    found = replace(cold, files=numbers[cold.files] if len(was) else cold.files)
    return found.take(found.files >= 0)


def hiding(
    levels: Sequence[Level], cold: Cold, *, was: Sequence[str], now: Sequence[str], table: str, key: Sequence[str]
) -> list[Level]:
    """*levels*, each with what it hides: of its keys the rows of older levels, and those of *cold*.

    *was* and *now* are the paths of the batch view's files, by the numbers that *levels* and *cold* have for them. All
    chunks are whole. A row of the batch view belongs to the oldest level that has its key; if none has it, it is shown
    again. A level that hides what it did keeps its file. Raises: KeyInTwoPartitions.
    """
    found: list[Level] = []
    rest = np.arange(len(cold))
    for level in levels:
        warm, _ = found_in(found, level, table=table, key=key)
        mine = among(cold.keys[:, rest], level.keys)
        own = cold.take(rest[mine])
        check_partitions(level, own, table=table, key=key)
        renewed = replace(level, warm=warm, cold=own)
        found.append(renewed if _same(level.hidden(was), renewed.hidden(now)) else replace(renewed, hides=None))
        rest = rest[~mine]
    return found


def _same(one: Hidden, other: Hidden) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(places, other[path]) for path, places in one.items())
