"""A database that is lost, and rows of another writer: what the lake alone can give."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from pyiceberg.table import Table as IcebergTable

import harness_pipelines as hp
from harness_pipelines.audit.repair.foreign import ForeignRefused, accept_foreign, find_foreign
from harness_pipelines.audit.repair.rebuild import SchemaDiffers, plan_rebuild, rebuild
from harness_pipelines.cli.main import cli
from harness_pipelines.drivers.files import listed
from harness_pipelines.errors import HarnessError
from harness_pipelines.lakes.iceberg.write.checks import ForeignFiles
from harness_pipelines.ledgers.postgres.acts.reconcile import Reconciler
from harness_pipelines.ports.errors import TableHeld, TopicRecreated, WarehouseTaken
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.load import dump_spec
from harness_pipelines_tests.lake_files import content, name_of
from harness_pipelines_tests.other_catalog import sql_catalog
from harness_pipelines_tests.rig import TableRig, environment

from .scratch import Scratch, assert_sound, forget, work


def rebuilt(place: Scratch, rig: TableRig) -> dict[str, Any]:
    plan = plan_rebuild(place.harness.stores, rig.table.spec)
    rebuild(place.harness.stores, plan, take_over=True)
    place.resume(rig)
    return plan.to_json()


def test_a_lost_database_is_rebuilt_from_lake_and_kafka(place: Scratch):
    rig = place.rig()
    for count in (20, 10):
        rig.produce(count)
        work(rig)
    rig.produce(5)
    rig.ingest()  # only the lost buffer has them, and Kafka
    place.lose()
    shown = rebuilt(place, rig)
    assert [(p["stream_hi"], p["rows"]) for p in shown["partitions"]] == [(30, 30), (30, 30)]
    assert [(r["low"], r["high"]) for r in shown["again"]] == [(30, 35), (30, 35)]
    assert shown["lost"] == []
    rig.produce(5)
    work(rig)
    rig.assert_exact()
    assert_sound(rig)


def test_a_lost_database_and_a_log_that_was_dropped_leave_what_the_lake_has_and_name_the_rest(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(20)
    work(rig)
    in_lake = rig.read()
    rig.produce(5)
    rig.ingest()
    forget(rig)
    place.lose()
    assert rebuilt(place, rig)["lost"] == [{"partition": 0, "low": 20, "high": 25}]
    assert rig.read() == in_lake
    with pytest.raises(HarnessError, match=r"retention removed \[20, 25\)"):
        work(rig)


def test_a_rebuild_goes_by_the_topic_and_the_columns_that_the_lake_names(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(5)
    work(rig)
    place.lose()
    stores, spec = place.harness.stores, rig.table.spec
    other = spec.model_copy(update={"columns": spec.columns[:-1]})
    with pytest.raises(SchemaDiffers, match=r"columns.*: s; nothing was changed"):
        plan_rebuild(stores, other)
    rig.kafka.delete(rig.topic)
    rig.kafka.create(1, topic=rig.topic)
    with pytest.raises(TopicRecreated):
        plan_rebuild(stores, spec)


def test_a_rebuild_in_a_warehouse_of_another_ledger_is_refused_until_it_is_taken_over(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(5)
    work(rig)
    with hp.connect(place.settings) as other:  # it is not lost at all
        other.stores.ownership.check()
        place.lose()
        stores, mark = place.harness.stores, content(place.mark)
        plan = plan_rebuild(stores, rig.table.spec)
        with pytest.raises(WarehouseTaken, match=r"belongs to the ledger.*--rebuild --take-over --yes"):
            rebuild(stores, plan)
        assert content(place.mark) == mark
        assert place.harness.tables() == []
        other.stores.ownership.confirm()

        rebuild(stores, plan, take_over=True)

        with pytest.raises(WarehouseTaken, match=f"in database {place.database}"):
            other.stores.ownership.confirm()
        with pytest.raises(WarehouseTaken):
            other.stores.guard.check(other.table(rig.name).row, other.stores.ledger)
    place.resume(rig)
    work(rig)
    rig.assert_exact()


def test_the_command_says_what_it_would_rebuild_and_then_does(place: Scratch, tmp_path: Path):
    rig = place.rig(partitions=1)
    rig.produce(5)
    work(rig)
    first = place.database
    place.lose()
    file = tmp_path / "table.yaml"
    file.write_text(yaml.safe_dump(dump_spec(rig.table.spec)))
    assert "add --yes to settle it" in command(place, str(file), "--rebuild", code=2)
    before = place.rows()
    said = command(place, str(file), "--rebuild", "--dry-run")
    assert "partition 0: the lake has [0, 5), 5 rows" in said
    assert re.search(rf"the warehouse belongs to the ledger \S+ in database {first} at .*--take-over", said), said
    assert "belongs to the ledger" in command(place, str(file), "--rebuild", "--yes", code=1)
    assert place.rows() == before
    command(place, str(file), "--rebuild", "--take-over", "--yes")
    place.resume(rig)
    rig.produce(5)
    work(rig)
    rig.assert_exact()
    assert "nothing to settle" in command(place, rig.name, "--dry-run")
    assert "nothing is to be rebuilt" in command(place, str(file), "--rebuild", "--dry-run", code=1)


def test_files_in_a_warehouse_that_somebody_took_over_are_not_purged(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(5)
    work(rig)
    theirs = {"ledger": "theirs", "instance": "1/1", "epoch": "theirs", "database": "theirs"}
    place.let_mark_be(json.dumps(theirs).encode())

    assert "in database theirs" in harness(place, "table", "drop", rig.name, "--yes", "--purge", code=1)
    rig.assert_exact()
    harness(place, "table", "drop", rig.name, "--yes")


def command(place: Scratch, *arguments: str, code: int = 0) -> str:
    return harness(place, "reconcile", *arguments, code=code)


def harness(place: Scratch, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, list(arguments), env=environment(place.settings))
    assert result.exit_code == code, result.output
    return result.output


# -- rows of another writer ---------------------------------------------------------------------------------


@contextmanager
def foreign(place: Scratch, rig: TableRig) -> Iterator[IcebergTable]:
    """The stream view as another engine's catalog gives it."""
    catalog = sql_catalog("harness", dsn=place.dsn, warehouse=place.warehouse)
    try:
        yield catalog.load_table((rig.table.spec.namespace, rig.table.row.tiered_view))
    finally:
        catalog.close()


def stranger(number: int, **changes: Any) -> Mapping[str, Any]:
    coordinates = {"_kafka_partition": 0, "_kafka_offset": number, "_kafka_timestamp": datetime(2026, 1, 1, tzinfo=UTC)}
    return {"id": number, "n": 1, "s": "foreign", **coordinates, "_op": "put", "_schema_version": 1, **changes}


def append(place: Scratch, rig: TableRig, *rows: Mapping[str, Any]) -> None:
    with foreign(place, rig) as view:
        view.append(pa.Table.from_pylist([dict(row) for row in rows], schema=view.schema().as_arrow()))


def seen_by_others(place: Scratch, rig: TableRig) -> list[tuple[int, int, int]]:
    with foreign(place, rig) as view:
        found = view.scan().to_arrow()
    names = ("_kafka_partition", "_kafka_offset", "id")
    return sorted(zip(*(found.column(name).to_pylist() for name in names), strict=True))


def test_foreign_rows_are_taken_over_under_a_partition_of_their_own_and_the_table_goes_on(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    append(place, rig, stranger(3), stranger(900))  # one at a place that the log has, one above it
    rig.produce(5)
    with pytest.raises(ForeignFiles, match="--accept-foreign"):
        work(rig)
    before = place.rows()
    found = find_foreign(rig.stores, rig.table.row)
    assert (found.rows, found.low) == (2, 0)
    assert place.rows() == before
    taken = accept_foreign(rig.stores, rig.table.row, found)
    assert taken.version == rig.table.versions()[-1].version
    assert find_foreign(rig.stores, rig.table.row).rows == 0
    work(rig)
    rig.assert_exact()  # a read shows the records of the topic
    assert [row for row in seen_by_others(place, rig) if row[0] < 0] == [(-1, 0, 3), (-1, 1, 900)]
    assert_sound(rig)
    append(place, rig, stranger(7))
    accept_foreign(rig.stores, rig.table.row, find_foreign(rig.stores, rig.table.row))
    assert [row for row in seen_by_others(place, rig) if row[0] < 0] == [(-1, 0, 3), (-1, 1, 900), (-1, 2, 7)]
    rig.produce(5)
    work(rig)
    rig.assert_exact()
    assert_sound(rig)


def metadata_of(rig: TableRig) -> set[str]:
    """Names of the metadata files of the stream view, whoever wrote them."""
    pointer = rig.stores.ledger.pointer(rig.table.row, "stream")
    found = {name_of(file.path) for file in listed(pointer.rpartition("/")[0])}
    return {name for name in found if name.endswith(".metadata.json")}


def test_foreign_rows_are_not_written_anew_while_somebody_works_on_the_table(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    append(place, rig, stranger(3))
    found = find_foreign(rig.stores, rig.table.row)
    claim = rig.claim(Stage.TIER)
    before, files = place.rows(), metadata_of(rig)

    with pytest.raises(TableHeld, match=rf"tier by {claim.holder}.*nothing was changed"):
        accept_foreign(rig.stores, rig.table.row, found)

    assert (place.rows(), metadata_of(rig)) == (before, files)
    rig.stores.ledger.release(claim)
    accept_foreign(rig.stores, rig.table.row, found)
    work(rig)
    rig.assert_exact()
    assert_sound(rig)


def test_files_of_a_take_over_that_did_not_happen_name_a_move_that_the_ledger_knows(place: Scratch):
    """Else they would look like those of moves that a restored backup has lost, and stop the table."""
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    append(place, rig, stranger(3))
    found, files = find_foreign(rig.stores, rig.table.row), metadata_of(rig)
    with patch.object(Reconciler, "accept", side_effect=TableHeld("a worker came meanwhile")), pytest.raises(TableHeld):
        accept_foreign(rig.stores, rig.table.row, found)
    assert metadata_of(rig) > files, "files were written"

    place.reopen(rig)
    rig.stores.guard.check(rig.table.row, rig.stores.ledger)
    accept_foreign(rig.stores, rig.table.row, find_foreign(rig.stores, rig.table.row))

    assert [row for row in seen_by_others(place, rig) if row[0] < 0] == [(-1, 0, 3)]
    taken = rig.stores.ledger.moves(rig.table.row, stage=Stage.TIER, limit=2)
    assert [(m["state"], m["trigger"]) for m in taken] == [
        ("COMMITTED", "accept-foreign"),
        ("ABANDONED", "accept-foreign"),
    ]
    rig.produce(5)
    work(rig)
    rig.assert_exact()
    assert_sound(rig)


def test_what_another_writer_removed_is_not_taken_over(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    with foreign(place, rig) as view:
        view.delete("_kafka_offset < 5")
    before = place.rows()
    with pytest.raises(
        ForeignRefused, match=rf"removed 1 files.*nothing was changed.*harness revert {rig.name} --to 2"
    ):
        find_foreign(rig.stores, rig.table.row)
    assert place.rows() == before


def test_rows_that_came_after_the_look_are_not_taken_over_unseen(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    append(place, rig, stranger(1))
    found = find_foreign(rig.stores, rig.table.row)
    append(place, rig, stranger(2))
    with pytest.raises(ForeignRefused, match="look again"):
        accept_foreign(rig.stores, rig.table.row, found)
    assert rig.table.versions()[-1].version == 2
