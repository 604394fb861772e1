"""How workers share tables."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.claims import patience_s, rank, share

WORKERS = st.sets(st.uuids().map(str), min_size=1, max_size=8)
TABLES = range(200)


def firsts(workers: set[str]) -> dict[int, str]:
    """By table the worker that asks first."""
    found = {table: one for one in workers for table in share(one, workers, TABLES)}
    assert sum(len(share(one, workers, TABLES)) for one in workers) == len(found) == len(TABLES)
    return found


@given(WORKERS, st.integers(1, 10_000))
def test_each_worker_has_a_place_in_the_order_of_each_table(workers: set[str], table: int):
    assert sorted(rank(one, workers, table) for one in workers) == list(range(len(workers)))


@given(WORKERS, st.uuids().map(str))
def test_a_worker_that_comes_takes_tables_and_moves_no_other_one(workers: set[str], fresh: str):
    before, after = firsts(workers), firsts(workers | {fresh})
    assert all(after[table] in (before[table], fresh) for table in TABLES)


@given(WORKERS)
def test_who_asks_second_is_first_when_the_first_one_is_gone(workers: set[str]):
    for table in TABLES:
        first = next(one for one in workers if rank(one, workers, table) == 0)
        for other in workers - {first}:
            assert rank(other, workers - {first}, table) == rank(other, workers, table) - 1


def test_tables_are_spread():
    workers = {f"worker-{number}" for number in range(4)}
    counts = Counter(firsts(workers).values())
    assert counts.keys() == workers
    assert max(counts.values()) <= 2 * len(TABLES) / len(workers)


def test_who_comes_second_waits_for_a_lease():
    workers = {"a", "b", "c"}
    waits = {one: patience_s(one, workers, 7, lease_s=30.0) for one in workers}
    assert sorted(waits.values()) == [0.0, 30.0, 60.0]
    assert min(waits, key=lambda one: waits[one]) == next(one for one in workers if rank(one, workers, 7) == 0)
