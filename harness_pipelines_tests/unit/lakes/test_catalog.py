"""One test for each private name of PyIceberg that the harness leans on: a new release that changes one fails here."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetPropertiesUpdate

from harness_pipelines.lakes.iceberg.catalog import COORDINATE_FIELDS, StagingCatalog, view_schema
from harness_pipelines.lakes.iceberg.private.tables import Changes, apply
from harness_pipelines.lakes.iceberg.read import manifests
from harness_pipelines.lakes.iceberg.read.manifests import main_list
from harness_pipelines.ports.errors import MetadataMissing

NAME = ("shop", "orders__stream")


@pytest.fixture
def catalog(tmp_path: Path) -> StagingCatalog:
    """A catalog whose database does not exist: whatever asks it, fails."""
    return StagingCatalog("harness", warehouse=tmp_path.as_uri())


@pytest.fixture
def table(catalog: StagingCatalog, tmp_path: Path) -> Table:
    fields = [{"id": 1, "name": "id", "type": "long", "required": True}]
    location = (tmp_path / "view").as_uri()
    return catalog.stage_new(NAME, schema=view_schema(fields), location=location, properties={"a": "b"})


def folder(table: Table) -> Path:
    return Path(table.location().removeprefix("file://")) / "metadata"


def test_create_staged_table_makes_a_table_and_tells_nobody(catalog: StagingCatalog, tmp_path: Path):
    location = (tmp_path / "new").as_uri()
    staged = catalog._create_staged_table(
        NAME, view_schema([]), location, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, {"a": "b"}
    )

    assert staged.metadata.location == location
    assert staged.metadata.properties == {"a": "b"}
    assert staged.metadata_location.startswith(f"{location}/metadata/")
    assert len(staged.schema().fields) == len(COORDINATE_FIELDS)
    assert not (tmp_path / "new").exists()


def test_write_metadata_writes_the_file_that_it_is_told(table: Table, catalog: StagingCatalog):
    elsewhere = f"{table.location()}/metadata/x.metadata.json"

    MetastoreCatalog._write_metadata(metadata=table.metadata, io=table.io, metadata_path=elsewhere)

    assert catalog.at(NAME, elsewhere).metadata == table.metadata


def test_update_and_stage_table_applies_updates_and_writes_nothing(table: Table, catalog: StagingCatalog):
    before = sorted(folder(table).iterdir())

    staged = catalog._update_and_stage_table(table, NAME, (), (SetPropertiesUpdate(updates={"c": "d"}),))

    assert staged.metadata.properties == {"a": "b", "c": "d"}
    assert staged.metadata_location != table.metadata_location
    assert sorted(folder(table).iterdir()) == before


def test_load_file_io_reads_a_location_without_the_catalogs_database(table: Table, catalog: StagingCatalog):
    io = catalog._load_file_io(location=table.metadata_location)

    assert io.new_input(table.metadata_location).exists()


def test_apply_puts_an_update_into_the_same_metadata_change(table: Table, catalog: StagingCatalog):
    """`Transaction._apply` is how the branch goes in the change that publishes its files."""
    with table.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    head = table.metadata.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, "move_1_1").commit()
    files = len(list(folder(table).glob("*.metadata.json")))

    with table.transaction() as transaction:
        with transaction.update_snapshot().merge_append():
            pass
        transaction._apply((RemoveSnapshotRefUpdate(ref_name="move_1_1"),), ())

    assert set(table.metadata.refs) == {"main"}
    assert len(table.metadata.snapshots) == 2
    assert len(list(folder(table).glob("*.metadata.json"))) == files + 1


def test_changes_put_their_metadata_together_once_after_each_change(table: Table):
    changes = Changes(table)
    first = changes.table_metadata
    assert first == table.metadata
    assert changes.table_metadata is first
    apply(changes, (SetPropertiesUpdate(updates={"c": "d"}),))
    second = changes.table_metadata
    assert second.properties == {**first.properties, "c": "d"}
    assert changes.table_metadata is second
    assert "c" not in first.properties, "what was handed out before stays as it was"


def test_a_commit_stages_a_file_and_leaves_the_older_one_as_it_was(table: Table, catalog: StagingCatalog):
    old = table.metadata_location

    with table.transaction() as transaction:
        transaction.set_properties(c="d")

    assert table.metadata_location != old
    assert catalog.at(NAME, old).properties == {"a": "b"}
    assert catalog.at(NAME, table.metadata_location).properties == {"a": "b", "c": "d"}


def appended(table: Table) -> Table:
    with Changes(table) as transaction, transaction.update_snapshot().fast_append():
        pass
    return table


def test_the_manifest_list_of_main_is_the_one_that_pyiceberg_finds(table: Table, catalog: StagingCatalog):
    assert catalog.main(table.metadata_location).manifest_list is None
    for _ in range(3):
        head = appended(table).metadata.current_snapshot()
        assert head is not None
        assert catalog.main(table.metadata_location).manifest_list == head.manifest_list
        assert main_list(table.metadata_location, table.io) == head.manifest_list


def test_of_a_version_no_metadata_is_parsed_as_a_whole(
    table: Table, catalog: StagingCatalog, monkeypatch: pytest.MonkeyPatch
):
    parsed: list[str] = []

    def noting(location: str, _io: FileIO) -> TableMetadata:
        parsed.append(location)
        raise AssertionError

    appended(table)
    monkeypatch.setattr(manifests, "metadata_of", noting)
    assert catalog.main(table.metadata_location).manifest_list is not None
    assert parsed == []


def test_a_version_whose_metadata_is_packed_is_read_by_pyiceberg(table: Table, catalog: StagingCatalog):
    head = appended(table).metadata.current_snapshot()
    assert head is not None
    packed = table.metadata_location.replace(".metadata.json", ".gz.metadata.json")
    content = Path(table.metadata_location.removeprefix("file://")).read_bytes()
    Path(packed.removeprefix("file://")).write_bytes(gzip.compress(content))
    assert catalog.main(packed).manifest_list == head.manifest_list


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_of_damaged_metadata_nothing_is_believed(table: Table, catalog: StagingCatalog, content: bytes):
    damaged = folder(table) / "00009-damaged.metadata.json"
    damaged.write_bytes(content)
    with pytest.raises(MetadataMissing, match="00009-damaged"):
        catalog.main(damaged.as_uri())


def test_metadata_that_is_gone_is_named(table: Table, catalog: StagingCatalog):
    with pytest.raises(MetadataMissing, match="absent"):
        catalog.main((folder(table) / "absent.metadata.json").as_uri())
