"""Which checkpoints a fold looks at."""

from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.checkpoints import NEAR, Span, grouped, joined, near


def move(number: int, *, stage: str = "tier") -> Span:
    """The move that took one offset, which is its number."""
    lo, hi = {0: number}, {0: number + 1}
    return Span(
        stage=stage, kind="in effect", schema_version=1, first_move=number, last_move=number, lo=lo, hi=hi, rows=1
    )


def folded(known: list[Span], moves: list[Span], *, whole: bool) -> list[Span]:
    """Checkpoints after a fold that looks at all of them, or at those that are near."""
    groups = grouped([*(known if whole else near(known, moves)), *moves])
    used = {span.checkpoint for group in groups for span in group}
    made = [reduce(joined, sorted(group, key=lambda span: span.first_move)) for group in groups]
    numbered = [*(one for one in known if one.checkpoint not in used), *made]
    return [
        Span(**{**{word: getattr(one, word) for word in Span.__slots__}, "checkpoint": one.first_move})
        for one in sorted(numbered, key=lambda span: span.first_move)
    ]


@given(st.lists(st.sets(st.integers(0, 60), min_size=1), min_size=1, max_size=8))
def test_a_fold_that_looks_at_near_checkpoints_joins_what_one_joins_that_looks_at_all(batches: list[set[int]]):
    left, whole, some = set(range(61)), list[Span](), list[Span]()
    for batch in batches:
        moves = [move(number) for number in sorted(batch & left)]
        left -= batch
        whole, some = folded(whole, moves, whole=True), folded(some, moves, whole=False)

    assert some == whole
    assert sum(one.rows for one in some) == 61 - len(left)


def test_of_many_checkpoints_few_are_looked_at_and_none_of_another_stage():
    known = [move(number) for number in range(0, 2_000, 2)] + [move(number, stage="otree") for number in (3_000, 3_002)]

    found = near(known, [move(1_001)])

    assert len(found) == 2 * NEAR
    assert {one.first_move for one in found} >= {1_000, 1_002}
    assert [len(group) for group in grouped([*found, move(1_001)]) if move(1_001) in group] == [3]
