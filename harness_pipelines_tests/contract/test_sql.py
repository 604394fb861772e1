"""SQL in this process over real tables: DuckDB gives what `Table.read` gives, whatever it pushes into the scan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness_pipelines.app.sql import Sql, TableNotFound
from harness_pipelines.errors import UsageError
from harness_pipelines_tests.contract.cut_rig import CutWorld
from harness_pipelines_tests.contract.stores_rig import RealRig

pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")
PREDICATES = ("id < 7", "id IN (3, 44, 50)", "s IS NULL", "s IS NOT NULL AND id >= 12", "s = 'v3' OR id = 50", "s > 'v2'")


@pytest.fixture
def world(real: RealRig, tmp_path: Path) -> Iterator[CutWorld]:
    made = CutWorld(real, tmp_path, views="both", layout={"columns": ["id"], "sample": 0})
    yield made
    made.stores.close()


def rows(world: CutWorld, sql: str, **at) -> Counter:
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
    with Sql(world.stores) as sql, pytest.raises(Exception, match="missing|gone|not there") as found:
        with sql.run(f"SELECT sum(id) FROM {world.row.name}") as result:
            result.read_all()
    assert not isinstance(found.value, UsageError)
    assert type(found.value).__name__ == "LakeFileMissing"
