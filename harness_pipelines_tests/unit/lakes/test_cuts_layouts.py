"""Cuts of random layouts: files, deletes, bounds and chunks wherever they may be; two readers find what is planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.ports.serving.cuts import CutDraft
from harness_pipelines_tests.unit.lakes.cut_rig import COLUMNS, CutRig, assert_same, rows

OFFSETS = 24
PARTITIONS = 2
Places = list[tuple[int, int]]


@dataclass(frozen=True)
class Layout:
    """What lies where, by partition and offset."""

    starts: tuple[int, ...]
    batch_hi: tuple[int, ...]
    stream_hi: tuple[int, ...]
    high: tuple[int, ...]
    reaches: tuple[int, ...]  #: up to where the batch view has rows: at or above `batch_hi`
    batch: tuple[Places, ...]  #: rows of each of its files
    stream: tuple[Places, ...]
    hidden: tuple[tuple[str, int, int, int], ...]  #: view, partition, low, high
    gaps: frozenset[tuple[int, int]]  #: places without a row: records that were refused
    ends: tuple[int, ...]  #: where the buffer is cut into chunks, as shares of 10
    views: str


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    cuts = [sorted(draw(st.lists(st.integers(0, OFFSETS), min_size=5, max_size=5))) for _ in range(PARTITIONS)]
    views = draw(st.sampled_from(["both", "both", "stream", "batch"]))
    starts = [one[0] for one in cuts]
    batch_hi = [one[0] if views == "stream" else one[2] if views == "batch" else one[1] for one in cuts]
    stream_hi = [one[2] for one in cuts]
    high = [one[4] for one in cuts]
    beyond = draw(st.booleans()) and views == "both"
    reaches = [
        draw(st.integers(b, s)) if beyond and views == "both" else b for b, s in zip(batch_hi, stream_hi, strict=True)
    ]
    gaps = draw(st.frozensets(st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, OFFSETS)), max_size=6))
    there = [
        [(p, o) for p in range(PARTITIONS) for o in range(starts[p], ends[p]) if (p, o) not in gaps]
        for ends in (reaches, stream_hi)
    ]
    places = draw(st.permutations(there[0])) if views != "stream" else []
    batch = [part for part in _split(places, draw(st.lists(st.integers(0, len(places)), max_size=2))) if part]
    stream: list[Places] = []
    for p in range(PARTITIONS) if views != "batch" else ():
        mine = [place for place in there[1] if place[0] == p]
        stream += [part for part in _split(mine, draw(st.lists(st.integers(0, len(mine)), max_size=2))) if part]
    hidden = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["stream", "batch"] if views == "both" else [views]),
                st.integers(0, PARTITIONS - 1), st.integers(0, OFFSETS), st.integers(1, 9),
            ),
            max_size=3,
        )
    )  # fmt: skip
    return Layout(
        starts=tuple(starts), batch_hi=tuple(batch_hi), stream_hi=tuple(stream_hi), high=tuple(high),
        reaches=tuple(reaches), batch=tuple(batch), stream=tuple(stream),
        hidden=tuple((view, p, low, low + length) for view, p, low, length in hidden),
        gaps=gaps, ends=tuple(draw(st.lists(st.integers(0, 10), max_size=3))), views=views,
    )  # fmt: skip


def _split(places: Sequence[tuple[int, int]], ends: Sequence[int]) -> list[Places]:
    return [list(places[low:high]) for low, high in pairwise([0, *sorted(ends), len(places)])]


def made(tmp_path_factory: pytest.TempPathFactory, layout: Layout) -> CutRig:
    rig = CutRig(tmp_path_factory.mktemp("lake"), COLUMNS, partitions=PARTITIONS, views=layout.views)
    for p in range(PARTITIONS):
        rig.at(p, layout.starts[p], layout.batch_hi[p], layout.stream_hi[p], layout.high[p])
    for places in layout.batch:
        rig.append("batch", rows(places), reaches=dict(enumerate(layout.reaches)))
    for places in layout.stream:
        rig.append("stream", rows(places))
    for view, p, low, high in layout.hidden:
        rig.hide("batch" if view == "batch" else "stream", {p: (low, high)}, reaches=dict(enumerate(layout.reaches)))
    everywhere = [(p, o) for p in range(PARTITIONS) for o in range(OFFSETS) if (p, o) not in layout.gaps]
    rig.buffer = rows(everywhere)
    return rig


def cut(rig: CutRig, layout: Layout, previous: CutDraft | None) -> CutDraft:
    """A cut whose buffer is several chunks."""
    shares = [0, *sorted(layout.ends), 10]
    chunks = []
    for low, high in pairwise(shares):
        runs = {p: (s, h) for p, (s, h) in enumerate(zip(layout.stream_hi, layout.high, strict=True))}
        ranges = {p: (s + (h - s) * low // 10, s + (h - s) * high // 10) for p, (s, h) in runs.items()}
        if ranges := {p: run for p, run in ranges.items() if run[0] < run[1]}:
            chunks.append(rig.chunk(ranges))
    return rig.cut(chunks=chunks, previous=previous)


@settings(max_examples=25)
@given(layout=layouts())
def test_a_cut_is_what_the_plan_reads(tmp_path_factory: pytest.TempPathFactory, layout: Layout):
    rig = made(tmp_path_factory, layout)
    draft = cut(rig, layout, None)
    assert_same(rig, draft)
    rig.number += 1  # the next version, with the same views
    second = rig.cut(chunks=draft.chunks, previous=draft)
    assert second.parts == draft.parts
    assert_same(rig, second)
