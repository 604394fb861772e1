"""Of a record that is too large to be kept whole the head is kept, with the length and the digest of the whole."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ledgers.postgres.ledger import insert_refused
from harness_pipelines.ledgers.postgres.views.quarantine import set_aside
from harness_pipelines.ports.ledger import Boundary, RefusedRecord, TableRow
from harness_pipelines.ports.refused import HEAD_BYTES, WHOLE_BYTES_MAX
from harness_pipelines.protocol.changes.corrections import BEFORE_ALL, Wanted
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.replay.quarantine import _decoded
from harness_pipelines_tests.contract.stores_rig import RealRig, agrees, decoded

LARGE = WHOLE_BYTES_MAX + 1
AT = Wanted(partition=0, offset=2)


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return real.table()


def record(**parts: Any) -> RefusedRecord:
    told: dict[str, Any] = {"key": b"k", "value": b"v", "headers": [("h", b"1"), ("none", None)], **parts}
    return RefusedRecord(partition=0, offset=2, reason="too_large", detail="large", kafka_ms=None, **told)


def ingested(real: RealRig, table: TableRow, bad: RefusedRecord) -> None:
    claim = real.claim(table, Stage.INGEST)
    writer = real.writer(table, claim)
    part = replace(decoded(table, 0, 0, 5, refused=[2]), refused=[bad])
    assert writer.commit(real.segments.open_segment(table), [part], confirm=agrees) == 4
    writer.close()
    assert real.segments.positions(table)[0].buffer_hi == 5, "later ones go on"


def told(real: RealRig, table: TableRow) -> Any:
    [found] = real.with_bytes(table, set_aside(real.readers, table, AT, limit=2))
    return found


@pytest.mark.parametrize("size", [LARGE, 2**30])
def test_a_value_that_is_larger_than_postgres_stores_does_not_hold_its_partition(
    real: RealRig, table: TableRow, size: int
):
    value = b"{" + bytes(size - 1)
    ingested(real, table, record(value=value))

    found = told(real, table)
    assert (found["whole"], found["value_bytes"], found["key_bytes"]) == (False, size, 1)
    assert (found["value"], found["key"]) == (value[:HEAD_BYTES], b"k")
    [kept] = real.ask("SELECT value_sha256, key_sha256 FROM harness.quarantine WHERE table_id = %s", [table.table_id])
    assert bytes(kept["value_sha256"]) == hashlib.sha256(value).digest()
    assert bytes(kept["key_sha256"]) == hashlib.sha256(b"k").digest()


def test_so_with_a_key_and_with_headers(real: RealRig):
    for parts in ({"key": bytes(LARGE)}, {"headers": [("a", b"1"), ("b", bytes(LARGE)), ("c", b"2")]}):
        table = real.table()
        ingested(real, table, record(**parts))
        found = told(real, table)
        assert found["whole"] is False
        assert (len(found["key"]), found["key_bytes"]) == ((HEAD_BYTES, LARGE) if "key" in parts else (1, 1))
        assert [name for name, _ in found["headers"]] == (["a", "b"] if "headers" in parts else ["h", "none"])
        assert sum(len(value or "") // 2 for _, value in found["headers"]) <= HEAD_BYTES


def test_a_record_that_is_as_large_as_is_decoded_is_kept_whole(real: RealRig, table: TableRow):
    value = bytes(WHOLE_BYTES_MAX)
    ingested(real, table, record(value=value))
    found = told(real, table)
    assert (found["whole"], found["value"] == value, found["value_bytes"]) == (True, True, WHOLE_BYTES_MAX)


def test_a_head_is_never_decoded_as_if_it_were_the_record(real: RealRig, table: TableRow):
    """JSON that ends with spaces: its head is a row."""
    ingested(real, table, record(value=b'{"id":1}' + b" " * LARGE))
    held = real.corrections(table).held(AT, after=BEFORE_ALL, limit=9)
    rows, refused, filtered = _decoded(table, held, RecordCodec(table.spec))
    assert (rows.num_rows, filtered) == (0, 0)
    [(_, reason, detail)] = refused
    assert reason == "too_large"
    assert "only its first bytes are kept" in detail


def test_a_move_of_tier_keeps_the_head_too(real: RealRig, table: TableRow):
    real.ingest(table, {0: (0, 5)})
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 0}, {0: 5})
    boundary = Boundary(claim=claim, move=move, rows=4, bytes=9, refused=[record(value=bytes(LARGE))])
    with real.database.transaction() as connection:
        insert_refused(connection, table.table_id, boundary)
    found = told(real, table)
    assert (found["whole"], found["value_bytes"], len(found["value"])) == (False, LARGE, HEAD_BYTES)
