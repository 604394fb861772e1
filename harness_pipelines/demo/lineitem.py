"""The plain demo: TPC-H lineitem, each record its own row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness_pipelines.demo.scenario import MOVE_ROWS_MAX, PARTITIONS, REGIONS, Log, Record, Scenario
from harness_pipelines.demo.source import encode, generate
from harness_pipelines.demo.truth import Truth
from harness_pipelines.demo.verify import Verdict, verify_rows
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.table import Mode, TableSpec

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table

TABLE = "demo.lineitem"
COLUMNS = {
    "l_orderkey": "long",
    "l_partkey": "long",
    "l_suppkey": "long",
    "l_linenumber": "int",
    "l_quantity": "decimal(15,2)",
    "l_extendedprice": "decimal(15,2)",
    "l_discount": "decimal(15,2)",
    "l_tax": "decimal(15,2)",
    "l_returnflag": "string",
    "l_linestatus": "string",
    "l_shipdate": "date",
    "l_commitdate": "date",
    "l_receiptdate": "date",
    "l_shipinstruct": "string",
    "l_shipmode": "string",
    "l_comment": "string",
}


class Lineitem(Scenario):
    """Rows that are only appended, in turn to each partition."""

    source = "rows of TPC-H lineitem"
    judge = "the Parquet file"
    unit = "records"
    freshness = "a read that returns it"
    picture = "layout.png"
    checked = ("l_orderkey", "l_quantity")
    numeric = tuple(name for name, kind in COLUMNS.items() if kind in {"long", "int"} or kind.startswith("decimal"))

    def __init__(self, *, mode: Mode = "external_worker", staged_ratio: float = 0.5) -> None:
        self.spec = _spec(mode, staged_ratio)

    def make(self, folder: Path, rows: int) -> Log:
        path = generate(folder, rows, table="lineitem", schema=arrow_schema(self.spec.columns))
        return appended(pq.read_table(path), file=path)

    def records(self, rows: pa.Table) -> Sequence[Record]:
        return [(None, value) for value in encode(rows)]

    def arrived(self, table: Table, where: str) -> pa.Table:
        return table.read(columns=["_kafka_partition", "_kafka_offset"], where=where)

    def verify(self, table: Table, log: Log, truth: Truth) -> Verdict:
        return verify_rows(table, log, truth, numeric=self.numeric, judge=self.judge)

    def story(self, _log: Log) -> Sequence[tuple[str, str]]:
        return ()

    def try_next(self, _log: Log) -> Sequence[str]:
        return (
            f"status {TABLE}",
            f'read {TABLE} --columns l_orderkey,l_quantity,l_shipmode --where "l_quantity >= 49" --limit 5',
            f"explain {TABLE} --where \"l_shipdate < '1992-02-01'\" --analyze",
            f'sql "SELECT l_shipmode, count(*), sum(l_extendedprice) FROM {TABLE} GROUP BY l_shipmode"',
            f"audit {TABLE}",
        )


def appended(rows: pa.Table, *, file: Path) -> Log:
    """The log of *rows* that stay: row i goes to partition ``i % PARTITIONS``."""
    count = rows.num_rows
    return Log(
        rows=rows,
        partitions=np.arange(count, dtype=np.int64) % PARTITIONS,
        ends=np.full(count, count, np.int64),
        late_from=count,
        file=file,
    )


def _spec(mode: Mode, staged_ratio: float) -> TableSpec:
    """The table moves often, so that there is something to see."""
    return TableSpec.model_validate(
        {
            "table": TABLE,
            "topic": TABLE,
            "columns": {name: {"type": kind, "required": True} for name, kind in COLUMNS.items()},
            "views": "both",
            "layout": {
                "columns": ["l_shipdate", "l_partkey", "l_extendedprice"],
                "regions": REGIONS,
                "staged_ratio": staged_ratio,
            },
            "tier": {"max_rows": MOVE_ROWS_MAX, "max_age": "10s"},
            "freshness": {"lake": "20s"},
            "mode": mode,
        }
    )
