"""Input of the demo: TPC-H lineitem as Parquet, and its rows as JSON records."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.spec.table import TableSpec

TABLE = TOPIC = "demo.lineitem"
PARTITIONS = 4
ROWS_PER_SCALE = 6_001_215  #: lineitems at scale factor 1
SCALE_MIN = 0.001
MOVE_ROWS_MAX = 100_000
REGIONS = 24  #: of the batch view; of megabytes each, so that a small table has a picture
GENERATE_TIMEOUT_S = 600

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
NUMERIC = tuple(name for name, kind in COLUMNS.items() if kind in {"long", "int"} or kind.startswith("decimal"))


class GeneratorFailed(HarnessError):
    """tpchgen-cli did not make its file."""


def demo_spec() -> TableSpec:
    """The demo's table; it moves often, so that there is something to see."""
    return TableSpec.model_validate(
        {
            "table": TABLE,
            "topic": TOPIC,
            "columns": {name: {"type": kind, "required": True} for name, kind in COLUMNS.items()},
            "views": "both",
            "layout": {"columns": ["l_shipdate", "l_partkey", "l_extendedprice"], "regions": REGIONS},
            "tier": {"max_rows": MOVE_ROWS_MAX, "max_age": "10s"},
            "freshness": {"lake": "20s"},
            "mode": "external_worker",
        }
    )


def generate(folder: Path, rows: int) -> Path:
    """Make a Parquet file of exactly *rows* lineitems in *folder*. Raises: UsageError, GeneratorFailed."""
    program = _program()
    scale, path = max(rows / ROWS_PER_SCALE * 1.01, SCALE_MIN), folder / "lineitem.parquet"
    while True:
        command = [program, "parquet", "-s", f"{scale:.6f}", "--tables=lineitem", f"--output-dir={folder}"]
        done = subprocess.run(
            [*command, "--overwrite", "--quiet"],
            capture_output=True,
            text=True,
            timeout=GENERATE_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise GeneratorFailed(f"tpchgen-cli failed: {done.stderr.strip()[-500:]}")
        found = pq.read_table(path)
        if found.num_rows >= rows:
            break
        scale *= 1.1
    plain = found.slice(0, rows).cast(_schema())
    pq.write_table(plain, path)
    return path


def _program() -> str:
    beside = Path(sys.executable).with_name("tpchgen-cli")
    found = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if not found:
        raise UsageError("the demo makes its input with tpchgen-cli: pip install 'harness-pipelines[demo]'")
    return found


def _schema() -> pa.Schema:
    from harness_pipelines.spec.arrow import arrow_schema

    return arrow_schema(demo_spec().columns)


def encode(rows: pa.Table) -> list[bytes]:
    """Each row as a JSON object; made column by column, because row by row is ten times slower."""
    pieces: list[pa.ChunkedArray | pa.Scalar] = []
    for number, field in enumerate(rows.schema):
        pieces.append(pa.scalar(f'{"," if number else "{"}"{field.name}":'))
        pieces.append(_values(rows.column(field.name)))
    pieces.append(pa.scalar("}"))
    joined = pc.binary_join_element_wise(*pieces, "")
    return joined.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]


def _values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_integer(column.type) or pa.types.is_decimal(column.type):
        return column.cast(pa.string())
    text = column.cast(pa.string())
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"')):
        text = pc.replace_substring(text, plain, escaped)
    return pc.binary_join_element_wise(pa.scalar('"'), text, pa.scalar('"'), "")
