"""The demo's last check: the union read, in Arrow and in Spark, against the generated Parquet file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.cli.demo.source import NUMERIC
from harness_pipelines.cli.demo.truth import Truth

if TYPE_CHECKING:
    from harness_pipelines.client import Table

Sums = dict[str, int | Decimal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the final reads found."""

    read_arrow: int
    read_spark: int
    missing: int
    duplicated: int
    unequal: tuple[str, ...]  #: numeric columns whose sums differ, with the sums


def verify(table: Table, source: pa.Table, truth: Truth) -> Verdict:
    """Compare row counts, offsets and the exact sum of each numeric column."""
    rows = table.read(columns=[*NUMERIC, "_kafka_partition", "_kafka_offset"])
    missing, duplicated = compare_offsets(rows, truth)
    expected = sums_of(source)
    spark_rows, spark_sums = _spark(table)
    unequal = [
        f"{reader}: sum of {name} is {found[name]}, in the file {expected[name]}"
        for reader, found in (("Arrow", sums_of(rows)), ("Spark", spark_sums))
        for name in NUMERIC
        if found[name] != expected[name]
    ]
    return Verdict(
        read_arrow=rows.num_rows,
        read_spark=spark_rows,
        missing=missing,
        duplicated=duplicated,
        unequal=tuple(unequal),
    )


def compare_offsets(rows: pa.Table, truth: Truth) -> tuple[int, int]:
    """Acknowledged offsets that no row has, and rows too many."""
    missing = duplicated = 0
    partition, offsets = (rows.column(name).to_numpy() for name in ("_kafka_partition", "_kafka_offset"))
    for p, sent in truth.partitions.items():
        mine = offsets[partition == p]
        found = np.unique(mine)
        missing += len(np.setdiff1d(sent.offsets[: sent.acked], found, assume_unique=True))
        duplicated += len(mine) - len(found)
    return missing, duplicated


def sums_of(rows: pa.Table) -> Sums:
    """The exact sum of each numeric column; decimals are summed with 38 digits."""
    found: Sums = {}
    for name in NUMERIC:
        column = rows.column(name)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.decimal128(38, column.type.scale))
        found[name] = pc.sum(column, min_count=0).as_py()
    return found


def _spark(table: Table) -> tuple[int, Sums]:
    plan = table.plan()
    try:
        frame = table.to_spark(table.harness.stores.spark(), plan=plan)
        row = frame.selectExpr("count(*) AS rows", *(f"sum({name}) AS {name}" for name in NUMERIC)).collect()[0]
    finally:
        table.release(plan)
    found: Mapping[str, int | Decimal | None] = row.asDict()
    return int(found["rows"] or 0), {name: found[name] or 0 for name in NUMERIC}
