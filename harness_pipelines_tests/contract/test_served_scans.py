"""PyIceberg at a server over real tables: scans that the server plans, and tables as of a named snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from structlog.testing import capture_logs

from harness_pipelines.lakes.iceberg.cuts import scans
from harness_pipelines.serve.catalog import fresh_catalog
from harness_pipelines.serve.server import listening, serving, url_of
from harness_pipelines_tests.contract.cut_rig import HOUR, CutWorld
from harness_pipelines_tests.contract.keyed_cut_rig import KeyedWorld
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.served import ALL, application

#: A batch view names the size of row groups for Spark, which writes its files; here PyIceberg does.
pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")
FILTERS = (
    "id < 7",
    "id in (1, 5, 44)",
    "id >= 12 and not (id = 13 or s is null)",
    "s = 'row 12'",
    "s like 'row 1%'",
    "s is not null and id != 3",
    "_kafka_offset >= 41",
    "_kafka_partition = 1 and _kafka_offset < 9",
    "_kafka_timestamp > '2020-01-01T00:00:00+00:00'",
    "_kafka_timestamp < '2020-01-01T00:00:00+00:00'",
)


@pytest.fixture
def append(real: RealRig, tmp_path: Path) -> Iterator[CutWorld]:
    made = CutWorld(real, tmp_path, views="both", layout={"columns": ["id"], "sample": 0})
    yield made
    made.stores.close()


@pytest.fixture
def keyed(real: RealRig, tmp_path: Path) -> Iterator[KeyedWorld]:
    made = KeyedWorld(real, tmp_path)
    yield made
    made.stores.close()


def moved(world: CutWorld) -> None:
    """Rows in both views and in the buffer, and hidden ones."""
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20}, files=3)
    world.merge({0: 10, 1: 12}, files=2)
    world.ingest({0: 45})


@contextmanager
def served(world: CutWorld) -> Iterator[str]:
    catalog: Any = fresh_catalog(world.stores, keep=HOUR, every=timedelta(0), globs=(world.row.name,))
    with listening("127.0.0.1", 0) as listener, serving(application(catalog, plans=True), listener):
        yield url_of(listener, host="127.0.0.1", tls=False)


def loaded(url: str, world: CutWorld, **properties: str) -> Table:
    return load_catalog("h", type="rest", uri=url, token=ALL, **properties).load_table(world.row.name)


def rows_of(rows: pa.Table) -> Counter[tuple[object, ...]]:
    names = sorted(rows.column_names)
    return Counter(zip(*(rows.column(name).to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("kind", ["append", "keyed"])
def test_a_scan_that_the_server_plans_has_the_rows_of_one_that_the_engine_plans(
    kind: str, request: pytest.FixtureRequest
):
    world: CutWorld = request.getfixturevalue(kind)
    moved(world)
    with served(world) as url:
        own, planned = loaded(url, world), loaded(url, world, **{"scan-planning-mode": "server"})
        with capture_logs() as logs:
            for where in (None, *FILTERS):
                words: dict[str, Any] = {"row_filter": where} if where else {}
                found, wanted = planned.scan(**words), own.scan(**words)
                assert rows_of(found.to_arrow()) == rows_of(wanted.to_arrow()), where
                assert found.count() == wanted.count(), where
        assert sum(one["event"] == "serve.planned" for one in logs) == 2 * (len(FILTERS) + 1)
        first = planned.current_snapshot()
        assert first is not None
        before = rows_of(own.scan().to_arrow())
        world.ingest({0: 50})
        world.pause()
        assert rows_of(planned.scan(snapshot_id=first.snapshot_id).to_arrow()) == before, "of the cut that it names"
        assert planned.scan().count() == loaded(url, world).scan().count(), "without one of the state of now"


def test_files_without_a_wanted_row_are_left_out_where_a_filter_is_plain(append: CutWorld):
    moved(append)
    with served(append) as url:
        planned = loaded(url, append, **{"scan-planning-mode": "server"})

        def files(where: str) -> int:
            return len(list(planned.scan(row_filter=where).plan_files()))

        every = len(list(planned.scan().plan_files()))
        assert files("_kafka_offset >= 40") < every
        assert files("id < 0") == 0
        assert files("_kafka_timestamp < '2020-01-01T00:00:00+00:00'") == every, "a time may be written in several ways"


def test_more_files_than_a_plan_may_have_are_refused_by_name(append: CutWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scans, "FILES_MAX", 2)
    moved(append)
    with served(append) as url:
        planned = loaded(url, append, **{"scan-planning-mode": "server"})
        with pytest.raises(Exception, match="plans scans of 2 at most"):
            planned.scan().to_arrow()


def test_a_warehouse_of_a_named_snapshot_gives_its_state_whatever_the_table_does(keyed: KeyedWorld):
    moved(keyed)
    name = f"month-end.{keyed.row.table_id}"
    keyed.stores.snapshots.create(name, [keyed.row])
    with served(keyed) as url:
        before = rows_of(loaded(url, keyed).scan().to_arrow())
        keyed.ingest({0: 60, 1: 30})
        keyed.tier({0: 60, 1: 30})
        keyed.pause()
        first = loaded(url, keyed, warehouse=f"at:{name}")
        assert rows_of(first.scan().to_arrow()) == before
        assert rows_of(loaded(url, keyed).scan().to_arrow()) != before
        assert loaded(url, keyed, warehouse=f"at:{name}").metadata_location == first.metadata_location
        catalog = load_catalog("h", type="rest", uri=url, token=ALL, warehouse=f"at:{name}")
        namespace, _, table = keyed.row.name.partition(".")
        assert catalog.list_tables(namespace) == [(namespace, table)]
        planned = loaded(url, keyed, warehouse=f"at:{name}", **{"scan-planning-mode": "server"})
        assert rows_of(planned.scan().to_arrow()) == before
        with pytest.raises(NoSuchTableError, match="in snapshot none"):
            loaded(url, keyed, warehouse="at:none")
