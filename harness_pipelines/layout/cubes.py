"""Export to the published OTree format: cube ids, element counts and weights of the blocks of a table.

Sources: Qbeast's docs/QbeastFormat1.0.0.md (the `blocks` of an `add` entry: cube, minWeight, maxWeight, replicated,
elementCount) and CubeId of qbeast-spark (per level one symbol of base 64 for each six columns, the first column in the
highest bit).

The format divides [0, 1]^d in halves of all columns at once. Here a column's place in [0, 1] is its rank by a
histogram, as Qbeast's quantile transformation has it; a region goes into the smallest cube that holds its rows.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.histogram import CellHistogram
from harness_pipelines.layout.tree import SIDES, RegionTree, is_layered

DEPTH_MAX = 24  #: levels; a region of equal keys would fit into cubes without end
WEIGHT_MIN, WEIGHT_MAX = -(2**31), 2**31 - 1  #: a row's weight is a signed 32-bit integer
_SYMBOLS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
_BITS = 6  # per symbol


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The rows of one region as one block of a cube."""

    path: str  #: of the region
    cube: str
    min_weight: int
    max_weight: int
    element_count: int

    def to_tag(self) -> dict[str, Any]:
        """As an entry of the format's `blocks`."""
        return {
            "cube": self.cube,
            "minWeight": self.min_weight,
            "maxWeight": self.max_weight,
            "elementCount": self.element_count,
            "replicated": False,
        }


def cube_id(steps: Sequence[Sequence[bool]]) -> str:
    """Text of a cube: per level from the root on, which half of each column it lies in (True: the upper)."""
    return "".join(_SYMBOLS[index] for step in steps for index in _six_bits(step))


def weight_at(share: float) -> int:
    """The weight below which *share* of all rows lie."""
    return WEIGHT_MIN + round(share * (WEIGHT_MAX - WEIGHT_MIN))


def export(tree: RegionTree, histogram: CellHistogram, *, layer: float) -> list[Block]:
    """One block per region with rows, in the order of the tree.

    Regions of a sample layer, which takes the share *layer* of all rows, have the smallest weights and the others the
    rest. Without a layer every block spans all weights: a region keeps its rows in no order of weight, so a sample by
    weight reads it whole.
    """
    region = tree.route(histogram.points(histogram.cells))
    low, high = _rank_ends(histogram)
    first, border = (1, weight_at(layer)) if is_layered(tree.columns) else (0, WEIGHT_MIN - 1)
    blocks = []
    for index, path in enumerate(tree.paths()):
        own = region == index
        if rows := int(histogram.counts[own].sum()):
            sampled = bool(first) and path.startswith(SIDES[1])
            blocks.append(
                Block(
                    path=path,
                    cube=_smallest_cube(low[own, first:].min(axis=0), high[own, first:].max(axis=0)),
                    min_weight=WEIGHT_MIN if sampled else border + 1,
                    max_weight=border if sampled else WEIGHT_MAX,
                    element_count=rows,
                )
            )
    return blocks


def _rank_ends(histogram: CellHistogram) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(n, d) both: where each cell begins and ends in [0, 1], by the rows in the buckets before it and in it."""
    low, high = [], []
    for ids, lines in zip(histogram.cells.T, histogram.edges, strict=True):
        rows = np.bincount(ids, weights=histogram.counts, minlength=len(lines) + 3)
        ends = np.cumsum(rows) / max(1, histogram.rows)
        high.append(ends[ids])
        low.append((ends - rows / max(1, histogram.rows))[ids])
    return np.stack(low, axis=1), np.stack(high, axis=1)


def _smallest_cube(low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> str:
    steps = []
    low, high = low.copy(), high.copy()
    for _ in range(DEPTH_MAX):
        upper = low >= 0.5
        if np.any(~upper & (high > 0.5)):
            break
        steps.append(upper.tolist())
        low, high = low * 2 - upper, high * 2 - upper
    return cube_id(steps)


def _six_bits(step: Sequence[bool]) -> list[int]:
    groups = [step[start : start + _BITS] for start in range(0, len(step), _BITS)]
    return [sum(1 << (_BITS - 1 - i) for i, upper in enumerate(group) if upper) for group in groups]
