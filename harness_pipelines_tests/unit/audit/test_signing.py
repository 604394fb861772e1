"""The rules of taking over: pieces tile what is judged, and a move is counted as a whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.audit.proof import signing
from harness_pipelines.audit.proof.accounts import torn
from harness_pipelines.audit.proof.complete import split
from harness_pipelines.audit.proof.jobs import RowTally
from harness_pipelines.audit.proof.report import RangeAudit, Status, Tier, Witness, joined
from harness_pipelines.audit.proof.signing import SignedState, cut
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.digest import lake_digests, parsed, row_digests, shown
from harness_pipelines.protocol.lake.signoff import Answering
from harness_pipelines.read.taken import TakenMove
from harness_pipelines_tests.unit.protocol.test_signoff import a_signoff

NOTHING = Answering(files=(), held=())
OFFSETS = st.integers(0, 40)


def a_move(lo: int, hi: int) -> TakenMove:
    return TakenMove(move_id=1, stage="ingest", trigger="log", lo={0: lo}, hi={0: hi}, rows=hi - lo, digests={})


@given(
    ends=st.lists(OFFSETS, min_size=4, max_size=4).map(sorted),
    log_start=OFFSETS,
    signed=st.sets(OFFSETS, max_size=6).map(sorted),
    read_again=st.sets(st.integers(0, 4)),
    cuts=st.frozensets(OFFSETS),
)
def test_pieces_tile_the_ranges_whatever_was_signed_off(ends, log_start, signed, read_again, cuts):
    start, stream_hi, buffer_hi, end = ends
    bounds = Bounds(start=start, batch_hi=start, stream_hi=stream_hi, buffer_hi=buffer_hi)
    known = [a_signoff(a, b) for a, b in zip(signed[:-1:2], signed[1::2], strict=False)]
    known = [s for s in known if s.lies_in(start, stream_hi)]
    again = {s: "why" for i, s in enumerate(known) if i in read_again}
    state = SignedState(answering=NOTHING, taken=tuple(s for s in known if s not in again), again=again, cuts=cuts)

    pieces = cut(split(bounds, end=end, log_start=log_start, losses=[]), state)

    assert [o for piece in pieces for o in range(piece.low, piece.high)] == [*range(start, end)]
    assert [piece.signed for piece in pieces if piece.signed] == list(state.taken)
    for piece in pieces:
        is_again = any(s.low <= piece.low and piece.high <= s.high for s in again)
        assert (piece.again is not None) == is_again
        assert all(s.lies_in(piece.low, piece.high) or not s.overlaps(piece.low, piece.high) for s in state.taken)


def test_a_long_range_is_signed_in_pieces_that_start_anywhere_and_end_on_a_grid(monkeypatch):
    monkeypatch.setattr(signing, "SIGNED_OFFSETS_MAX", 10)
    state = SignedState(answering=NOTHING, taken=(a_signoff(0, 7),))

    pieces = cut([(Tier.STREAM, 0, 25, Status.VERIFIED), (Tier.BUFFER, 25, 60, Status.VERIFIED)], state)

    assert [(p.low, p.high) for p in pieces] == [(0, 7), (7, 10), (10, 20), (20, 25), (25, 60)]


@pytest.mark.parametrize(
    ("moves", "log_start", "again"),
    [
        ([a_move(0, 10), a_move(10, 20)], 99, []),
        ([a_move(0, 15)], 0, []),
        ([a_move(5, 25)], 20, []),
        ([a_move(5, 25)], 21, [(0, 10)]),
        ([a_move(0, 25)], 99, []),
        ([a_move(0, 5), a_move(5, 25)], 99, [(0, 10)]),
    ],
    ids=["inside", "all signed", "kafka has the rest", "straddles its low end", "made of whole ranges",
         "reading one again opens no other"],
)  # fmt: skip
def test_a_signed_range_is_torn_where_a_move_goes_on_that_kafka_cannot_vouch_for(moves, log_start, again):
    signed = {0: [a_signoff(0, 10), a_signoff(10, 20)]}

    assert sorted((s.low, s.high) for s in torn(moves, signed, {0: log_start})) == again


def test_what_is_torn_tears_what_its_other_moves_reach_into():
    signed = {0: [a_signoff(0, 10), a_signoff(10, 20), a_signoff(20, 30)]}
    moves = [a_move(5, 12), a_move(12, 22), a_move(22, 40)]

    assert torn(moves, signed, {0: 99}) == {*signed[0]}
    assert torn(moves[:2], signed, {0: 99}) == set()


@given(
    rows=st.lists(st.tuples(OFFSETS, st.integers(0, 2**64 - 1)), unique_by=lambda row: row[0], max_size=20),
    edges=st.sets(OFFSETS, max_size=8).map(sorted),
    windows=st.sets(OFFSETS, max_size=4),
)
def test_a_tally_knows_rows_and_digest_between_any_two_edges(rows, edges, windows):
    tally = RowTally(edges)
    limits = sorted({0, 41, *windows})
    for low, high in pairwise(limits):
        inside = sorted((o, d) for o, d in rows if low <= o < high)
        tally.add(np.array([o for o, _ in inside], np.int64), np.array([d for _, d in inside], np.uint64))

    for i, low in enumerate(edges):
        for high in edges[i:]:
            digests = [d for o, d in rows if low <= o < high]
            assert tally.within(low, high) == (len(digests), sum(digests) % 2**64)


def test_a_signed_range_counts_as_a_whole():
    tally = RowTally([0, 5, 10, 20])
    tally.add_signed(0, rows=9, digest=2**64 - 1)
    tally.add(np.array([12, 13]), np.array([5, 6], np.uint64))

    assert tally.within(0, 10) == (9, 2**64 - 1)
    assert tally.within(0, 20) == (11, 10)


def test_neighbours_of_one_kind_are_shown_as_one():
    def part(low: int, high: int, witness: Witness = Witness.KAFKA) -> RangeAudit:
        where = RangeAudit(partition=0, tier=Tier.STREAM, low=low, high=high, status=Status.VERIFIED)
        return replace(where, rows=high - low, found=low, witness=witness)

    shown_as = joined([part(0, 5), part(5, 9), part(9, 12, Witness.INGEST), part(13, 15), part(15, 16)])

    assert [(r.low, r.high, r.rows, r.found) for r in shown_as] == [(0, 9, 9, 5), (9, 12, 3, 9), (13, 16, 3, 28)]


def test_the_digest_that_ingest_records_is_that_of_the_rows_in_the_lake():
    decoded = pa.table({"_kafka_offset": pa.array([1, 2, 3]), "name": ["a", None, "c"]})
    there = decoded.append_column("_op", pa.array(["put"] * 3))
    there = there.append_column("_schema_version", pa.array([7] * 3, pa.int32()))

    assert lake_digests(decoded, schema_version=7).tolist() == row_digests(there).tolist()
    assert lake_digests(decoded.slice(0, 0), schema_version=7).tolist() == []


@given(content=st.integers(0, 2**64 - 1))
def test_the_text_of_a_digest_can_be_read_back(content):
    assert parsed(shown(content)) == content


def test_a_digest_of_another_definition_is_refused():
    with pytest.raises(ValueError, match="v2:00"):
        parsed("v2:00")
