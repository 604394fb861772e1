"""Half-open runs of offsets, one of each partition: how many offsets they have, what two share, which are first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness_pipelines.protocol.reading.narrowing import Ranges


def offset_count(ranges: Ranges) -> int:
    """How many offsets *ranges* have; there may be fewer rows."""
    return sum(high - low for low, high in ranges.values())


def intersection(one: Ranges, other: Ranges) -> dict[int, tuple[int, int]]:
    """The offsets that are in *one* and in *other*, in the order of *one*; no run is empty."""
    found = {p: (max(low, other[p][0]), min(high, other[p][1])) for p, (low, high) in one.items() if p in other}
    return {p: run for p, run in found.items() if run[0] < run[1]}


def hull(several: Iterable[Ranges]) -> dict[int, tuple[int, int]]:
    """The smallest run of each partition around those of *several*, by partition."""
    found: dict[int, tuple[int, int]] = {}
    for ranges in several:
        for p, (low, high) in ranges.items():
            was = found.get(p, (low, high))
            found[p] = (min(was[0], low), max(was[1], high))
    return dict(sorted(found.items()))


def first_of(runs: Iterable[tuple[int, tuple[int, int]]], offsets: int) -> dict[int, tuple[int, int]]:
    """The first *offsets* offsets of *runs*, which are taken in their order: a partition, and its offsets."""
    found: dict[int, tuple[int, int]] = {}
    for p, (low, high) in runs:
        if not offsets:
            break
        end = min(high, low + offsets)
        found[p], offsets = (low, end), offsets - (end - low)
    return found


def rest_of(runs: Iterable[tuple[int, tuple[int, int]]], taken: Ranges) -> Iterator[tuple[int, tuple[int, int]]]:
    """What *runs* have besides *taken*, each run of which begins where theirs of its partition begins."""
    for p, (low, high) in runs:
        if (begins := taken[p][1] if p in taken else low) < high:
            yield p, (begins, high)
