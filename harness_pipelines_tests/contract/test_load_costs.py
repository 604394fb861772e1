"""What a load asks the ledger, writes and encodes: of these each one more is paid by every query of every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from psycopg.pq import TransactionStatus

from harness_pipelines.drivers.files import listed
from harness_pipelines.drivers.postgres import Connection, sections
from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.lakes.iceberg.cuts import avro, chunks
from harness_pipelines.protocol.cuts import cut_folder
from harness_pipelines.serve.catalog import FreshCatalog, fresh_catalog
from harness_pipelines.serve.values import CutAnswer, Warehouse
from harness_pipelines_tests.contract.cut_rig import HOUR, CutWorld
from harness_pipelines_tests.contract.stores_rig import RealRig

pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")
NAMES = {text: f"{file}/{name}" for file in ("cuts", "ledger", "reads") for name, text in sections(file).items()}
COMMIT = "COMMIT"


class Costs:
    """A server of one table, and what its loads ask: statements by name, and the ends of transactions."""

    def __init__(self, world: CutWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.asked = world, list[str]()
        self.catalog: FreshCatalog = fresh_catalog(world.stores, keep=HOUR, every=timedelta(0), globs=("*",))
        execute, commit = Connection.execute, Connection.commit

        def noted(connection: Connection, query: Any, *given: Any, **words: Any) -> Any:
            self.asked.append(NAMES.get(query, str(query)))
            return execute(connection, query, *given, **words)

        def committed(connection: Connection) -> None:
            if connection.info.transaction_status is not TransactionStatus.IDLE:
                self.asked.append(COMMIT)
            commit(connection)

        monkeypatch.setattr(Connection, "execute", noted)
        monkeypatch.setattr(Connection, "commit", committed)

    def load(self) -> CutAnswer:
        """One that looks; the newest cut is kept for long enough."""
        later = "UPDATE harness.cuts SET until = until + interval '1 hour' WHERE table_id = %s"
        self.world.rig.ask(later, [self.world.row.table_id])
        self.world.pause()
        self.asked.clear()
        return self.catalog.cut(self.world.row.name, Warehouse())

    @property
    def files(self) -> int:
        """Files of cuts."""
        return len([*listed(cut_folder(self.world.row.spec.name, self.world.head.stream.metadata))])


@pytest.fixture
def costs(real: RealRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Costs]:
    world = CutWorld(real, tmp_path, views="both", layout={"columns": ["id"], "sample": 0})
    world.ingest({0: 40, 1: 25})
    world.tier({0: 20, 1: 20})
    world.merge({0: 10, 1: 10})
    made = Costs(world, monkeypatch)
    made.load()
    yield made
    world.stores.close()


def test_a_load_that_finds_nothing_new_asks_one_question_and_takes_no_lease(costs: Costs):
    first, files = costs.load(), costs.files
    assert costs.load().snapshot_id == first.snapshot_id
    assert costs.asked == ["cuts/known_newest"], "it is one round trip, without a transaction"
    assert costs.files == files


def test_the_state_of_a_table_that_came_to_rest_is_read_once(costs: Costs):
    costs.world.ingest({0: 41})
    made = costs.load()
    asked = []
    for _ in range(3):
        assert costs.load().snapshot_id == made.snapshot_id
        asked.append([*costs.asked])
    assert asked == [["cuts/known_newest", "cuts/newest"], ["cuts/known_newest"], ["cuts/known_newest"]]


def test_a_load_with_new_rows_looks_once_and_ends_its_lease_with_the_publication(
    costs: Costs, monkeypatch: pytest.MonkeyPatch
):
    costs.world.ingest({0: 41})
    files, encoded, encode = costs.files, list[str](), avro.data_file

    def counted(file: Any) -> bytes:
        encoded.append(file.file_path)
        return encode(file)

    monkeypatch.setattr(avro, "data_file", counted)
    made = costs.load()
    assert made.made_s is not None
    assert costs.asked == [
        "cuts/known_newest",
        "reads/async_commit", "reads/share_trim_lock", "reads/look", COMMIT,
        "cuts/is_there",
        "cuts/publish", COMMIT,
    ]  # fmt: skip
    assert costs.world.rig.ask("SELECT FROM harness.leases WHERE table_id = %s", [costs.world.row.table_id]) == []
    assert costs.files == files + 4, "a chunk, the manifest of the chunks, the list, the metadata"
    assert len(encoded) == 1, "of the other chunks it is known what a manifest says of them"
    newest = costs.world.stores.cuts.newest(costs.world.row).cut
    assert newest is not None
    group = pq.read_metadata(urlsplit(newest.chunks[-1].path).path).row_group(0)
    assert not any(group.column(at).has_dictionary_page for at in range(group.num_columns)), "they take time and room"


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_small_chunk_is_read_only_by_a_server_that_has_not_its_rows_in_memory(
    costs: Costs, monkeypatch: pytest.MonkeyPatch, in_memory: bool
):
    opened, read = list[str](), chunks._read

    def counted(io: Any, plan: Any, chunk: Any) -> Any:
        opened.append(chunk.path)
        return read(io, plan, chunk)

    monkeypatch.setattr(chunks, "_read", counted)
    old = costs.world.stores.cuts.newest(costs.world.row).cut
    assert old is not None
    if not in_memory:
        KEPT.clear()
    costs.world.ingest({0: 60})
    costs.load()
    newest = costs.world.stores.cuts.newest(costs.world.row).cut
    assert newest is not None and len(newest.chunks) == 1, "the rows of both are in one chunk"
    assert opened == ([] if in_memory else [old.chunks[0].path])
    costs.world.assert_exact(newest)


@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.ingest({1: 26}),
        lambda world: world.tier({0: 30}),
        lambda world: world.merge({0: 15}),
    ],
    ids=["ingest", "tier", "merge"],
)
def test_whatever_changes_is_seen_by_the_next_load(costs: Costs, change: Callable[[CutWorld], None]):
    before = costs.load()
    change(costs.world)
    after = costs.load()
    assert after.snapshot_id != before.snapshot_id
    assert costs.load().snapshot_id == after.snapshot_id
