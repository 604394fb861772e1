"""In which order files are read, so that the offsets of each partition ascend, whatever partitions a file mixes.

A file comes after those that hold lower offsets of one of its partitions. Files that overlap in a partition (a replay
leaves such until they are compacted) are read together, and so are those that wait for each other.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from harness_pipelines.protocol.ranges import hull
from harness_pipelines.protocol.reading.narrowing import Ranges

Age = tuple[int, ...]


def offset_order(files: Sequence[Ranges], ages: Sequence[Age]) -> list[list[int]]:
    """The numbers of *files* in groups: what is read together, in the order in which it is read.

    Each file is given as its run of offsets in each partition. Of files that may come next the one with the least age
    does; *ages* are those of *files*.
    """
    groups = _apart(files)
    hulls = [hull(files[number] for number in group) for group in groups]
    age = [min(ages[number] for number in group) for group in groups]
    follows, before = _edges(hulls)
    ready = [(age[place], place) for place in range(len(groups)) if not before[place]]
    heapq.heapify(ready)
    found, left = [], set(range(len(groups)))
    while ready:
        _, place = heapq.heappop(ready)
        left.remove(place)
        found.append(groups[place])
        for following in follows[place]:
            before[following] -= 1
            if not before[following]:
                heapq.heappush(ready, (age[following], following))
    if left:  # each waits for another one
        found.append(sorted(number for place in left for number in groups[place]))
    return found


def _edges(hulls: Sequence[Ranges]) -> tuple[list[list[int]], list[int]]:
    """By place of a group which groups are the next ones in a partition, and of how many it is the next one."""
    queues: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for place, ranges in enumerate(hulls):
        for partition, (low, _) in ranges.items():
            queues[partition].append((low, place))
    follows: list[list[int]] = [[] for _ in hulls]
    before = [0] * len(hulls)
    for queue in queues.values():
        for (_, one), (_, following) in pairwise(sorted(queue)):
            follows[one].append(following)
            before[following] += 1
    return follows, before


def _apart(files: Sequence[Ranges]) -> list[list[int]]:
    """Groups of *files*, no two of which overlap: with those of a group counts what lies between them."""
    groups = [[number] for number in range(len(files))]
    while len(merged := _merged(groups, [hull(files[n] for n in group) for group in groups])) < len(groups):
        groups = merged
    return groups


def _merged(groups: Sequence[list[int]], hulls: Sequence[Mapping[int, tuple[int, int]]]) -> list[list[int]]:
    """*groups*, those put together whose *hulls* overlap."""
    above = list(range(len(groups)))

    def first(place: int) -> int:
        while above[place] != place:
            above[place] = place = above[above[place]]
        return place

    runs: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for place, ranges in enumerate(hulls):
        for partition, (low, high) in ranges.items():
            runs[partition].append((low, high, place))
    for of_partition in runs.values():
        last, reached = -1, -1
        for low, high, place in sorted(of_partition):
            if low < reached:
                above[first(place)] = first(last)
            last, reached = place, max(reached, high)
    found: defaultdict[int, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        found[first(place)] += group
    return list(found.values())
