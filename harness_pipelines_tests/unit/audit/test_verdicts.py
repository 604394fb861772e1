"""One window: every way in which what Kafka has and what the tiers hold can differ has its name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.audit.proof.complete import split
from harness_pipelines.audit.proof.contents import LogContents, QuarantinedRecord
from harness_pipelines.audit.proof.report import Findings, Kind, RangeAudit, Status, Tier
from harness_pipelines.audit.proof.verdicts import Window, judge
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.read.digested import Rows
from harness_pipelines.read.taken import ReplayEffect, TakenMove, with_corrections

RAW = (b"value", b"key")


def rows_of(pairs):
    return Rows.of([Rows(np.array([o for o, _ in pairs], np.int64), np.array([d for _, d in pairs], np.uint64))])


def judged(*, kafka, rows, refused=(), held=(), raw=None, low=0, high=10, known_from=0, status=Status.VERIFIED):
    part = RangeAudit(partition=3, tier=Tier.BUFFER, low=low, high=high, status=status)
    findings = Findings()
    records = LogContents(
        rows=rows_of(kafka),
        refused=dict.fromkeys(refused, "malformed: x"),
        raw=dict.fromkeys((*refused, *held), RAW) if raw is None else raw,
        known_from=known_from,
    )
    quarantine = {o: QuarantinedRecord(reason="malformed", value=RAW[0], key=RAW[1]) for o in held}
    window = Window(
        low=low, high=high, records=records if kafka is not None else None, rows=rows_of(rows), held=quarantine
    )
    judge(part, window, findings)
    return part, sorted((f.kind, f.offset, f.tier) for f in findings.named)


FITS = [(0, 10), (2, 12), (5, 15)]


def test_rows_that_are_what_the_records_say_raise_nothing_and_gaps_are_no_loss():
    part, found = judged(kafka=FITS, rows=FITS, refused=[4], held=[4])

    assert found == []
    assert (part.records, part.rows, part.quarantined, part.found) == (4, 3, 1, part.expected)


@pytest.mark.parametrize(
    ("rows", "refused", "held", "expected"),
    [
        ([(0, 10), (5, 15)], [], [], [(Kind.MISSING, 2, "buffer")]),
        ([(0, 10), (2, 12), (2, 12), (5, 15)], [], [], [(Kind.DUPLICATED, 2, "buffer")]),
        ([(0, 10), (2, 99), (5, 15)], [], [], [(Kind.CHANGED, 2, "buffer")]),
        ([(0, 10), (2, 12), (2, 99), (5, 15)], [], [], [(Kind.CHANGED, 2, "buffer"), (Kind.DUPLICATED, 2, "buffer")]),
        ([*FITS, (7, 17)], [], [], [(Kind.UNEXPLAINED, 7, "buffer")]),
        (FITS, [4], [], [(Kind.MISSING, 4, "quarantine")]),
        ([*FITS, (4, 14)], [4], [], [(Kind.UNEXPLAINED, 4, "buffer")]),
        (FITS, [4], [4, 6], [(Kind.UNEXPLAINED, 6, "quarantine")]),
        ([(0, 10), (5, 15)], [], [2], [(Kind.UNEXPLAINED, 2, "quarantine")]),
        (FITS, [], [2], [(Kind.DUPLICATED, 2, "buffer+quarantine"), (Kind.UNEXPLAINED, 2, "quarantine")]),
    ],
)
def test_each_fault_is_named_by_its_offset_and_tier(rows, refused, held, expected):
    raw = dict.fromkeys({0, 2, 4, 5}, RAW)

    assert judged(kafka=FITS, rows=rows, refused=refused, held=held, raw=raw)[1] == expected


def test_other_raw_bytes_in_quarantine_are_a_change():
    assert judged(kafka=FITS, rows=FITS, refused=[4], held=[4], raw={4: (b"other", b"key")})[1] == [
        (Kind.CHANGED, 4, "quarantine")
    ]


def test_what_kafka_dropped_meanwhile_is_judged_by_doubles_only():
    part, found = judged(kafka=[(5, 15)], rows=[(0, 1), (1, 1), (1, 1), (5, 15)], known_from=4)

    assert found == [(Kind.DUPLICATED, 1, "buffer")]
    assert part.status is Status.PARTLY


OFFSETS = st.sets(st.integers(0, 60))


@given(kafka=OFFSETS, lost=OFFSETS, doubled=OFFSETS, changed=OFFSETS, foreign=OFFSETS)
def test_exactly_the_planted_faults_are_found(kafka, lost, doubled, changed, foreign):
    lost, doubled, changed = lost & kafka, (doubled & kafka) - lost, (changed & kafka) - lost - doubled
    foreign -= kafka
    there = [(o, 1000 + o + (o in changed)) for o in (kafka - lost) | foreign] + [(o, 1000 + o) for o in doubled]

    part, found = judged(kafka=[(o, 1000 + o) for o in sorted(kafka)], rows=there, high=61)

    named = {kind: {o for k, o, _ in found if k is kind} for kind in Kind}
    assert named == {
        Kind.MISSING: lost,
        Kind.DUPLICATED: doubled,
        Kind.CHANGED: changed,
        Kind.UNEXPLAINED: foreign,
    }
    assert (part.records, part.rows) == (len(kafka), len(there))


BOUNDS = Bounds(start=5, batch_hi=5, stream_hi=20, buffer_hi=30)


def test_ranges_are_cut_where_another_tier_answers_and_where_kafka_starts():
    assert split(BOUNDS, end=40, log_start=12, losses=[(8, 10)]) == [
        (Tier.STREAM, 5, 8, Status.RETENTION),
        (Tier.STREAM, 8, 10, Status.ACCEPTED),
        (Tier.STREAM, 10, 12, Status.RETENTION),
        (Tier.STREAM, 12, 20, Status.VERIFIED),
        (Tier.BUFFER, 20, 30, Status.VERIFIED),
        (Tier.TAIL, 30, 40, Status.VERIFIED),
    ]


def test_what_kafka_dropped_before_it_was_read_is_lost():
    assert split(BOUNDS, end=40, log_start=33, losses=[])[-2:] == [
        (Tier.TAIL, 30, 33, Status.LOST),
        (Tier.TAIL, 33, 40, Status.VERIFIED),
    ]


def test_all_findings_are_counted_even_where_not_all_are_named(monkeypatch):
    monkeypatch.setattr("harness_pipelines.audit.proof.report.FINDINGS_MAX", 2)
    whole = Findings()
    for _ in range(3):
        part = RangeAudit(partition=0, tier=Tier.BUFFER, low=0, high=9, status=Status.VERIFIED)
        one = Findings()
        window = Window(
            low=0,
            high=9,
            records=LogContents(rows=rows_of(FITS), refused={}, raw={}, known_from=0),
            rows=rows_of([]),
            held={},
        )
        judge(part, window, one)
        whole.merge(one)

    assert (whole.counts[Kind.MISSING], len(whole.named)) == (9, 2)


def test_what_a_replay_made_of_records_is_what_they_are_whatever_they_decode_to():
    def records() -> LogContents:
        return LogContents(rows=rows_of(FITS), refused={4: "malformed: x"}, raw={}, known_from=1)

    found = records().corrected({0: 99, 2: 32, 4: 34, 5: None, 20: 50}, below=10)
    rows = dict(zip(found.rows.offsets.tolist(), found.rows.digests.tolist(), strict=True))
    assert rows == {0: 10, 2: 32, 4: 34}, "what Kafka dropped meanwhile and what comes later is left alone"
    assert found.refused == {5: "a replay set it aside"}


@given(
    was=st.dictionaries(st.integers(0, 9), st.integers(0, 2**64 - 1)),
    now=st.dictionaries(st.integers(0, 9), st.integers(0, 2**64 - 1)),
    cut=st.integers(0, 10),
)
def test_the_account_of_a_move_is_that_of_its_rows_after_all_corrections(
    was: dict[int, int], now: dict[int, int], cut: int
):
    def move(rows: dict[int, int], low: int, high: int) -> TakenMove:
        inside = [digest for offset, digest in rows.items() if low <= offset < high]
        digests = {0: sum(inside) % 2**64}
        return TakenMove(
            move_id=low, stage="ingest", trigger="log", lo={0: low}, hi={0: high}, rows=len(inside), digests=digests
        )

    changed = {o: ReplayEffect(was.get(o), now.get(o)) for o in was.keys() | now.keys() if was.get(o) != now.get(o)}
    ranges = [(0, cut), (cut, 10)]
    found = with_corrections([move(was, *ends) for ends in ranges], {0: changed})
    assert found == [move(now, *ends) for ends in ranges]
