"""The demo's last check: the union read, in Arrow and where it is there in Spark, against the rows that were sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.demo.scenario import Log
from harness_pipelines.demo.truth import Truth

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table

COORDINATES = ("_kafka_partition", "_kafka_offset")
Sums = dict[str, int | Decimal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the final reads found."""

    expected: int  #: rows that must be there
    read: Mapping[str, int]  #: rows, by who read them: Arrow, and Spark where it is there
    missing: int
    duplicated: int
    unequal: tuple[str, ...]  #: numeric columns whose sums differ, with the sums
    state: tuple[str, ...] | None = (
        None  #: rows that differ in any column, with their keys; None: only sums were compared
    )


def verify_rows(table: Table, log: Log, truth: Truth, *, numeric: Sequence[str], judge: str) -> Verdict:
    """Compare row counts, offsets and the exact sum of each numeric column; every record is a row."""
    rows = table.read(columns=[*numeric, *COORDINATES])
    missing, duplicated = compare_offsets(rows, truth)
    read, sums = {"Arrow": rows.num_rows}, {"Arrow": sums_of(rows, numeric)}
    if has_spark(table):
        read["Spark"], sums["Spark"] = _spark(table, numeric)
    return Verdict(
        expected=truth.acked,
        read=read,
        missing=missing,
        duplicated=duplicated,
        unequal=unequal_sums(sums, sums_of(log.rows, numeric), judge=judge),
    )


def has_spark(table: Table) -> bool:
    """Whether Spark is there to read: where it is not, the demo's table says that Arrow moves it."""
    return table.spec.engine != "arrow"


def unequal_sums(found: Mapping[str, Sums], expected: Sums, *, judge: str) -> tuple[str, ...]:
    """Sentences about the sums that a reader *found* and that differ from those of *judge*."""
    return tuple(
        f"{reader}: sum of {name} is {sums[name]}, in {judge} {sum_}"
        for reader, sums in found.items()
        for name, sum_ in expected.items()
        if sums[name] != sum_
    )


def compare_offsets(rows: pa.Table, truth: Truth) -> tuple[int, int]:
    """Acknowledged offsets that no row has, and rows too many."""
    missing = duplicated = 0
    partition, offsets = (rows.column(name).to_numpy() for name in COORDINATES)
    for p, sent in truth.partitions.items():
        mine = offsets[partition == p]
        found = np.unique(mine)
        missing += len(np.setdiff1d(sent.offsets[: sent.acked], found, assume_unique=True))
        duplicated += len(mine) - len(found)
    return missing, duplicated


def sums_of(rows: pa.Table, numeric: Sequence[str]) -> Sums:
    """The exact sum of each numeric column; decimals are summed with 38 digits."""
    found: Sums = {}
    for name in numeric:
        column = rows.column(name)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.decimal128(38, column.type.scale))
        found[name] = pc.sum(column, min_count=0).as_py()
    return found


def _spark(table: Table, numeric: Sequence[str]) -> tuple[int, Sums]:
    plan = table.plan()
    try:
        frame = table.to_spark(table.harness.stores.spark(), plan=plan)
        row = frame.selectExpr("count(*) AS rows", *(f"sum({name}) AS {name}" for name in numeric)).collect()[0]
    finally:
        table.release(plan)
    found: Mapping[str, int | Decimal | None] = row.asDict()
    return int(found["rows"] or 0), {name: found[name] or 0 for name in numeric}
