"""Rows and queries on which layouts are compared: seeded, and the same for every layout.

Three tables: `clusters_2d` (40 skewed clusters, background, outliers), `events_3d` (time, zipf users, lognormal
amounts) and `lineitem` (the distributions of TPC-H). A query is a closed box with open sides at infinity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

Kind = tuple[float, tuple[int, ...]]  #: of a query: the share of the rows that it finds, the columns that it closes

QUERIES_PER_CLASS = 200
_BOXES = {"box 1 %": 0.01, "box 5 %": 0.05, "box 10 %": 0.10}
_SLAB = 0.01
CLASSES = (*_BOXES, "slab 1 %", "mixed")
_SAMPLE_ROWS = 50_000  #: ranks are taken from so many rows: a box of 1 % still holds 500 of them

_CLUSTERS = 40
_SIDE = 1_000.0  #: the square of the clusters and their background
_BACKGROUND, _OUTLIERS = 0.10, 0.001  #: shares of the rows

_EVENT_SPAN_S = 30 * 86_400
_EVENT_START_S = 1_767_225_600  # 2026-01-01
_USERS, _ZIPF = 100_000, 1.1

# TPC-H specification 3.0.1, clause 4.2.3; days since 1970-01-01
_STARTDATE, _ENDDATE = 8_035, 10_591  # 1992-01-01, 1998-12-31
_ORDER_SPAN = _ENDDATE - 151 - _STARTDATE
_LINEITEM_OF_SF1, _PARTS_OF_SF1 = 6_000_000, 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Indexed columns of a table, in order of arrival.

    Values are int64 (date in days, timestamptz in microseconds, decimal unscaled) or float64, and all of them are
    exact as doubles, which is what queries are made of.
    """

    name: str
    names: tuple[str, ...]
    types: tuple[str, ...]  #: Iceberg's type strings
    columns: tuple[Array, ...]  #: d arrays of n values

    @property
    def rows(self) -> int:
        return len(self.columns[0])

    def take(self, rows: Array | slice) -> Dataset:
        """The same table with *rows* only."""
        columns = tuple(column[rows] for column in self.columns)
        return Dataset(name=self.name, names=self.names, types=self.types, columns=columns)


@dataclass(frozen=True, slots=True)
class Queries:
    """q closed boxes ``low <= value <= high``; an open side is infinite."""

    low: Floats  #: (q, d)
    high: Floats  #: (q, d)

    def __len__(self) -> int:
        return len(self.low)


def clusters_2d(rows: int, seed: int) -> Dataset:
    """40 Gaussian clusters of zipf-like sizes, long and turned, over 10 % background; 0.1 % outliers far away."""
    rng = np.random.default_rng(seed)
    return _Clusters.draw(rng).rows(rng, rows)


def batches_2d(rows: int, seed: int, *, count: int = 50, drift: float = 0.0) -> Iterator[Dataset]:
    """*rows* of `clusters_2d` in *count* batches, one after the other.

    The centres travel *drift* sides of the square from the first batch to the last; 0 is stationary.
    """
    rng = np.random.default_rng(seed)
    clusters = _Clusters.draw(rng)
    for number, share in enumerate(_shares(rows, count)):
        yield clusters.rows(rng, share, shift=drift * _SIDE * number / max(count - 1, 1))


def batches_in_order(rows: int, seed: int, *, count: int = 50) -> Iterator[Dataset]:
    """*rows* orders in *count* batches in order of time, but for some seconds inside a batch."""
    rng = np.random.default_rng(seed)
    made_s = _EVENT_START_S + np.sort(rng.uniform(0, _EVENT_SPAN_S, rows))
    first = 0
    for share in _shares(rows, count):
        order = np.arange(first, first + share)
        late_s = rng.exponential(2.0, share)
        columns = (((made_s[order] - late_s) * 1e6).astype(np.int64), order)
        yield Dataset(name="orders", names=("at", "order_id"), types=("timestamptz", "long"), columns=columns)
        first += share


def events_3d(rows: int, seed: int) -> Dataset:
    """An event log of 30 days: time that arrives late by minutes, users by zipf's law, lognormal amounts.

    The largest user has about 13 % of the rows; a user's id says nothing about how active it is.
    """
    rng = np.random.default_rng(seed)
    sent_s = np.sort(rng.uniform(0, _EVENT_SPAN_S, rows)) - rng.exponential(300.0, rows)
    time_us = ((_EVENT_START_S + sent_s) * 1e6).astype(np.int64)
    weight = np.arange(1, _USERS + 1, dtype=np.float64) ** -_ZIPF
    place = np.searchsorted(np.cumsum(weight / weight.sum())[:-1], rng.random(rows), side="right")
    user = rng.permutation(_USERS)[place].astype(np.int64)
    amount = np.round(rng.lognormal(3.0, 1.5, rows), 2)
    return Dataset(
        name="events 3-D",
        names=("time", "user", "amount"),
        types=("timestamptz", "long", "double"),
        columns=(time_us, user, amount),
    )


def lineitem(rows: int, seed: int) -> Dataset:
    """TPC-H's lineitem in order of l_orderkey, by the rules of its specification 3.0.1, clause 4.2.3.

    An order has 1-7 lines and a date in [1992-01-01, 1998-12-31 - 151 days]; l_shipdate is 1-121 days later;
    l_partkey is uniform over SF x 200,000 parts (SF = rows / 6 M); l_extendedprice = l_quantity (1-50) x the part's
    p_retailprice, here in cents.
    """
    rng = np.random.default_rng(seed)
    order = np.repeat(np.arange(rows), rng.integers(1, 8, rows))[:rows]
    orderdate = _STARTDATE + rng.integers(0, _ORDER_SPAN + 1, rows)[order]
    shipdate = orderdate + rng.integers(1, 122, rows)
    parts = max(1, rows * _PARTS_OF_SF1 // _LINEITEM_OF_SF1)
    partkey = rng.integers(1, parts + 1, rows)
    return Dataset(
        name="lineitem",
        names=("l_shipdate", "l_partkey", "l_extendedprice"),
        types=("date", "long", "decimal(15,2)"),
        columns=(shipdate, partkey, rng.integers(1, 51, rows) * retail_price_cents(partkey)),
    )


def retail_price_cents(partkey: Array) -> Array:
    """p_retailprice of TPC-H's clause 4.2.3, in cents."""
    cents: Array = 90_000 + (partkey // 10) % 20_001 + 100 * (partkey % 1_000)
    return cents


def queries(data: Dataset, seed: int, *, per_class: int = QUERIES_PER_CLASS) -> Mapping[str, Queries]:
    """Queries of every class over *data*.

    A box is centred on a row and grows in rank space, equally in all columns, until it holds its share of the rows
    (of a sample: the share is met approximately, and a value with more rows than the share is taken whole). A slab
    is such a box in one column. A mixed query is a slab, or one of the boxes over some of the columns. Which kind and
    which columns goes round, so that all come equally often; what is random is where a query lies.
    """
    rng = np.random.default_rng(seed)
    ranks = _Ranks.of(data, rng)
    columns = tuple(range(len(data.columns)))
    kinds: dict[str, list[Kind]] = {name: [(share, columns)] for name, share in _BOXES.items()}
    kinds["slab 1 %"] = [(_SLAB, (c,)) for c in columns]
    kinds["mixed"] = _mixture(columns)
    found = {}
    for name, asked in kinds.items():
        boxes = [ranks.box(rng, *asked[number % len(asked)]) for number in range(per_class)]
        found[name] = Queries(np.stack([low for low, _ in boxes]), np.stack([high for _, high in boxes]))
    return found


def _mixture(columns: tuple[int, ...]) -> list[Kind]:
    """Kinds of mixed queries: as many slabs as boxes of each share, and as many boxes of each width."""
    found: list[Kind] = []
    sets = [list(itertools.combinations(columns, width)) for width in range(1, len(columns) + 1)]
    for turn in range(math.lcm(*(len(of_width) for of_width in sets))):
        for width, of_width in enumerate(sets):
            found.append((_SLAB, (columns[(turn + width) % len(columns)],)))
            found += [(share, of_width[turn % len(of_width)]) for share in _BOXES.values()]
    return found


@dataclass(frozen=True, slots=True)
class _Ranks:
    """A sample of rows by the middle rank of their values, in [0, 1]: equal values have equal ranks."""

    rows: Floats  #: (s, d)
    values: Sequence[Array]  #: per column its distinct values, sorted
    middles: Sequence[Floats]  #: per column the rank of each of them

    @classmethod
    def of(cls, data: Dataset, rng: np.random.Generator) -> _Ranks:
        size = min(_SAMPLE_ROWS, data.rows)
        sample = data.take(rng.choice(data.rows, size, replace=False))
        rows, values, middles = [], [], []
        for column in sample.columns:
            distinct, place, count = np.unique(column, return_inverse=True, return_counts=True)
            middle = (np.cumsum(count) - count / 2) / size
            rows.append(middle[place])
            values.append(distinct)
            middles.append(middle)
        return cls(np.stack(rows, axis=1), values, middles)

    def box(self, rng: np.random.Generator, share: float, columns: Sequence[int]) -> tuple[Floats, Floats]:
        centre = self.rows[rng.integers(len(self.rows))]
        distance = np.abs(self.rows[:, list(columns)] - centre[list(columns)]).max(axis=1)
        nth = max(1, round(share * len(distance))) - 1
        reach = np.partition(distance, nth)[nth]
        low, high = np.full(len(centre), -np.inf), np.full(len(centre), np.inf)
        for c in columns:
            first = np.searchsorted(self.middles[c], centre[c] - reach, side="left")
            last = np.searchsorted(self.middles[c], centre[c] + reach, side="right") - 1
            low[c], high[c] = self.values[c][first], self.values[c][max(first, last)]
        return low, high


@dataclass(frozen=True, slots=True)
class _Clusters:
    """Where the clusters are, and how large and long each is."""

    centres: Floats  #: (40, 2)
    spreads: Floats  #: (40, 2, 2): maps a standard normal pair to an offset
    weights: Floats  #: (40,), sums to 1

    @classmethod
    def draw(cls, rng: np.random.Generator) -> _Clusters:
        centres = rng.uniform(0.05 * _SIDE, 0.95 * _SIDE, (_CLUSTERS, 2))
        lengths = _SIDE * rng.lognormal(-4.0, 0.7, (_CLUSTERS, 2))
        turn = rng.uniform(0, np.pi, _CLUSTERS)
        rotations = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]).transpose(2, 0, 1)
        weights = 1 / np.arange(1, _CLUSTERS + 1)
        return cls(centres, rotations * lengths[:, None, :], weights / weights.sum())

    def rows(self, rng: np.random.Generator, rows: int, *, shift: float = 0.0) -> Dataset:
        which = rng.choice(_CLUSTERS, rows, p=self.weights)
        offset = np.einsum("nij,nj->ni", self.spreads[which], rng.standard_normal((rows, 2)))
        points = self.centres[which] + offset + shift
        lot = rng.random(rows)
        background = lot < _BACKGROUND
        points[background] = rng.uniform(shift, _SIDE + shift, (int(background.sum()), 2))
        outliers = lot > 1 - _OUTLIERS
        points[outliers] += _SIDE * rng.standard_cauchy((int(outliers.sum()), 2))
        x, y = np.ascontiguousarray(points.T)
        return Dataset(name="clusters 2-D", names=("x", "y"), types=("double", "double"), columns=(x, y))


def _shares(rows: int, count: int) -> list[int]:
    bounds = [rows * number // count for number in range(count + 1)]
    return [high - low for low, high in itertools.pairwise(bounds)]
