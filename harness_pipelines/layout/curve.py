"""Order of rows inside a file: ranks along a Morton or a Hilbert curve over small bucket ids.

Sources: Morton 1966; Skilling, "Programming the Hilbert curve" (AIP Conf. Proc. 707, 2004).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.errors import ShapesDiffer

Ranks = npt.NDArray[np.int64]
BITS_MAX = 62  # of a rank, so that it stays a positive long in every engine


def bits_for(buckets: int, columns: int) -> int:
    """Bits per column that tell *buckets* ids apart, or as many as *columns* leave room for."""
    return max(1, min((max(buckets, 2) - 1).bit_length(), BITS_MAX // columns))


def morton(cells: npt.NDArray[np.int32], *, bits: int) -> Ranks:
    """Ranks of *cells* (n, d), bucket ids below ``2 ** bits``; the first column's bits lead. Raises: ShapesDiffer."""
    return _interleaved(_axes(cells, bits), bits)


def hilbert(cells: npt.NDArray[np.int32], *, bits: int) -> Ranks:
    """As `morton`, along a curve whose successive cells always touch. Raises: ShapesDiffer."""
    axes = _axes(cells, bits)
    for level in range(bits - 1, 0, -1):
        _unturn(axes, level)
    for axis in range(1, len(axes)):
        axes[axis] ^= axes[axis - 1]
    flips = np.zeros_like(axes[0])
    for level in range(bits - 1, 0, -1):
        flips ^= np.where(axes[-1] >> level & 1, (1 << level) - 1, 0)
    axes ^= flips
    return _interleaved(axes, bits)


def _axes(cells: npt.NDArray[np.int32], bits: int) -> Ranks:
    if cells.ndim != 2 or not 1 <= bits * cells.shape[1] <= BITS_MAX:
        raise ShapesDiffer(
            f"expected cells (n, d) with bits * d of 1 to {BITS_MAX}, found {cells.shape} and {bits} bits"
        )
    if cells.size and not 0 <= cells.min() <= cells.max() < 1 << bits:
        raise ShapesDiffer(
            f"expected bucket ids below {1 << bits}, found {cells.min()} to {cells.max()}; use more bits"
        )
    return np.ascontiguousarray(cells.T, dtype=np.int64)


def _unturn(axes: Ranks, level: int) -> None:
    """Undo, in place, how the curve is turned and mirrored inside the halves of this level."""
    below = (1 << level) - 1
    for axis in range(len(axes)):
        upper = (axes[axis] >> level & 1).astype(bool)
        swapped = np.where(upper, 0, (axes[0] ^ axes[axis]) & below)
        axes[0] ^= np.where(upper, below, swapped)
        axes[axis] ^= swapped


def _interleaved(axes: Ranks, bits: int) -> Ranks:
    ranks = np.zeros(axes.shape[1], dtype=np.int64)
    for level in range(bits - 1, -1, -1):
        for axis in axes:
            ranks = ranks << 1 | (axis >> level & 1)
    return ranks
