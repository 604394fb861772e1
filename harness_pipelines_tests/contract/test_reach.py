"""The reach that the ledger keeps is what metadata files say, each of which is opened once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from harness_pipelines import faults
from harness_pipelines.audit.fsck.columns import columns_of_views
from harness_pipelines.audit.fsck.lake import named_locations
from harness_pipelines.audit.fsck.reach import kept_reach_has_no_more, kept_reach_is_whole
from harness_pipelines.audit.fsck.rule import Look
from harness_pipelines.lakes.iceberg.checked_io import KEPT, _Input
from harness_pipelines.lakes.iceberg.inspect.survey import survey
from harness_pipelines.ledgers.postgres import reach
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ledgers.postgres.named_snapshots import Snapshots
from harness_pipelines.ledgers.postgres.reach import InReach, KeptReach
from harness_pipelines.ledgers.postgres.table_state import TableStates
from harness_pipelines.ports import rows
from harness_pipelines.ports.errors import MetadataMissing
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.lake.files import LiveFilesUnlisted
from harness_pipelines.protocol.versions import Version
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, RealRig
from harness_pipelines_tests.contract.test_lake import moved


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    """As in a process that has just begun."""
    KEPT.clear()
    yield
    KEPT.clear()


@pytest.fixture
def table(real: RealRig) -> TableRow:
    table = real.table(partitions=1, files=True, retention={"versions": "1h"})
    real.ingest(table, {0: (0, 40)})
    return table


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file of metadata was opened."""
    found, given = Counter[str](), _Input.open

    def counting(file: _Input, seekable: bool = True) -> Any:
        found[file.location] += 1
        return given(file, seekable)

    monkeypatch.setattr(_Input, "open", counting)
    return found


def tiered(real: RealRig, table: TableRow, claim: Claim, *, moves: int, first: int = 0) -> list[Version]:
    return [moved(real, table, claim, low, low + 1) for low in range(first, first + moves)]


def kept(real: RealRig, table: TableRow, wanted: InReach, of: KeptReach | None = None) -> set[str]:
    found = of or KeptReach(real.database, real.catalog)
    found.catch_up(table, wanted)
    return {path for paths, is_reached in found.paths(table, "stream", wanted) if is_reached for path in paths}


def said(real: RealRig, table: TableRow, *versions: Version) -> set[str]:
    """What the metadata of *versions* says, read in full."""
    return {path for v in versions for path, _ in real.catalog.main(v.stream.metadata).paths()}


def all_of(real: RealRig, table: TableRow) -> list[Version]:
    return [version for number in range(1, real.ledger.head(table).version + 1) if (version := of(real, table, number))]


def of(real: RealRig, table: TableRow, number: int) -> Version:
    [row] = real.database.rows("upkeep/versions_of", {"table_id": table.table_id, "versions": [number]})
    return rows.version(row)


def test_the_kept_reach_is_what_the_metadata_of_the_versions_in_reach_says(real: RealRig, table: TableRow):
    tiered(real, table, real.claim(table), moves=23)  # manifests are merged on the way
    every = all_of(real, table)

    for first, pinned in ((1, ()), (24, ()), (20, (3,)), (24, (1, 2, 12))):
        wanted = InReach(retained_from=first, pinned=frozenset(pinned))
        needed = [v for v in every if v.version >= first or v.version in pinned]
        assert kept(real, table, wanted) == said(real, table, *needed)


def test_each_file_of_metadata_is_opened_once_by_whatever_process(real: RealRig, table: TableRow, reads: Counter[str]):
    claim, all_kept = real.claim(table), InReach(retained_from=0, pinned=frozenset())
    for first in range(0, 24, 2):
        tiered(real, table, claim, moves=2, first=first)
        KEPT.clear()
        before = reads.copy()
        kept(real, table, all_kept)
        assert max((reads - before).values()) == 1
        KEPT.clear()
        before = reads.copy()
        kept(real, table, all_kept)
        assert not reads - before


def test_only_versions_in_reach_are_read_and_one_that_comes_in_reach_later_is_then(
    real: RealRig, table: TableRow, reads: Counter[str]
):
    tiered(real, table, real.claim(table), moves=6)
    every = all_of(real, table)
    KEPT.clear()
    reads.clear()
    assert kept(real, table, InReach(retained_from=5, pinned=frozenset())) == said(real, table, *every[4:])
    assert not {every[1].stream.metadata, every[2].stream.metadata} & reads.keys()

    wanted = InReach(retained_from=5, pinned=frozenset({2}))
    assert kept(real, table, wanted) == said(real, table, every[1], *every[4:])
    assert kept(real, table, wanted) == said(real, table, every[1], *every[4:])


def test_what_was_read_is_kept_where_a_later_version_cannot_be_read(
    real: RealRig, table: TableRow, reads: Counter[str]
):
    versions = tiered(real, table, real.claim(table), moves=5)
    lost = versions[3].stream.metadata
    content = (path := Path(urlsplit(lost).path)).read_bytes()
    path.unlink()
    KEPT.clear()
    wanted = InReach(retained_from=0, pinned=frozenset())

    with pytest.raises(MetadataMissing, match=path.name):
        kept(real, table, wanted)

    path.write_bytes(content)
    KEPT.clear()
    reads.clear()
    kept(real, table, wanted)
    assert {v.stream.metadata for v in versions} & reads.keys() == {v.stream.metadata for v in versions[3:]}


def test_who_reads_at_the_same_time_writes_it_once(real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch):
    """A dry run beside a worker: the second finds that the first was there, and begins again."""
    monkeypatch.setattr(reach, "VERSIONS_PER_WRITE", 2)
    tiered(real, table, real.claim(table), moves=5)
    every, wanted = all_of(real, table), InReach(retained_from=0, pinned=frozenset())

    def another() -> None:
        faults.disarm()
        kept(real, table, InReach(retained_from=3, pinned=frozenset()))

    faults.arm("expire.after_reach", another)
    try:
        assert kept(real, table, wanted) == said(real, table, *every)
    finally:
        faults.disarm()
    twice = "SELECT path, first FROM harness.reach WHERE table_id = %s AND last IS NULL"
    found = [row["path"] for row in real.ask(twice, [table.table_id])]
    assert len(found) == len(set(found))


def test_a_batch_that_is_cut_off_is_read_again(real: RealRig, table: TableRow):
    tiered(real, table, real.claim(table), moves=3)
    wanted = InReach(retained_from=0, pinned=frozenset())

    def dies() -> None:
        raise RuntimeError("cut off")

    faults.arm("expire.in_reach", dies)
    try:
        with pytest.raises(RuntimeError, match="cut off"):
            kept(real, table, wanted)
    finally:
        faults.disarm()
    assert real.ask("SELECT FROM harness.reach WHERE table_id = %s", [table.table_id]) == []

    assert kept(real, table, wanted) == said(real, table, *all_of(real, table))


def test_versions_that_are_leased_named_or_built_on_are_in_reach_however_old(real: RealRig, table: TableRow):
    claim = real.claim(table)
    tiered(real, table, claim, moves=2)
    Leases(real.readers).look(real.again(table), lease=HOUR, holder="reader")
    tiered(real, table, claim, moves=2, first=2)
    Snapshots(real.database).create(f"s{table.table_id}", [table])
    tiered(real, table, claim, moves=2, first=4)
    real.plan(table, claim, {0: 6}, {0: 7})
    real.ask("UPDATE harness.tables SET retained_from = 100 WHERE table_id = %s", [table.table_id])

    found = KeptReach(real.database, real.catalog).in_reach(table)

    assert found.retained_from == 100
    assert {3, 5, 7} <= found.pinned
    assert found.pinned < {3, 4, 5, 6, 7, *range(8, 100)}


def test_what_is_gone_is_forgotten_when_nothing_reaches_it_any_more(real: RealRig, table: TableRow):
    tiered(real, table, real.claim(table), moves=3)
    upkeep: Any = real.upkeep
    upkeep.condemn(real.again(table))
    [first, *_, head] = all_of(real, table)
    Path(urlsplit(first.stream.metadata).path).unlink()
    with pytest.raises(LiveFilesUnlisted):
        upkeep.condemn(real.again(table))
    real.ask("UPDATE harness.tables SET retained_from = 4 WHERE table_id = %s", [table.table_id])

    upkeep.condemn(real.again(table))

    left = {row["path"] for row in real.ask("SELECT path FROM harness.reach WHERE table_id = %s", [table.table_id])}
    assert first.stream.metadata not in left
    assert said(real, table, head) <= left


PLANTED = {
    "a file is forgotten": ("DELETE FROM harness.reach WHERE path = %(path)s", "would remove it"),
    "a file ended too early": ("UPDATE harness.reach SET last = first WHERE path = %(path)s", "would remove it"),
    "a file goes on for ever": (
        "INSERT INTO harness.reach (table_id, view, path, kind, first) VALUES (%(table)s, 'stream', 'old', 'file', 1)",
        "old: the reach",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_fsck_names_a_reach_that_is_not_what_the_lake_says(real: RealRig, table: TableRow, fault: str):
    tiered(real, table, real.claim(table), moves=4)
    kept(real, table, InReach(retained_from=0, pinned=frozenset()))
    assert fsck(real, table) == []
    [path, *_] = sorted(path for path in said(real, table, all_of(real, table)[2]) if path.endswith(".parquet"))
    statement, named = PLANTED[fault]

    real.ask(statement, {"path": path, "table": table.table_id})

    [found] = fsck(real, table)
    assert named in found
    assert path in found or "old" in found


def fsck(real: RealRig, table: TableRow) -> list[str]:
    """What the rules of the kept reach say."""
    books = TableStates(real.database, CATALOG).books(table.name)
    seen = survey(named_locations(books, "stream"), newest=books.pointers["stream"], linear=True, data=False)
    look = Look(books=books, surveys={"stream": seen}, log=None)
    return [one.detail for check in (kept_reach_is_whole, kept_reach_has_no_more) for one in check(look)]


def test_columns_of_both_views_have_the_ids_of_the_ledger_and_fsck_names_those_that_do_not(real: RealRig):
    nested = {"tags": "list<string>", "at": "struct<x: double, seen: map<string, long>>"}
    plain = {"id": "long", "n": "decimal(12, 2)", "t": "time"}
    table = real.table(partitions=1, files=True, views="both", columns={**plain, **nested})

    def found() -> list[str]:
        books = TableStates(real.database, CATALOG).books(table.name)
        seen = {
            view: survey(named_locations(books, view), newest=books.pointers[view], linear=True, data=False)
            for view in books.views
        }
        return [one.detail for one in columns_of_views(Look(books=books, surveys=seen, log=None))]

    assert found() == []
    other = "UPDATE harness.schemas SET fields = replace(fields::text, %s, %s)::jsonb WHERE table_id = %s"
    real.ask(other, ['"element-id": ', '"element-id": 9', table.table_id])
    assert [one.partition(" is ")[0] for one in found()] == [
        f"column tags.element of {table.spec.namespace}.{name}" for name in table.views.values()
    ]
