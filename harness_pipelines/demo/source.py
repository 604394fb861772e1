"""Input of the demo: a table of TPC-H as Parquet, and rows as JSON."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness_pipelines.errors import HarnessError
from harness_pipelines.extras import ExtraMissing

ROWS_PER_SCALE = {"lineitem": 6_001_215, "orders": 1_500_000}  #: at scale factor 1
SCALE_MIN = 0.001
GENERATE_TIMEOUT_S = 600


class GeneratorFailed(HarnessError):
    """tpchgen-cli did not create its file."""


def generate(folder: Path, rows: int, *, table: str, schema: pa.Schema) -> Path:
    """Make a Parquet file of exactly *rows* rows of a *table* of TPC-H in *folder*.

    Raises: ExtraMissing, GeneratorFailed.
    """
    program = _program()
    scale, path = max(rows / ROWS_PER_SCALE[table] * 1.01, SCALE_MIN), folder / f"{table}.parquet"
    while True:
        command = [program, "parquet", "-s", f"{scale:.6f}", f"--tables={table}", f"--output-dir={folder}"]
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
    plain = found.slice(0, rows).cast(schema)
    pq.write_table(plain, path)
    return path


def _program() -> str:
    beside = Path(sys.executable).with_name("tpchgen-cli")
    found = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if not found:
        raise ExtraMissing("demo", what="The demo's input", package="tpchgen-cli")
    return found


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
