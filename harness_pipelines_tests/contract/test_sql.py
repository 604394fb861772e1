"""SQL in this process over real tables: DuckDB gives what `Table.read` gives, whatever it pushes into the scan."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from harness_pipelines.app.sql import Sql, TableNotFound
from harness_pipelines.cli.main import cli
from harness_pipelines.errors import UsageError
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ports.decoded import DecodedRange, with_coordinates
from harness_pipelines.ports.errors import LakeFileMissing, QueryFailed
from harness_pipelines.ports.ledger import LeaseEnded, ReadState
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.contract.cut_rig import CutWorld
from harness_pipelines_tests.contract.stores_rig import RealRig, agrees
from harness_pipelines_tests.producer import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")
KEY = uuid.UUID(int=7)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
#: By type a value as ingest has it, and as DuckDB gives it.
VALUES: dict[str, tuple[object, object]] = {
    "boolean": (True, True),
    "int": (-1, -1),
    "long": (7, 7),
    "float": (0.5, 0.5),
    "double": (2.25, 2.25),
    "decimal": (Decimal("1.25"), Decimal("1.25")),
    "date": (NOON.date(), NOON.date()),
    "time": (NOON.time(), NOON.time()),
    "timestamp": (NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
    "timestamptz": (NOON, NOON),
    "string": ("\u00e5", "\u00e5"),
    "binary": (b"\x01", b"\x01"),
    "uuid": (KEY.bytes, str(KEY)),
    "list": ([1, None], [1, None]),
    "map": ([("a", 1)], [("a", 1)]),
    "struct": ({"city": "Oslo", "key": KEY.bytes}, {"city": "Oslo", "key": str(KEY)}),
}
NESTED = {
    "decimal": "decimal(9,2)",
    "list": "list<int>",
    "map": "map<string, int>",
    "struct": "struct<city: string, key: uuid>",
}
TYPES = {name: NESTED.get(name, name) for name in VALUES}
SCHEMA = pa.schema([pa.field(name, arrow_type(parse_type(kind))) for name, kind in TYPES.items()])
PREDICATES = ("id < 7", "id IN (3, 44, 50)", "s IS NULL", "s IS NOT NULL AND id >= 12", "s = 'v3' OR id = 50")


@pytest.fixture
def world(real: RealRig, tmp_path: Path) -> Iterator[CutWorld]:
    made = CutWorld(real, tmp_path, views="both", layout={"columns": ["id"], "sample": 0})
    yield made
    made.stores.close()


def rows(world: CutWorld, sql: str, **at: Any) -> Counter[Any]:
    with Sql(world.stores) as sql_, sql_.run(sql.format(t=world.row.name), **at) as found:
        return Counter(tuple(row.values()) for row in found.read_all().to_pylist())


def test_every_state_is_read_as_by_python_with_every_filter(world):
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20}, files=2)
    world.merge({0: 10, 1: 12})
    world.ingest({0: 51})
    for where in PREDICATES:
        truth = world.table.read(columns=["id", "s"], where=where.lower())
        assert rows(world, f"SELECT id, s FROM {{t}} WHERE {where}") == Counter(
            (row["id"], row["s"]) for row in truth.to_pylist()
        ), where
    [(count,)] = rows(world, "SELECT count(*) FROM {t}")
    assert count == 76


def test_a_query_that_reads_a_table_twice_reads_one_cut_and_frees_it(world):
    world.ingest({0: 40})
    with Sql(world.stores) as sql:
        text = f"SELECT a.id FROM {world.row.name} a JOIN {world.row.name} b USING (id) ORDER BY 1"
        with sql.run(text) as found:
            world.ingest({0: 60})
            assert [row["id"] for row in found.read_all().to_pylist()] == list(range(40))
        with sql.run(text) as found:
            assert found.read_all().num_rows == 60


@pytest.mark.parametrize("text", ["SELECT count(*) FROM {t}", "FROM {t} LIMIT 1", "SELECT 1 WHERE EXISTS (FROM {t})"])
def test_a_query_whose_lease_ends_fails_by_name_and_gives_no_row(world, text, monkeypatch):
    world.ingest({0: 40})
    world.tier({0: 20})
    look = Leases.look

    def ended(leases: Leases, *given: Any, **words: Any) -> ReadState:
        state = look(leases, *given, **words)
        leases.end(state.lease_id)
        return state

    monkeypatch.setattr(Leases, "look", ended)
    with pytest.raises(LeaseEnded, match="nothing is returned"):
        rows(world, text)


def test_an_older_version_is_read_by_at_and_a_version_is_of_one_table(world):
    world.ingest({0: 10})
    world.tier({0: 10})
    old = world.head.version
    world.ingest({0: 20})
    world.tier({0: 20})
    assert rows(world, "SELECT count(*) FROM {t}", at=old) == Counter([(10,)])
    snapshot = world.table.harness.snapshot("noon", [world.row.name])
    world.ingest({0: 30})
    assert rows(world, "SELECT count(*) FROM {t}", at=snapshot.name) == Counter([(20,)])


def test_a_name_that_is_no_table_or_may_not_be_seen_is_refused_with_a_hint(world):
    with Sql(world.stores, may_see=lambda name: False) as blind, pytest.raises(TableNotFound, match="none yet"):
        blind.run(f"SELECT * FROM {world.row.name}").__enter__()
    short = world.row.name.partition(".")[2]
    with Sql(world.stores) as sql, pytest.raises(TableNotFound, match=f"did you mean {world.row.name}"):
        sql.run(f"SELECT * FROM {short}").__enter__()


def test_what_a_read_raises_is_raised_by_the_query(world):
    world.ingest({0: 10})
    world.tier({0: 10})
    name = world.row.name.partition(".")[2]
    files = Path(world.stores.warehouse.removeprefix("file://")).rglob("*.parquet")
    for file in [one for one in files if any(part.startswith(name) for part in one.parts)]:
        file.unlink()
    with pytest.raises(LakeFileMissing):
        rows(world, "SELECT sum(id) FROM {t}")


# -- other tables -----------------------------------------------------------------------------------------------------


def put(world: CutWorld, user: pa.Table) -> None:
    """Ingest the rows of *user* into partition 0, one at each offset; of a keyed table with `_op`."""
    low = world.stores.segments.positions(world.row)[0].buffer_hi
    high = low + user.num_rows
    rows = with_coordinates(
        user,
        partition=0,
        offsets=pa.array(range(low, high), pa.int64()),
        timestamps_ms=pa.array([1_700_000_000_000] * user.num_rows, pa.int64()),
        columns=world.row.spec.columns,
    )
    claim = world.rig.claim(world.row, Stage.INGEST)
    writer = world.rig.writer(world.row, claim)
    made = DecodedRange(partition=0, low=low, high=high, rows=rows, refused=(), leader_epoch=None)
    writer.commit(world.stores.segments.open_segment(world.row), [made], confirm=agrees)
    writer.close()
    world.rig.ledger.release(claim)


def test_a_keyed_table_has_the_newest_row_of_each_key(real, tmp_path):
    world = CutWorld(real, tmp_path, key=["id"], views="stream", delete={"field": "op", "values": ["d"]})
    changes = [("put", 1, "a"), ("put", 2, "b"), ("put", 1, "c"), ("put", 3, "d"), ("delete", 2, None), ("put", 3, "e")]
    ops, ids, texts = zip(*changes, strict=True)
    put(world, pa.table({"_op": ops, "id": pa.array(ids, pa.int64()), "s": pa.array(texts, pa.string())}))
    assert rows(world, "SELECT id, s FROM {t}") == Counter([(1, "c"), (3, "e")])
    for where in ("s = 'a'", "s = 'd'", "id = 2"):  # of what a newer row hides, a filter brings nothing back
        assert rows(world, f"SELECT id FROM {{t}} WHERE {where}") == Counter()
    assert rows(world, "SELECT s FROM {t} WHERE id = 3") == Counter([("e",)])
    world.stores.close()


def test_every_type_is_read_and_filtered(real, tmp_path):
    world = CutWorld(real, tmp_path, columns=TYPES)
    put(world, pa.Table.from_pylist([{name: one for name, (one, _) in VALUES.items()}, {}], schema=SCHEMA))
    with Sql(world.stores) as sql, sql.run(f"SELECT * FROM {world.row.name} WHERE long IS NOT NULL") as found:
        [seen] = found.read_all().to_pylist()
    assert seen == {name: shown for name, (_, shown) in VALUES.items()}
    for name in ("boolean", "long", "double", "decimal", "date", "time", "timestamp", "timestamptz", "string", "uuid"):
        equal = f"SELECT count(*) FROM {{t}} WHERE {name} = (SELECT {name} FROM {{t}} WHERE long = 7)"
        assert rows(world, equal) == Counter([(1,)]), name
    assert rows(world, "SELECT count(*) FROM {t} WHERE struct.city = 'Oslo' AND list[1] = 1") == Counter([(1,)])
    world.stores.close()


def test_a_query_joins_tables_and_one_that_fails_leases_none(real, world, tmp_path):
    other = CutWorld(real, tmp_path / "other")
    world.ingest({0: 40})
    other.ingest({0: 10, 1: 10})
    both = f"SELECT count(*) FROM {world.row.name} a JOIN {other.row.name} b USING (id)"
    assert rows(world, both) == Counter([(20,)])
    with pytest.raises(UsageError, match="reads 2"):
        rows(world, both, at=1)
    with pytest.raises(QueryFailed):
        rows(world, f"SELECT nme FROM {world.row.name}, {other.row.name}")
    assert (
        real.ask("SELECT * FROM harness.leases WHERE table_id = ANY(%s)", [[world.row.table_id, other.row.table_id]])
        == []
    )
    other.stores.close()


# -- the command ------------------------------------------------------------------------------------------------------


def harness(world: CutWorld, *arguments: str, text: str | None = None) -> Result:
    settings = world.stores.settings
    env = {
        "HARNESS_DSN": settings.dsn,
        "HARNESS_WAREHOUSE": settings.warehouse,
        "HARNESS_CATALOG_NAME": settings.catalog_name,
        "HARNESS_KAFKA": "127.0.0.1:1",
        "HARNESS_SPARK": "local[1]",
    }
    return CliRunner().invoke(cli, ["--home", str(world.folder), "sql", *arguments], input=text, env=env)


def test_the_command_writes_a_file_to_the_end_or_not_at_all(world, tmp_path):
    world.ingest({0: 40, 1: 25})
    name, sql = world.row.name, f"SELECT _id, s FROM (SELECT id AS _id, s FROM {world.row.name}) WHERE _id < 3"
    for suffix in ("csv", "json", "parquet"):
        done = harness(world, sql, "--output", str(tmp_path / f"rows.{suffix}"))
        assert done.exit_code == 0, done.output
    assert pq.read_table(tmp_path / "rows.parquet").num_rows == 6
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 6
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 7
    before = sorted(tmp_path.iterdir())
    failed = harness(world, f"SELECT error('no') FROM {name}", "--output", str(tmp_path / "other.csv"))
    assert failed.exit_code == 2, failed.output
    assert sorted(tmp_path.iterdir()) == before


def test_the_command_takes_sql_from_a_file_and_from_standard_input(world, tmp_path):
    world.ingest({0: 40})
    file = tmp_path / "report.sql"
    file.write_text(f"SELECT count(*) AS a FROM {world.row.name};\nSELECT max(id) AS b FROM {world.row.name};")
    assert harness(world, "-f", str(file)).stdout.split() == ["a", "--", "40", "b", "--", "39"]
    assert harness(world, text=f"SELECT count(*) AS a FROM {world.row.name}").stdout.split() == ["a", "--", "40"]
    shown = harness(world, f"SELECT id FROM {world.row.name} ORDER BY id", "--limit", "2", "--json")
    assert json.loads(shown.stdout) == {"columns": ["id"], "rows": [{"id": 0}, {"id": 1}]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["SELECT 1; SELECT 2", "--json"], "2 statements"),
        (["SELECT 1 AS a, 2 AS a", "--json"], "add an alias"),
        (["SELECT 1", "--memory", "1MB"], "at least 64 MiB"),
        (["SELECT 1", "--output", "x.xml"], "unknown format"),
        (["SELECT 1", "-f", "x.sql"], "not both"),
        (["SELECT 1", "--engine", "spark", "--output", "x.csv"], "--output is not for"),
        (["DROP TABLE x"], "not DROP"),
    ],
)
def test_wrong_usage_of_the_command_is_named(world, arguments, said):
    done = harness(world, *arguments)
    assert (done.exit_code, said in done.output) == (2, True), done.output


# -- other libraries --------------------------------------------------------------------------------------------------


def test_other_libraries_get_the_rows_of_a_read(world):
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20})
    table, truth = world.table, world.truth()
    columns = ["_kafka_partition", "_kafka_offset", "s"]
    assert Counter(table.to_polars(columns=columns).rows()) == truth
    assert sorted(table.to_pandas(columns=["id"])["id"]) == sorted(offset for _, offset, _ in truth.elements())
    stream = pa.RecordBatchReader.from_stream(table)
    assert stream.read_all().num_rows == truth.total()
    assert pl.DataFrame(table).height == truth.total()


def test_a_relation_of_duckdb_is_one_cut_until_its_lease_ends(world):
    world.ingest({0: 40})
    with duckdb.connect() as connection:
        found = world.table.to_duckdb(connection, view="orders")
        world.ingest({0: 60})
        assert found.filter("id >= 38").order("id").fetchall() == [
            tuple(row.values()) for row in world.table.read(where="id >= 38 and id < 40").sort_by("id").to_pylist()
        ]
        assert connection.sql("SELECT count(*) FROM orders").fetchall() == [(40,)]
        with world.stores.database.transaction() as open_:
            open_.execute("DELETE FROM harness.leases WHERE table_id = %s", [world.row.table_id])
        with pytest.raises(duckdb.Error, match="has ended"):
            connection.sql("SELECT count(*) FROM orders").fetchall()
    assert world.table.to_duckdb().aggregate("count(*)").fetchall() == [(60,)]


def test_ctrl_c_ends_a_query_at_once_with_130_and_leaves_no_file(world, tmp_path):
    world.ingest({0: 40})
    settings, target = world.stores.settings, tmp_path / "rows.csv"
    long = f"SELECT t.i FROM {world.row.name}, range(1000000000000) t(i) WHERE t.i % 10007 = id"
    command = [sys.executable, "-m", "harness_pipelines.cli.main", "--home", str(tmp_path), "sql", long]
    env = {**os.environ, "HARNESS_DSN": settings.dsn, "HARNESS_WAREHOUSE": settings.warehouse}
    env |= {"HARNESS_CATALOG_NAME": settings.catalog_name, "HARNESS_KAFKA": "127.0.0.1:1", "HARNESS_SPARK": "local[1]"}
    with subprocess.Popen([*command, "--output", str(target)], env=env, stderr=subprocess.PIPE, text=True) as process:
        try:

            def writes() -> bool:
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                return bool(list(tmp_path.glob(f".{target.name}.*.new")))

            wait_until(writes, "the query writes", every_s=0.05)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert "interrupted" in (process.stderr.read() if process.stderr else "")
        finally:
            process.kill()  # else this block would wait for a query that does not end
    assert list(tmp_path.glob("*rows.csv*")) == []
