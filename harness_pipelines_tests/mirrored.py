"""Reads of a mirrored table by clients of a foreign catalog, and the judge: each read is of a published version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog import Catalog

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import ViewName
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import COORDINATES, TableRig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Read = Callable[[ViewName], pa.Table]  #: the coordinates of all rows of a view, by its name in the foreign catalog
Offsets = Mapping[int, list[int]]


def by_pyiceberg(client: Catalog, rig: TableRig) -> Read:
    """As PyIceberg reads, which asks *client* for the table each time."""
    return lambda view: client.load_table(_name(rig, view)).scan(selected_fields=COORDINATES).to_arrow()


def by_spark(spark: SparkSession, rig: TableRig, *, uri: str, options: Mapping[str, str]) -> Read:
    """As Spark reads through Iceberg's REST catalog at *uri*, which the session is given a catalog for."""
    catalog = f"other_{rig.topic}"
    settings = {"type": "rest", "uri": uri, "cache-enabled": "false", **options}
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{catalog}.{name}", value)
    spark.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
    return lambda view: spark.table(f"{catalog}.{_name(rig, view)}").select(*COORDINATES).toArrow()


def version_of(rig: TableRig, view: ViewName, rows: pa.Table) -> int:
    """The newest published version whose *view* has exactly *rows*. Raises: AssertionError if there is none."""
    found: dict[int, list[int]] = {}
    for partition, offset in zip(*(rows.column(name).to_pylist() for name in COORDINATES), strict=True):
        found.setdefault(partition, []).append(offset)
    versions = rig.stores.tables.versions(rig.table.row)  # after the read: it shows nothing that is published later
    for version in reversed(versions):
        highs = {p: (b.batch_hi if view == "batch" else b.stream_hi, b.start) for p, b in version.bounds.items()}
        if {p: list(range(start, high)) for p, (high, start) in highs.items() if high > start} == {
            partition: sorted(offsets) for partition, offsets in found.items()
        }:
            return version.version
    seen = {partition: (min(offsets), max(offsets), len(offsets)) for partition, offsets in found.items()}
    raise AssertionError(f"no version has these rows of the {view} view (partition: first, last, count): {seen}")


@contextmanager
def read_all_along(rig: TableRig, reads: Mapping[str, Read]) -> Iterator[dict[str, list[int]]]:
    """Read the views by each of *reads* while the block lasts; yields the versions that each saw, one after another.

    Raises: what a read raises, and AssertionError for one that is not of a published version, or older than the last.
    """
    seen: dict[str, list[int]] = {name: [] for name in reads}
    broken: list[BaseException] = []
    done = threading.Event()

    def follow(name: str) -> None:
        newest = dict.fromkeys(rig.table.row.views, 0)
        try:
            while not done.is_set():
                for view in rig.table.row.views:
                    version = version_of(rig, view, reads[name](view))
                    assert version >= newest[view], f"{name}: version {version} after {newest[view]}"
                    newest[view] = version
                    seen[name].append(version)
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=follow, args=[name], daemon=True) for name in reads]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        done.set()
        for thread in threads:
            thread.join(120)
    if broken:
        raise broken[0]


def await_reads(seen: Mapping[str, list[int]], condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds, and all that `read_all_along` runs have read both views after that."""
    wait_until(condition, "the foreign catalog shows what was produced", deadline_s=240)
    before = {name: len(found) for name, found in seen.items()}
    wait_until(lambda: all(len(seen[n]) >= before[n] + 4 for n in seen), f"{list(seen)} read on", deadline_s=240)


def assert_published_all_along(rig: TableRig, reads: Mapping[str, Read]) -> None:
    """While a worker with all stages moves new records, each of *reads* sees published versions alone, and several."""
    with read_all_along(rig, reads) as seen, rig.working(frozenset(Stage)):
        for _ in range(4):
            rig.produce(30)
            await_reads(seen, lambda: next(iter(reads.values()))("batch").num_rows >= rig.truth.total())
    assert all(len(set(found)) >= 3 for found in seen.values()), seen
    rig.assert_exact()


def _name(rig: TableRig, view: ViewName) -> str:
    return f"faults.{rig.table.row.views[view]}"
