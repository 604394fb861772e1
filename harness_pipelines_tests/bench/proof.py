"""The bench of the proofs: how much the models cover, how quickly a table recovers, what fsck and audit cost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from harness_pipelines import faults
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.chaos.result import Options
from harness_pipelines.chaos.run import run_chaos
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.stages.tier.sources import Attempt
from harness_pipelines.stages.tier.tier import publish
from harness_pipelines_tests.bench.base import Figure, Group, Run
from harness_pipelines_tests.bench.publish import Files, draft
from harness_pipelines_tests.bench.records import PARTITIONS, produce_backlog
from harness_pipelines_tests.faults.matrix import RECOVERY_S_MAX, Ground, Recovery, recovery_times
from harness_pipelines_tests.model.explorer import explore
from harness_pipelines_tests.model.mutants import MUTANTS, STATES_MAX, SUITE

FSCK_ROWS, FSCK_MOVES = 10_000_000, 1_000
AUDIT_ROWS = 2_000_000
CHAOS_S, CHAOS_SEED = 1_800, 1


def model(run: Run) -> Sequence[Figure]:
    """Every model of the suite, then every mutant; a mutant counts as killed when its own invariant falls."""
    run.say(f"model: {len(SUITE)} models")
    reports = [explore(one, states_max=STATES_MAX) for one in SUITE]
    run.say(f"model: {len(MUTANTS)} mutants")
    dead = [explore(m.mutated(), only=m.breaks, states_max=STATES_MAX).violation is not None for m in MUTANTS.values()]
    run.note("model.states", sum(r.states for r in reports), "states")
    run.note("model.seconds", sum(r.seconds for r in reports), "s")
    violated = sum(r.violation is not None for r in reports)
    return [
        Figure(figure="model.violated", value=violated, unit="models", goal=0, sense="<="),
        Figure(figure="model.mutants_killed", value=sum(dead), unit="mutants", goal=len(MUTANTS), sense=">="),
    ]


def recovery(run: Run) -> Sequence[Figure]:
    """From kill -9 at each crash point to a table that moves again, the next worker starting at the death."""
    ground = Ground(harness=run.harness, kafka=run.kafka, settings=run.harness.settings)
    found: dict[str, Recovery] = {}
    for number, point in enumerate(faults.POINTS):
        run.say(f"recovery: kill -9 at {point}, {number + 1} of {len(faults.POINTS)}")
        found |= recovery_times(ground, points=[point], times=run.size(3, 1))
        run.note(f"recovery.{point}.p50", found[point].p50_s, "s")
    worst = max(one.max_s for one in found.values())
    goal = ground.lease_s + RECOVERY_S_MAX
    return [Figure(figure="recovery.max", value=worst, unit="s", goal=goal, sense="<=")]


def chaos(run: Run) -> Sequence[Figure]:
    """`harness chaos` on services of its own."""
    seconds = run.size(CHAOS_S, 60)
    run.say(f"chaos: {seconds} s with seed {CHAOS_SEED}")
    found = run_chaos(Options(seed=CHAOS_SEED, seconds=seconds, jars=run.harness.settings.jars), run.say)
    run.note("chaos.reads", found.reads, "reads")
    run.note("chaos.recovery_max", max(found.recoveries_s, default=0.0), "s")
    return [
        Figure(figure="chaos.lost", value=found.lost, unit="records", goal=0, sense="<="),
        Figure(figure="chaos.doubled", value=found.doubled, unit="records", goal=0, sense="<="),
        Figure(figure="chaos.wrong_reads", value=found.wrong_reads, unit="reads", goal=0, sense="<="),
        Figure(figure="chaos.unrepeatable", value=found.unrepeatable, unit="reads", goal=0, sense="<="),
        Figure(figure="chaos.frozen", value=found.frozen, unit="tables", goal=0, sense="<="),
        Figure(figure="chaos.faults", value=len(found.outages), unit="faults", goal=run.size(150, 3), sense=">="),
    ]


def fsck_of_many_moves(run: Run) -> Sequence[Figure]:
    """fsck of a table with 1,000 moves of 10,000 rows, each file a link to a real one of its size."""
    moves = run.size(FSCK_MOVES, 100)
    rows = FSCK_ROWS // FSCK_MOVES // PARTITIONS
    topic = run.topic()
    run.say(f"fsck: a log of {moves * rows * PARTITIONS:,} records")
    produce_backlog(run.harness.settings, topic, count=moves * rows * PARTITIONS)
    table = run.table(topic, buffer="none")
    run.say(f"fsck: {moves:,} moves")
    with _claimed(run, table) as claim:
        head = run.harness.stores.ledger.head(table.row)
        files = Files.of(table, head, rows=rows)
        for number in range(moves):
            move = run.harness.stores.ledger.plan_move(claim, draft(table, head, number, rows=rows))
            run.harness.stores.lake.make_branch(table.row, move, head.stream)
            staged = files.of_move(move)
            for file, template in zip(staged.files, files.originals(), strict=True):
                os.link(_local(template), _local(file.path))
            head = publish(run.harness.stores, table.row, claim, move, Attempt(staged=staged))
    began = time.monotonic()
    report = fsck(run.harness.stores, [table.name])
    seconds = time.monotonic() - began
    assert report.ok, [f"{one.invariant}: {one.detail}" for one in report.broken[:5]]
    run.note("fsck.rules", len({one.invariant for one in report.checked}), "invariants")
    return [Figure(figure="fsck.seconds", value=seconds, unit="s", goal=10, sense="<=")]


def audit(run: Run) -> Sequence[Figure]:
    """A table whose every range was signed off, then 1 % more records."""
    rows = run.size(AUDIT_ROWS, 200_000)
    topic = run.topic()
    run.say(f"audit: {rows:,} records")
    produce_backlog(run.harness.settings, topic, count=rows)
    table = run.table(topic)
    run.work(table)
    first = _audited(run, table.row)
    again = _audited(run, table.row)
    produce_backlog(run.harness.settings, topic, count=rows // 100, first=rows)
    run.work(table)
    run.note("audit.first", first, "s")
    run.note("audit.one_percent_more", _audited(run, table.row), "s")
    return [Figure(figure="audit.signed_off", value=again, unit="s", goal=5, sense="<=")]


def _audited(run: Run, row: Any) -> float:
    began = time.monotonic()
    report = audit_table(run.harness.stores, row)
    assert report.ok, report
    return time.monotonic() - began


@contextmanager
def _claimed(run: Run, table: Any) -> Iterator[Claim]:
    ledger = run.harness.stores.ledger
    claim = ledger.claim(table.row, Stage.TIER, shard=0, holder=str(uuid4()), lease=timedelta(minutes=30))
    assert claim is not None
    try:
        yield claim
    finally:
        ledger.release(claim)


def _local(path: str) -> Path:
    return Path(urlsplit(path).path)


#: Groups of figures in the order in which they are measured; what --only names.
FIGURES: Mapping[str, Group] = {
    "model": model,
    "fsck": fsck_of_many_moves,
    "audit": audit,
    "recovery": recovery,
    "chaos": chaos,
}
