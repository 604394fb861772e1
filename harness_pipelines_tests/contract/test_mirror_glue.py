"""AWS Glue follows a table: its entry names the metadata file of a published version, whatever happens between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from harness_pipelines import faults
from harness_pipelines.lakes.iceberg.catalogs.glue import hive_type
from harness_pipelines.protocol.lake.mirrors import VERSION, MirrorNameTaken
from harness_pipelines.stages import mirror
from harness_pipelines_tests.contract.mirror_rig import NAMESPACE, Mirrored
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.contract.test_mirror import rows_of_another
from harness_pipelines_tests.contract.test_mirror_drops import expired
from harness_pipelines_tests.glue import LOGIN, REGION, GlueServer, glue
from harness_pipelines_tests.unit.drivers.test_gateways import GATEWAYS, NO_KEY, Answer, behind

METADATA = "metadata_location"
#: What is before and after a round belongs to the claim, not to the catalog.
IN_A_ROUND = [
    name for name, one in faults.POINTS.items() if one.stage == "mirror" and not name.endswith(("_claim", "_release"))
]


@pytest.fixture(scope="module")
def started() -> Iterator[GlueServer]:
    with glue() as server:
        server.catalog.create_namespace(NAMESPACE)
        yield server


@pytest.fixture
def server(started: GlueServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GlueServer]:
    monkeypatch.setattr(mirror, "PAUSE_S", 0.0)
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    started.refused = 0
    yield started
    started.before_update = None
    faults.disarm()


class InGlue(Mirrored):
    """A table whose entry says which version it shows: our own metadata file does not."""

    def __init__(self, real: RealRig, server: GlueServer, **words: Any) -> None:
        named = {"type": "glue", "properties": {"glue.region": REGION}, **words.pop("catalog", {})}
        super().__init__(real, server, catalog=named, **words)

    @property
    def name(self) -> str:
        return f"{NAMESPACE}.{self.table.views['stream']}"

    @property
    def parameters(self) -> dict[str, str]:
        found: dict[str, str] = self.server.entry(self.name)["Parameters"]
        return found

    def shown(self) -> tuple[int | None, str | None]:
        return self.there.metadata.current_snapshot_id, self.parameters.get(VERSION)


@pytest.fixture
def mirrored(real: RealRig, server: GlueServer) -> InGlue:
    return InGlue(real, server, views="stream")


def test_an_entry_is_made_and_names_our_metadata_of_each_version(mirrored: InGlue):
    for _ in range(3):
        version = mirrored.publish()
        assert mirrored.step() is None
        mirrored.assert_shows(version)
        assert mirrored.parameters[METADATA] == version.stream.metadata
    columns = mirrored.server.entry(mirrored.name)["StorageDescriptor"]["Columns"]
    assert {"Name": "_kafka_offset", "Type": "bigint"} in columns


def test_both_views_follow_one_after_the_other(real: RealRig, server: GlueServer):
    both = InGlue(real, server, views="both")
    version = both.publish()
    assert both.step() is None
    for view, name in both.table.views.items():
        assert server.entry(f"{NAMESPACE}.{name}")["Parameters"][METADATA] == version.views[view].metadata


@pytest.mark.parametrize("point", IN_A_ROUND)
def test_a_worker_that_dies_anywhere_is_followed_by_one_that_asks_glue(mirrored: InGlue, point: str):
    mirrored.publish()
    if point != "mirror.during_files":
        mirrored.step()
    version = mirrored.publish()
    faults.arm_from({"HARNESS_FAULT": f"{point}=raise"})
    with pytest.raises(faults.FaultInjected):
        mirrored.step()
    faults.disarm()
    mirrored.worker = mirrored.another()
    assert mirrored.step() is None
    mirrored.assert_shows(version)


def test_an_update_of_an_entry_that_changed_meanwhile_is_refused_and_looked_at_again(mirrored: InGlue):
    mirrored.publish()
    mirrored.step()
    version = mirrored.publish()
    mirrored.server.before_update = lambda: mirrored.server.touch(mirrored.name)

    assert mirrored.step() is None

    assert mirrored.server.refused == 1
    mirrored.assert_shows(version)


def test_a_foreign_append_between_look_and_update_is_not_written_over(mirrored: InGlue):
    mirrored.publish()
    mirrored.step()
    mirrored.publish()
    there = mirrored.there
    mirrored.server.before_update = lambda: there.append(rows_of_another(there))

    assert "which no version of the ledger has" in (mirrored.step() or "")

    assert mirrored.server.refused == 1
    assert mirrored.there.scan(row_filter="s = 'not ours'").to_arrow().num_rows == 1


def test_a_foreign_append_stops_the_mirror_until_it_is_dropped(mirrored: InGlue):
    mirrored.publish()
    mirrored.step()
    mirrored.there.append(rows_of_another(mirrored.there))
    version = mirrored.publish()

    assert "which no version of the ledger has" in (mirrored.step() or "")

    assert mirrored.real.ledger.table(mirrored.table.name).stopped is None
    mirrored.assert_follows_when_dropped(version)


def test_a_foreign_rollback_stops_the_mirror(mirrored: InGlue):
    old = mirrored.publish()
    mirrored.step()
    mirrored.publish()
    mirrored.step()
    mirrored.there.manage_snapshots().rollback_to_snapshot(old.stream.snapshot).commit()

    assert "another writer set it back" in (mirrored.step() or "")


def test_an_entry_of_another_kind_is_left_alone(mirrored: InGlue):
    mirrored.publish()
    entry: Any = {"Name": mirrored.table.views["stream"], "TableType": "EXTERNAL_TABLE", "Parameters": {}}
    mirrored.server.catalog.glue.create_table(DatabaseName=NAMESPACE, TableInput=entry)

    assert "that this ledger never registered" in (mirrored.step() or "")

    stores: Any = mirrored.real
    [catalog] = mirrored.table.spec.catalogs
    with pytest.raises(MirrorNameTaken):
        mirror.drop_mirror(stores, mirrored.table, catalog, really=True)
    assert mirrored.parameters == {}


@pytest.mark.parametrize(
    ("place", "said"),
    [("s3a://theirs/x", "s3a://theirs/x"), ("gs://theirs/x", "gs://theirs/x"), ("s3:///x", "s3:///x")],
)
def test_an_entry_that_names_files_of_no_store_of_ours_holds_its_mirror_alone(mirrored: InGlue, place: str, said: str):
    mirrored.publish()
    parameters = {"table_type": "ICEBERG", METADATA: f"{place}/metadata/1.metadata.json"}
    entry: Any = {"Name": mirrored.table.views["stream"], "TableType": "EXTERNAL_TABLE", "Parameters": parameters}
    mirrored.server.catalog.glue.create_table(DatabaseName=NAMESPACE, TableInput=entry)

    trouble = mirrored.step() or ""

    assert said in trouble
    assert "HARNESS_WAREHOUSE" not in trouble
    assert mirrored.lag.trouble == trouble


def test_an_entry_that_names_files_which_this_login_may_not_read_holds_its_mirror_alone(mirrored: InGlue):
    mirrored.publish()
    denied = Answer(NO_KEY.replace(b"NoSuchKey", b"AccessDenied"), status=403, headers={})
    with behind(denied) as (place, _):
        parameters = {"table_type": "ICEBERG", METADATA: f"{place}/metadata/1.metadata.json"}
        entry: Any = {"Name": mirrored.table.views["stream"], "TableType": "EXTERNAL_TABLE", "Parameters": parameters}
        mirrored.server.catalog.glue.create_table(DatabaseName=NAMESPACE, TableInput=entry)

        trouble = mirrored.step() or ""

    assert "may not do that" in trouble
    assert mirrored.lag.trouble == trouble


@pytest.mark.parametrize("answer", GATEWAYS)
def test_what_a_gateway_says_is_no_word_of_glue(real: RealRig, server: GlueServer, answer: str):
    with behind(GATEWAYS[answer]) as (_, gateway):
        uri = f"http://127.0.0.1:{gateway.server.server_port}"
        mirrored = InGlue(real, server, views="stream", catalog={"uri": uri})
        mirrored.publish()
        trouble = mirrored.step() or ""
        assert "gave no answer" in trouble
        assert mirrored.lag.trouble == trouble


def test_a_database_that_is_missing_is_named(real: RealRig, server: GlueServer):
    mirrored = InGlue(real, server, views="stream", catalog={"namespace": "nowhere"})
    mirrored.publish()
    assert "has no database nowhere" in (mirrored.step() or "")


def test_a_login_that_is_missing_is_named(mirrored: InGlue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in LOGIN:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    mirrored.publish()
    assert "there is no login for it" in (mirrored.step() or "")


def test_a_server_that_is_away_is_named_and_the_table_goes_on(real: RealRig, server: GlueServer):
    mirrored = InGlue(real, server, views="stream", catalog={"uri": "http://127.0.0.1:9"})
    mirrored.publish()
    assert "gave no answer" in (mirrored.step() or "")
    assert real.ledger.table(mirrored.table.name).stopped is None


def test_expire_keeps_the_files_that_the_entry_leads_to(real: RealRig, server: GlueServer):
    mirrored = InGlue(real, server, views="stream", retention={"versions": "1s", "snapshots": 1, "grace": "1s"})
    mirrored.publish()
    mirrored.step()
    named = mirrored.parameters[METADATA]
    for _ in range(4):
        mirrored.publish()

    deleted = expired(mirrored)

    assert Path(urlsplit(named).path).exists()
    assert named not in deleted
    assert mirrored.there.scan().to_arrow().num_rows == 5


def test_a_probe_says_what_glue_can_and_leaves_nothing(mirrored: InGlue):
    found = mirrored.real.foreign_catalog(mirrored.table, mirrored.table.spec.catalogs[0]).probe()
    assert found.is_usable
    assert found.asserts
    assert not found.transactions
    assert [name for _, name in mirrored.server.catalog.list_tables(NAMESPACE) if "probe" in name] == []


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (LongType(), "bigint"),
        (DecimalType(12, 2), "decimal(12,2)"),
        (TimestamptzType(), "timestamp"),
        (DateType(), "date"),
        (TimeType(), "string"),
        (UUIDType(), "string"),
        (FixedType(16), "binary"),
        (BinaryType(), "binary"),
        (ListType(1, LongType()), "array<bigint>"),
        (MapType(1, StringType(), 2, UUIDType()), "map<string,string>"),
        (StructType(NestedField(1, "a", LongType()), NestedField(2, "b", DateType())), "struct<a:bigint,b:date>"),
    ],
    ids=str,
)
def test_a_column_has_the_word_of_hive(kind: IcebergType, word: str):
    assert hive_type(kind) == word
