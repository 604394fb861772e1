"""The blocks by which engines attach the catalog: what is copied into a shell runs, with the token of the shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness_pipelines.cli.operate.demo import attach_lines
from harness_pipelines.serve.attach import VARIABLE, blocks

URL, TOKEN = "http://127.0.0.1:8181", "a-token"
STUB = "#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done\n"


def run(block: str, folder: Path, *programs: str) -> str:
    """Run *block* in a shell whose *programs* print their words."""
    for name in programs:
        (folder / name).write_text(STUB)
        (folder / name).chmod(0o755)
    environment = {**os.environ, VARIABLE: TOKEN, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-e", "-c", block], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_duckdb_gets_address_and_token(tmp_path: Path):
    said = run(blocks(URL, table="shop.orders", warehouse="/lake")["DuckDB"], tmp_path, "duckdb")
    assert f"ATTACH '' AS harness (TYPE iceberg, ENDPOINT '{URL}', TOKEN '{TOKEN}');" in said
    assert "FROM harness.shop.orders" in said


@pytest.mark.parametrize(
    ("warehouse", "files"),
    [("/lake", "fs.hadoop.enabled"), ("file:///lake", "fs.hadoop.enabled"), ("s3://b/x", "fs.native-s3.enabled"),
     ("s3a://b/x", "fs.native-s3.enabled")],
)  # fmt: skip
def test_trino_gets_a_catalog_that_reads_the_files_of_the_warehouse(tmp_path: Path, warehouse: str, files: str):
    (tmp_path / "etc/catalog").mkdir(parents=True)
    said = run(blocks(URL, table="shop.orders", warehouse=warehouse)["Trino"], tmp_path, "trino")
    lines = (tmp_path / "etc/catalog/harness.properties").read_text().splitlines()
    properties = dict(line.split("=", 1) for line in lines)
    assert properties["iceberg.rest-catalog.uri"] == URL
    assert properties["iceberg.rest-catalog.oauth2.token"] == TOKEN
    assert properties[files] == "true"
    assert "FROM harness.shop.orders" in said


def test_spark_gets_a_catalog_without_a_cache(tmp_path: Path):
    said = run(blocks(URL, table="shop.orders", warehouse="/lake")["Spark"], tmp_path, "spark-sql").splitlines()
    given = dict(one.split("=", 1) for one in said if one.startswith("spark.sql.catalog.harness"))
    assert given["spark.sql.catalog.harness.token"] == TOKEN
    assert given["spark.sql.catalog.harness.uri"] == URL
    assert given["spark.sql.catalog.harness.cache-enabled"] == "false"
    assert said[-1] == "SELECT count(*) FROM harness.shop.orders"


def test_what_the_demo_prints_reads_its_table_by_duckdb_and_trino(tmp_path: Path):
    (tmp_path / "etc/catalog").mkdir(parents=True)
    said = run("\n".join(attach_lines("demo.lineitem", "harness")), tmp_path, "harness", "sleep", "duckdb", "trino")
    assert said.count("FROM harness.demo.lineitem") == 2
    made = "serve\ntoken\ncreate\ndemo-"
    assert f"TOKEN '{made}" in said, "the secret that the first line printed"
    properties = (tmp_path / "etc/catalog/harness.properties").read_text()
    assert f"oauth2.token={made}" in properties


def test_pyiceberg_gets_a_program_that_is_one(tmp_path: Path):
    block = blocks(URL, table="shop.orders", warehouse="/lake")["PyIceberg"]
    program = block.split("<<'END'\n")[1].removesuffix("END")
    compile(program, "block", "exec")
    assert (URL in program, "shop.orders" in program, VARIABLE in program) == (True, True, True)
    assert block.startswith("python ")
