"""The models run the functions that the stages run: a fault in one of these is found too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from harness_pipelines.protocol import chunk_plan as chunk_rules
from harness_pipelines.protocol import cuts as cuts_rules
from harness_pipelines.protocol import versions
from harness_pipelines.protocol.bounds import OffsetRange, lowest
from harness_pipelines.protocol.changes.reverts import reverted
from harness_pipelines.protocol.chunk_plan import chunk_plan
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.cuts import snapshot_id
from harness_pipelines.protocol.lake import reach
from harness_pipelines.protocol.reading import reads
from harness_pipelines.protocol.segments import may_hold
from harness_pipelines.protocol.versions import EFFECTS, Effect
from harness_pipelines_tests.model import (
    build,
    cut_files,
    cuts,
    cuts_state,
    files,
    ingest,
    moves,
    mutants,
    overlays,
    reading,
    restores,
    snapshots,
    views_moves,
    views_state,
)
from harness_pipelines_tests.model.explorer import explore
from harness_pipelines_tests.model.mutants import STATES_MAX, AnyModel


def passes(*_: Any, **__: Any) -> None:
    """A check that refuses nothing."""


def longer(move: Any, *, epoch: int) -> Any:
    return replace(move, attempt=move.attempt + 1, epoch=epoch, hi={0: move.hi[0] + 1})


def skipping(lag: Any, *, offsets_max: int) -> Any:
    behind = [r for r in lag.values() if r.span]
    return {r.partition: r.low + 1 for r in behind}, {r.partition: r.high + 1 for r in behind}


def floor_of_settled(versions: Any, leased: Any, *, waiting: Any, grace: Any, now: Any) -> Any:
    """The trim floor without the versions within the grace: a revert among them is forgotten."""
    settled = [v for v in versions if v.committed_at <= now - grace]
    return lowest(v.stream_hi for v in (*(settled[-1:] or versions[:1]), *leased))


def without_batch_hi(head: Any, target: Any, **more: Any) -> Any:
    made = reverted(head, target, **more)
    return replace(made, bounds={p: replace(b, batch_hi=b.start) for p, b in made.bounds.items()})


def unmerged_from_start(bounds: Any) -> Any:
    return {p: OffsetRange(partition=p, low=b.start, high=b.stream_hi) for p, b in bounds.items()}


def from_the_start(chunks: Any, low: Any, high: Any, **more: Any) -> Any:
    """The chunks of a cut that forgets what the lake has of them."""
    held = [chunk.ranges[0][0] for chunk in chunks]
    return chunk_plan(chunks, {0: min([low[0], *held])}, high, **more)


#: The rule as a module of the models names it, what it is replaced by, who finds it, and by which invariant.
FAULTS: dict[str, tuple[Any, str, Any, AnyModel, str]] = {
    "check_claim refuses nobody": (build, "check_claim", passes, mutants.FAULTS, "S5"),
    "may_take allows all": (build, "may_take", lambda *_, **__: True, mutants.FAULTS, "S5"),
    "next_attempt takes more": (moves, "next_attempt", longer, mutants.HALVES, "S25"),
    "plan_ranges leaves one out": (moves, "plan_ranges", skipping, mutants.FAULTS, "S6"),
    "check_base refuses nothing": (build, "check_base", passes, mutants.FOREIGN, "S7"),
    "trim_floor forgets a revert": (build, "trim_floor", floor_of_settled, mutants.REVERTS, "S13"),
    "check_revert refuses nothing": (build, "check_revert", passes, mutants.REVERTS, "S13"),
    "a revert fences nobody": (build, "fenced", lambda claim, *, now: claim, mutants.REVERTS, "S6"),
    "may_retire allows all": (ingest, "may_retire", lambda high, _: high is not None, mutants.SEGMENTS, "S1/S13"),
    "check_writable refuses nothing": (ingest, "check_writable", passes, mutants.SEGMENTS, "S1/S13"),
    "retirable ignores the floor": (
        reading,
        "retirable",
        lambda segments, _: [s for s in segments if s.state == "closed"],
        mutants.READS,
        "S13",
    ),
    "a segment is named for an idle partition": (
        reads,
        "needed",
        lambda segments, low: [s for s in segments if s.state != "retired" and may_hold(s.max_hi, low)],
        mutants.READS,
        "S10",
    ),
    "reached_versions forgets who answers": (
        files,
        "reached_versions",
        lambda known, *, retained_from, leased, bases: [
            v for v in known if v.version >= retained_from or v.version in {*leased, *bases}
        ],
        mutants.FILES,
        "S10",
    ),
    "condemned_before ignores open moves": (
        build,
        "condemned_before",
        lambda *, oldest_open, grace, now: now - grace,
        mutants.FILES_CRASH,
        "S27",
    ),
    "floor_after keeps the floor": (
        restores,
        "floor_after",
        lambda trim_floor, *, buffer_hi, stream_hi: trim_floor,
        mutants.RESTORES,
        "S1",
    ),
    "check_revert refuses nothing after a take-over": (build, "check_revert", passes, mutants.RESTORES, "S1"),
    "check_base refuses nothing of the batch view": (build, "check_base", passes, mutants.VIEWS_FOREIGN, "S7"),
    "otree's moves change the stream view": (
        versions,
        "EFFECTS",
        {**EFFECTS, Stage.OTREE: Effect(view="stream", bounds=("batch_hi",))},
        mutants.VIEWS_SMALL,
        "S19",
    ),
    "unmerged begins at the start": (views_moves, "unmerged", unmerged_from_start, mutants.VIEWS_SMALL, "S6"),
    "reverted forgets batch_hi": (build, "reverted", without_batch_hi, mutants.VIEWS_REVERT, "S19"),
    "reached_versions forgets leases": (
        views_state,
        "reached_versions",
        lambda known, *, retained_from, **_: [v for v in known if v.version >= retained_from],
        mutants.VIEWS_READ,
        "S10",
    ),
    "reached_versions forgets snapshots": (
        snapshots,
        "reached_versions",
        lambda known, *, snapshots, **more: versions.reached_versions(known, **more),
        mutants.SNAPSHOTS,
        "S10",
    ),
    "is_reached forgets what is pinned": (
        files,
        "is_reached",
        lambda first, last, *, retained_from, pinned: last is None or last >= retained_from,
        mutants.FILES,
        "S10",
    ),
    "is_reached leaves out the last version of a span": (
        files,
        "is_reached",
        lambda first, last, **more: reach.is_reached(first, last if last is None else last - 1, **more),
        mutants.FILES,
        "S10",
    ),
    "trim_floor forgets versions that nothing answers for": (
        build,
        "unanswered",
        lambda _, known: versions.unanswered(known[-1:], known),
        mutants.SNAPSHOTS_TRIM,
        "S10",
    ),
    "check_untouched refuses nothing, nor do the layers behind it": (
        build,
        "check_untouched",
        passes,
        replace(mutants.DELETES, bad=frozenset({"closed_move_published", "publish_unfenced"})),
        "S20",
    ),
    "check_merged_into refuses nothing, nor do the layers behind it": (
        build,
        "check_merged_into",
        passes,
        replace(mutants.DELETES_NEW, bad=frozenset({"range_unchecked", "closed_move_published", "publish_unfenced"})),
        "S16/S17",
    ),
    "needless keeps nothing": (overlays, "needless", lambda made, **_: sorted(made), mutants.OVERLAYS, "S27"),
    "split sends everything to the lake": (
        overlays,
        "split",
        lambda changes, held: ({}, dict(changes)),
        mutants.OVERLAYS,
        "S16/S17",
    ),
    "reverted forgets what was recalled": (
        overlays,
        "reverted",
        lambda *given, **more: replace(reverted(*given, **more), overlays=()),
        mutants.OVERLAYS_REVERT,
        "S16/S17",
    ),
    "cut_of_version takes its bounds from the newest": (
        views_state,
        "cut_of_version",
        lambda version, later, segments: reads.cut_of_version(
            replace(version, bounds=[version, *later][-1].bounds), later, segments
        ),
        mutants.VIEWS_READ,
        "S2",
    ),
    "chunk_plan leaves rows in that the lake has": (
        chunk_rules,
        "chunk_plan",
        from_the_start,
        mutants.CUTS_REVERT,
        "F1",
    ),
    "snapshot_id forgets what a tail is decoded with": (
        cuts_rules,
        "snapshot_id",
        lambda *given, makers, sequence: snapshot_id(*given, sequence=sequence),
        mutants.CUTS_TAIL,
        "S2",
    ),
    "next_sequence ignores the views": (
        cuts,
        "next_sequence",
        lambda last, _: (last or 0) + 1,
        mutants.CUTS_VIEWS,
        "F4",
    ),
    "part_key ignores what is merged": (cuts, "part_key", lambda metadata, _: metadata, mutants.CUTS_VIEWS, "F1"),
    "follows refuses nothing": (cuts, "follows", passes, mutants.CUTS_LOG, "S4"),
    "check_newest refuses nothing": (cut_files, "check_newest", passes, mutants.CUT_FILES, "F3"),
    "may_forget allows all": (cut_files, "may_forget", lambda *_, **__: True, mutants.CUT_FILES, "S11"),
    "may_begin_with allows all": (cut_files, "may_begin_with", lambda *_, **__: True, mutants.CUT_FILES_UNNAMED, "F3"),
    "may_condemn allows all": (cut_files, "may_condemn", lambda *_, **__: True, mutants.CUT_FILES, "F3"),
}


def _forget() -> None:
    """Empty the caches of what the rules answered."""
    for module in (build, ingest, reading, files, views_state, snapshots, overlays, cuts_state):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    _forget()
    yield
    _forget()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_rule_of_the_protocol_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    module, rule, faulty, model, breaks = FAULTS[name]
    monkeypatch.setattr(module, rule, faulty)

    report = explore(model, only=breaks, states_max=STATES_MAX, liveness=False)

    assert report.violation is not None, name
    assert report.violation.startswith(breaks), report.violation
