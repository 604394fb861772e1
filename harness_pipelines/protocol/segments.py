"""When a segment can hold rows that a reader needs, and when it may go."""

from __future__ import annotations

from harness_pipelines.protocol.bounds import Vector


def may_hold(max_hi: Vector | None, low: Vector) -> bool:
    """True if a segment can hold rows at or above *low*; an open one (``max_hi`` unknown) always can."""
    if max_hi is None:
        return True
    return any(high > low.get(partition, -1) for partition, high in max_hi.items())


def may_retire(max_hi: Vector | None, floor: Vector) -> bool:
    """True once everything in a closed segment is below the trim floor (S11, S13)."""
    if max_hi is None:
        return False
    return all(high <= floor.get(partition, -1) for partition, high in max_hi.items())
