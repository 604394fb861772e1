"""Round after round of updates: does the batch view stay quick to read, and what does that write?"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.protocol.reading.selection import Selection
from harness_pipelines.read.union import ArrowReader
from harness_pipelines_tests.bench.base import Figure, Run, timed
from harness_pipelines_tests.bench.keyed_table import Keyed, keyed_table

ENDS = 5  #: rounds at either end that are compared
TIMES = 3  #: reads after a round


def measure(run: Run) -> Sequence[Figure]:
    """Rounds of 1,000 random updates, relayouts among them as they come due; after each the batch view is read."""
    ours, rng = keyed_table(run), random.Random(2)
    rounds = run.size(50, 12)
    size = sum(f.bytes for f in pinned(ours.batch).files)
    per_row = size / ours.rows
    reads, merges, written, relaid = list[float](), list[float](), 0, 0
    for number in range(rounds):
        run.say(f"keyed: round {number + 1} of {rounds}")
        ours.put(sorted(rng.sample(range(ours.rows), 1_000)))
        merged = ours.merge()
        merges.append(merged.seconds)
        written, relaid = written + merged.written, relaid + merged.relaid
        reads.append(min(timed(lambda: _scan(ours)) for _ in range(TIMES)))
    first, last = statistics.median(reads[:ENDS]), statistics.median(reads[-ENDS:])
    files = pinned(ours.batch).files
    run.note("rounds.read_first", first, "s")
    run.note("rounds.read_last", last, "s")
    run.note("rounds.merge_median", statistics.median(merges), "s")
    run.note("rounds.merge_slowest", max(merges), "s")
    run.note("rounds.write_amplification", (written + relaid) / (rounds * 1_000 * per_row), "x")
    run.note("rounds.of_it_relayouts", relaid / max(written + relaid, 1), "x")
    run.note("rounds.files", len(files), "files")
    run.note("rounds.hidden", sum(f.stored - f.rows for f in files) / ours.rows, "x")
    return [Figure(figure="rounds.read_last_of_first", value=last / first, unit="x", goal=1.2, sense="<=")]


def _scan(ours: Keyed) -> None:
    """All columns of the batch view alone."""
    plan = ours.table.plan()
    try:
        reader = ArrowReader(buffer=ours.run.harness.stores.buffer_reader, lake=ours.run.harness.stores.lake_reads)
        assert not plan.buffer or not plan.buffer.segments, "everything was merged"
        rows = reader.read(plan, Selection(), check_lease=lambda: None)
        assert rows.num_rows >= ours.rows
    finally:
        ours.table.release(plan)
