"""Files of the lake are opened and written in one place, where checksums are compared and written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness_pipelines

PACKAGE = Path(harness_pipelines.__file__).parent
PLACE = "lakes/iceberg/parquet.py"
#: Files of users' own: what a read is written to, and what the demo downloads; and a dataset of reads, without files.
NOT_OF_THE_LAKE = {
    "show/rows.py", "demo/source.py", "demo/lineitem.py", "demo/orders.py", "engines/duckdb/tables.py",
    "engines/duckdb/child.py",
}  # fmt: skip
READERS = {"pyarrow.parquet", "pyarrow.dataset"}
#: PyIceberg's own ways to files, which compare nothing; and where each is used behind a comparison.
OF_PYICEBERG = {
    "_dataframe_to_data_files": {"lakes/iceberg/private/tables.py"},
    "dataframe_to_data_files": {PLACE},
    "ArrowScan": {"lakes/iceberg/write/foreign.py"},
    "StaticTable": set(),
    "DataScan": set(),
    "load_file_io": set(),
    "PyArrowFileIO": {"lakes/iceberg/checked_io.py"},
}


def found() -> Iterator[tuple[str, str]]:
    """(module, what it uses of the readers and writers that compare nothing)."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            for used in _used(node):
                yield module, used


def _used(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names):
            yield from (n.name for n in names if n.name in READERS)
        case ast.ImportFrom(module=module, names=names):
            yield from (n.name for n in names if n.name in OF_PYICEBERG)
            yield from (f"{module}.{n.name}" for n in names if f"{module}.{n.name}" in READERS)
            if module in READERS:
                yield module
        case ast.Call(func=ast.Attribute(attr="format"), args=[ast.Constant(value="iceberg" | "parquet" as form)]):
            yield f"spark {form}"
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="read" | "write"), attr="parquet" | "table" as how)):
            yield f"spark {how}"
        case _:
            return


def allowed(module: str, used: str) -> bool:
    if used in READERS:
        return module == PLACE or module in NOT_OF_THE_LAKE
    if used.startswith("spark "):
        return module == "engines/spark/view.py"
    return module in OF_PYICEBERG[used]


def test_nothing_else_opens_or_writes_parquet_files():
    assert [f"{module}: {used}" for module, used in found() if not allowed(module, used)] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pyarrow.parquet as pq",
        "from pyarrow import dataset",
        "from pyarrow.parquet import ParquetFile",
        "from pyiceberg.io.pyarrow import ArrowScan",
        "spark.read.format('iceberg').load(path)",
        "spark.read.parquet(path)",
    ],
)
def test_the_gate_sees_each_way_past_it(text: str):
    [used] = [used for node in ast.walk(ast.parse(text)) for used in _used(node)]
    assert not allowed("lakes/iceberg/new.py", used)
