"""The lives of orders as a changelog: which order each record is about, what it does, and what it changes.

Time goes by orders: one is born per tick. Everything else that happens to it comes some time later, drawn from a
seeded generator, and the changelog is all of that in the order of time. Many lives are under way at each moment, and a
prefix of the changelog is one of every life.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SEED = 1992
ORDERS_MIN = 100
RECORDS_PER_ORDER = 4.0  #: roughly; the length of a life is derived from it
STEP_SHARE = 0.05  #: of the whole time, from one status to the next on average
HOT_EXPONENT = 2.2  #: of Zipf's law for the number of corrections: most orders have none
HOT_MAX = 1_000  #: corrections of one order
CORRECTION_CENTS = 50_000  #: at most, up or down; the cheapest order costs more
LATE_SHARE = 0.3  #: orders that are corrected once more, long after they were new
DELETED_SHARE = 0.15
TOMBSTONE_SHARE = 0.5  #: of the deletes
AGAIN_SHARE = 0.3  #: of the deleted orders are inserted again


class OrderEvent(IntEnum):
    """The event of its order that a record reports."""

    INSERTED = 0
    PENDING = 1
    FULFILLED = 2
    CORRECTED = 3  #: its price
    DELETED = 4  #: by a value that says so
    BURIED = 5  #: by a tombstone
    INSERTED_AGAIN = 6


STATUSES = {
    OrderEvent.INSERTED: "O",
    OrderEvent.PENDING: "P",
    OrderEvent.FULFILLED: "F",
    OrderEvent.INSERTED_AGAIN: "O",
}
DELETES = (OrderEvent.DELETED, OrderEvent.BURIED)
INSERTS = (OrderEvent.INSERTED, OrderEvent.INSERTED_AGAIN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changelog:
    """Arrays of one length, one place per record."""

    orders: Ints  #: 0, 1, ... as they were first inserted, without gaps
    events: Ints  #: `OrderEvent`
    statuses: NDArray[np.str_]  #: after the record; of a delete, before it
    corrections: Ints  #: cents to add to the order's first price; after the record

    def __len__(self) -> int:
        return len(self.orders)

    @property
    def deletes(self) -> NDArray[np.bool_]:
        return np.isin(self.events, DELETES)


def changelog(records: int) -> Changelog:
    """The first *records* of a changelog, the same ones each time."""
    rng = np.random.default_rng(SEED)
    parts = list(_lives(rng, orders=records // 2 + ORDERS_MIN, whole=records / RECORDS_PER_ORDER))
    orders, events = (np.concatenate([part[i] for part in parts]).astype(np.int64) for i in (0, 1))
    times = np.concatenate([part[2] for part in parts])
    by_life = np.lexsort((times, orders))
    orders, events, times = orders[by_life], events[by_life], times[by_life]
    cents = np.where(
        events == OrderEvent.CORRECTED, rng.integers(-CORRECTION_CENTS, CORRECTION_CENTS, len(events), endpoint=True), 0
    )
    letters = np.array([STATUSES.get(event, "") for event in OrderEvent])
    says_status, says_price = np.isin(events, list(STATUSES)), np.isin(events, [*INSERTS, OrderEvent.CORRECTED])
    status, price = letters[events[_newest(says_status)]], cents[_newest(says_price)]
    assert len(times) >= records, f"{len(times)} records of lives are too few for {records}"
    sent = np.argsort(times, kind="stable")[:records]
    return Changelog(orders=orders[sent], events=events[sent], statuses=status[sent], corrections=price[sent])


def ends_of(keys: Ints, deletes: NDArray[np.bool_]) -> Ints:
    """Of each record the next one of its key, or how many there are; of a delete itself: it has no row to end."""
    ends = np.full(len(keys), len(keys), np.int64)
    by_key = np.argsort(keys, kind="stable")
    before, after = by_key[:-1], by_key[1:]
    same = keys[before] == keys[after]
    ends[before[same]] = after[same]
    ends[deletes] = np.flatnonzero(deletes)
    return ends


def _lives(rng: np.random.Generator, *, orders: int, whole: float) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Orders, events and times, by kind of event; nothing happens to an order while it is deleted."""
    step, born = whole * STEP_SHARE, np.arange(orders, dtype=np.float64)
    every = np.arange(orders)
    gone, again = np.full(orders, np.inf), np.full(orders, np.inf)
    deleted = np.flatnonzero(rng.random(orders) < DELETED_SHARE)
    gone[deleted] = born[deleted] + rng.exponential(3 * step, len(deleted))
    back = deleted[rng.random(len(deleted)) < AGAIN_SHARE]
    again[back] = gone[back] + rng.exponential(step, len(back))
    buried = np.where(rng.random(len(deleted)) < TOMBSTONE_SHARE, OrderEvent.BURIED, OrderEvent.DELETED)

    def of(chosen: Ints, event: OrderEvent, times: Floats) -> tuple[Ints, Ints, Floats]:
        lives = (times < gone[chosen]) | (times > again[chosen])
        return chosen[lives], np.full(int(lives.sum()), event), times[lives]

    yield of(every, OrderEvent.INSERTED, born)
    pending = born + rng.exponential(step, orders)
    yield of(every, OrderEvent.PENDING, pending)
    yield of(every, OrderEvent.FULFILLED, pending + rng.exponential(step, orders))
    hot = np.repeat(every, np.minimum(rng.zipf(HOT_EXPONENT, orders) - 1, HOT_MAX))
    yield of(hot, OrderEvent.CORRECTED, born[hot] + rng.exponential(3 * step, len(hot)))
    late = np.flatnonzero(rng.random(orders) < LATE_SHARE)
    yield of(late, OrderEvent.CORRECTED, born[late] + rng.uniform(0.2 * whole, whole, len(late)))
    yield deleted, buried, gone[deleted]
    yield back, np.full(len(back), OrderEvent.INSERTED_AGAIN), again[back]


def _newest(says: NDArray[np.bool_]) -> Ints:
    """For each place the newest one at or before it that *says*; the first of every life does."""
    return np.maximum.accumulate(np.where(says, np.arange(len(says)), 0))
