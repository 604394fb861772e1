"""What the ledger remembers of mirrors: each of its table and its catalog alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from harness_pipelines.ledgers.postgres.acts.drop import drop_table
from harness_pipelines.ports.errors import MirrorsLeft
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake.mirrors import Seen
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, MINUTE, RealRig

OURS, OTHER = "lakehouse", "athena"
OLDER = """
UPDATE harness.versions SET committed_at = committed_at - (4 - version) * interval '1 hour' WHERE table_id = %s
"""
CATALOGS = [{"name": name, "type": "rest", "uri": "http://127.0.0.1:1"} for name in (OTHER, OURS)]


@pytest.fixture
def table(real: RealRig) -> TableRow:
    """Versions 1 to 3, an hour apart."""
    made = real.table(partitions=1, catalogs=CATALOGS)
    real.ingest(made, {0: (0, 10)})
    real.move(made, {0: 0}, {0: 5})
    real.move(made, {0: 5}, {0: 10})
    real.ask(OLDER, [made.table_id])
    return made


@pytest.fixture
def claim(real: RealRig, table: TableRow) -> Claim:
    return real.claim(table, Stage.MIRROR)


def seen(version: int, *names: str, uuid: str = "u") -> dict[Any, Seen]:
    return {"stream": Seen(uuid=uuid, snapshot=1, version=version, names=names)}


def row(real: RealRig, table: TableRow, catalog: str) -> Mapping[str, Any]:
    key = [table.table_id, catalog]
    [found] = real.ask("SELECT * FROM harness.mirrors WHERE table_id = %s AND catalog = %s", key)
    return found


def test_what_is_intended_is_the_head_once_for_each_catalog(real: RealRig, table: TableRow, claim: Claim):
    book = real.mirrors
    assert book.state(table, OURS).head == 3
    assert book.state(table, OURS).holds == ()
    assert book.intend(table, OURS, claim).version == 3
    real.ingest(table, {0: (10, 20)})
    real.move(table, {0: 10}, {0: 20})
    for _ in range(2):
        assert book.intend(table, OURS, claim).version == 4
    assert book.state(table, OURS).holds == (3, 4)
    assert book.state(table, OTHER).holds == ()
    book.intend(table, OTHER, claim)
    assert (book.state(table, OURS).holds, book.state(table, OTHER).holds) == ((3, 4), (4,))


def test_a_file_is_registered_once_with_its_catalog(real: RealRig, table: TableRow, claim: Claim):
    book = real.mirrors
    assert not book.register(table, OURS, claim, metadata="a")  # nothing was intended
    for catalog in (OURS, OTHER):
        book.intend(table, catalog, claim)
    for name in ("a", "a", "b"):
        assert book.register(table, OURS, claim, metadata=name)
    assert (row(real, table, OURS)["registered"], row(real, table, OTHER)["registered"]) == (["a", "b"], [])


def test_what_was_seen_replaces_what_was_sent_and_a_trouble_began_when_it_did(
    real: RealRig, table: TableRow, claim: Claim
):
    book = real.mirrors
    for catalog in (OURS, OTHER):
        book.intend(table, catalog, claim)
        book.trouble(table, catalog, "away")
    real.ask("UPDATE harness.mirrors SET trouble_since = 'yesterday' WHERE table_id = %s", [table.table_id])
    book.trouble(table, OURS, "still away")
    found = row(real, table, OURS)
    assert (found["trouble"], book.state(table, OURS).trouble) == ("still away", "still away")
    assert found["trouble_since"] == row(real, table, OTHER)["trouble_since"]

    book.settle(table, OURS, claim, version=2, seen=seen(2, "y", "x", "y"))
    settled, other = row(real, table, OURS), row(real, table, OTHER)
    assert (settled["version"], settled["holds"], settled["names"]) == (2, [2], ["x", "y"])
    assert (settled["trouble"], settled["trouble_since"], settled["uuids"]) == (None, None, {"stream": "u"})
    assert (other["version"], other["holds"], other["trouble"], other["looked_at"]) == (None, [3], "away", None)

    real.ask("UPDATE harness.mirrors SET mirrored_at = 'yesterday' WHERE table_id = %s", [table.table_id])
    book.settle(table, OURS, claim, version=2, seen=seen(2))
    assert row(real, table, OURS)["mirrored_at"] < settled["mirrored_at"]  # since when it shows this one
    book.settle(table, OURS, claim, version=3, seen=seen(3))
    assert row(real, table, OURS)["mirrored_at"] > settled["mirrored_at"]
    looked_s = book.state(table, OURS).looked_s
    assert looked_s is not None and 0 <= looked_s < MINUTE.total_seconds()


def test_a_snapshot_is_known_by_its_view_its_version_and_its_table(real: RealRig, table: TableRow):
    book, head = real.mirrors, real.ledger.head(table)
    assert head.batch is not None and head.batch.snapshot != head.stream.snapshot

    def known(view: Any, snapshot: int | None, version: int | None, of: TableRow = table) -> tuple[int | None, bool]:
        found = book.known(of, view, Seen(uuid="u", snapshot=snapshot, version=version, names=()))
        return found.newest, found.is_of_version

    assert known("stream", head.stream.snapshot, 3) == (3, True)
    assert known("stream", head.stream.snapshot, 2) == (3, False)
    assert known("batch", head.stream.snapshot, 3) == (None, False)
    assert known("batch", head.batch.snapshot, 1) == (3, True)  # no move of it yet: all versions have it
    assert known("stream", head.stream.snapshot, 3, real.table(partitions=1)) == (None, False)
    assert known("stream", None, 3) == (None, False)


def test_expire_keeps_what_all_catalogs_of_a_table_may_show_and_an_hour_what_was_dropped(
    real: RealRig, table: TableRow, claim: Claim
):
    book, asked = real.mirrors, {"table_id": table.table_id}
    for catalog in (OURS, OTHER):
        book.intend(table, catalog, claim)
        book.register(table, catalog, claim, metadata=f"of {catalog}")
    book.settle(table, OTHER, claim, version=2, seen=seen(2, "named"))

    def kept() -> list[tuple[list[int], list[str]]]:
        return sorted((one["holds"], one["files"]) for one in real.database.rows("mirrors/kept", asked))

    assert kept() == [([2], [f"of {OTHER}", "named"]), ([3], [f"of {OURS}"])]
    assert not book.forget(table, OURS)  # no drop of it was begun
    book.begin_drop(table, OURS)
    assert not book.register(table, OURS, claim, metadata="late")
    assert book.register(table, OTHER, claim, metadata=f"of {OTHER}")
    assert len(kept()) == 2
    book.intend(table, OURS, claim)
    assert not book.forget(table, OURS)  # a worker follows it again
    assert book.register(table, OURS, claim, metadata=f"of {OURS}")
    for catalog in (OURS, OTHER):
        book.begin_drop(table, catalog)
    assert book.forget(table, OURS)
    book.begin_drop(table, OURS)
    assert not book.forget(table, OURS)  # so its hour is no longer
    assert book.state(table, OTHER).trouble
    book.intend(table, OTHER, claim)
    book.settle(table, OTHER, claim, version=2, seen=seen(2, "named"))
    assert book.register(table, OTHER, claim, metadata=f"of {OTHER}")
    assert book.state(table, OTHER).version == 2
    assert len(kept()) == 2
    assert not book.register(table, OURS, claim, metadata="late")
    book.settle(table, OURS, claim, version=3, seen=seen(3))
    assert row(real, table, OURS)["version"] is None
    aged = "UPDATE harness.mirrors SET dropped_at = dropped_at - %s WHERE table_id = %s"
    real.ask(aged, [timedelta(minutes=59), table.table_id])
    assert len(kept()) == 2
    real.ask(aged, [timedelta(minutes=2), table.table_id])
    assert kept() == [([2], [f"of {OTHER}", "named"])]
    book.intend(table, OURS, claim)
    assert len(kept()) == 2


def test_a_table_is_dropped_when_its_own_mirrors_are(real: RealRig, table: TableRow, claim: Claim):
    beside = real.table(partitions=1, catalogs=CATALOGS)
    real.mirrors.intend(beside, "of another table", real.claim(beside, Stage.MIRROR))
    for catalog in (OURS, OTHER):
        real.mirrors.intend(table, catalog, claim)
    real.ledger.release(claim)
    with pytest.raises(MirrorsLeft, match=rf"\({OTHER}, {OURS}\)"):
        drop_table(real.owner, table, catalog=CATALOG, dry_run=False)
    for catalog in (OURS, OTHER):
        real.mirrors.begin_drop(table, catalog)
        real.mirrors.forget(table, catalog)
    drop_table(real.owner, table, catalog=CATALOG)
    real.made.remove(table)


def test_metadata_files_that_versions_named_are_known_by_their_table(real: RealRig, table: TableRow):
    versions = real.ledger.versions(table)
    named = {pin.metadata for version in versions for pin in version.views.values()}
    found = real.database.rows("mirrors/published_files", {"table_id": table.table_id})
    assert {one["path"] for one in found} == named and len(found) == len(named)
    plain = real.table(partitions=1, views="stream")
    found = real.database.rows("mirrors/published_files", {"table_id": plain.table_id})
    assert [one["path"] for one in found] == [real.ledger.head(plain).stream.metadata]


def test_a_mirror_lags_since_the_oldest_version_that_it_does_not_show(real: RealRig, table: TableRow, claim: Claim):
    book, plain = real.mirrors, real.table(partitions=1)
    hour = HOUR.total_seconds()
    assert [(one.catalog, one.kind, one.version, one.behind) for one in book.lags([plain.name, table.name])] == [
        (OTHER, "rest", None, 1),
        (OURS, "rest", None, 1),
    ]
    book.intend(table, OURS, claim)
    book.settle(table, OURS, claim, version=1, seen=seen(1))
    other, ours = book.lags([table.name])
    assert (ours.version, ours.head, ours.behind) == (1, 3, 2)
    assert 2 * hour <= ours.lag_s < 2.5 * hour  # version 2
    assert hour <= other.lag_s < 1.5 * hour  # the head: what was before it is never missed
    book.settle(table, OURS, claim, version=3, seen=seen(3))
    assert book.lags([table.name])[1].lag_s == 0
    book.intend(table, "gone", claim)
    gone = next(one for one in book.lags([table.name]) if one.catalog == "gone")
    assert (gone.kind, gone.uri) == (None, None)
    book.begin_drop(table, "gone")
    assert "harness mirror drop" in str(next(one for one in book.lags([table.name]) if one.catalog == "gone").trouble)
    book.forget(table, "gone")
    assert {one.catalog for one in book.lags([table.name])} == {OURS, OTHER}
