"""The ranges of offsets in which rows can match a predicate."""

from __future__ import annotations

from collections.abc import Mapping

from harness_pipelines.spec.predicate import (
    OFFSET,
    PARTITION,
    All,
    AnyOf,
    Compare,
    Constant,
    IsNull,
    OneOf,
    Op,
    Predicate,
)

Ranges = Mapping[int, tuple[int, int]]  #: partition -> [low, high)


def narrowed(ranges: Ranges, predicate: Predicate) -> dict[int, tuple[int, int]]:
    """The parts of *ranges* in which rows can match: one run per partition, no empty ones."""
    found = {p: _hull(predicate, p, low, high) for p, (low, high) in ranges.items()}
    return {p: run for p, run in found.items() if run[0] < run[1]}


def _hull(predicate: Predicate, partition: int, low: int, high: int) -> tuple[int, int]:
    """The smallest run of offsets in [low, high) of *partition* that can hold all matches."""
    match predicate:
        case Constant(value):
            return (low, high) if value else (low, low)
        case All(parts):
            for part in parts:
                low, high = _hull(part, partition, low, high)
            return low, high
        case AnyOf(parts):
            runs = [run for run in (_hull(part, partition, low, high) for part in parts) if run[0] < run[1]]
            return (min(r[0] for r in runs), max(r[1] for r in runs)) if runs else (low, low)
        case Compare(ref, op, int(value)) if ref.column == PARTITION:
            return (low, high) if _holds(partition, op, value) else (low, low)
        case Compare(ref, op, int(value)) if ref.column == OFFSET:
            return _clipped(op, value, low, high)
        case OneOf(ref, values, negated) if ref.column == PARTITION:
            return (low, high) if (partition in values) != negated else (low, low)
        case OneOf(ref, values, False) if ref.column == OFFSET:
            inside = [v for v in values if isinstance(v, int) and low <= v < high]
            return (min(inside), max(inside) + 1) if inside else (low, low)
        case IsNull(ref, False) if ref.column in (PARTITION, OFFSET):
            return low, low
    return low, high


def _holds(left: int, op: Op, right: int) -> bool:
    return {
        Op.EQ: left == right,
        Op.NE: left != right,
        Op.LT: left < right,
        Op.LE: left <= right,
        Op.GT: left > right,
        Op.GE: left >= right,
    }[op]


def _clipped(op: Op, value: int, low: int, high: int) -> tuple[int, int]:
    match op:
        case Op.EQ:
            low, high = max(low, value), min(high, value + 1)
        case Op.LT:
            high = min(high, value)
        case Op.LE:
            high = min(high, value + 1)
        case Op.GT:
            low = max(low, value + 1)
        case Op.GE:
            low = max(low, value)
    return (low, high) if low < high else (low, low)
