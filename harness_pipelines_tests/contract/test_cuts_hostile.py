"""What no server writes, given to the ledger by a reader's login, ends by a name and harms no other server."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import sql
from harness_pipelines.ledgers.postgres import cuts as module
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.serving.cuts import Cut, CutImpossible, CutOvertaken, CutPart
from harness_pipelines.protocol.cuts import (
    BOUNDS_BYTES_MAX,
    CHUNKS_BYTES_MAX,
    FILES_BYTES_MAX,
    FILES_MAX,
    PARTS_BYTES_MAX,
    chunk_json,
    too_large,
)
from harness_pipelines_tests.contract.cut_drafts import KEEP, Server, chunk_at, moved_table, server_of
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig

HUGE = "9" * 400  #: as a number of JSON


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return moved_table(real)


@pytest.fixture
def server(real: RealRig, table: TableRow) -> Server:
    return server_of(real, table)


def refused(server: Server, **changes: Any) -> psycopg.Error:
    """What the ledger says to a reader's login that publishes a cut with these values."""
    found = server.look().draft()
    assert server.state is not None
    given: dict[str, Any] = {
        "table_id": server.table.table_id,
        "previous": server.newest.sequence if server.newest else None,
        "lease_id": server.state.lease_id,
        "keep": KEEP,
        **module._parameters(found),
        **changes,
    }
    with pytest.raises(psycopg.Error) as seen, psycopg.connect(server.cuts.database.dsn) as connection:
        connection.execute("SET ROLE harness_reader")
        connection.execute(sql("cuts/publish"), given)
    return seen.value


def raw(text: str) -> Jsonb:
    """JSON that Python would not write."""
    return Jsonb(None, dumps=lambda _: text)


BOUNDS = (
    *("null", "[]", "7", '"x"', '{"0": null}', '{"0": {}}', '{"0": "NaN"}', '{"0": [0, 0, 5, null]}'),
    *('{"0": [0, 0, 5, "9"]}', '{"0": [0, 0, 5, "NaN"]}', '{"0": [0, 0, 5, 9, 9]}', '{"0": [0, 0, 5, [9]]}'),
    *('{"0": [-1, 0, 5, 9]}', '{"0": [0, 0, 5, 8.5]}', '{"0": [0, 0, 5, 1e300]}', f'{{"0": [0, 0, 5, {HUGE}]}}'),
    *('{"00": [0, 0, 5, 9]}', '{"0": [0, 0, 5, 9], "+0": [0, 0, 5, 9]}', '{" 0": [0, 0, 5, 9]}', '{"": [0, 0, 5, 9]}'),
    *(f'{{"{HUGE}": [0, 0, 5, 9]}}', '{"x": [0, 0, 5, 9]}', '{"0": [0, 0, 5, true]}', '{"0": [5, 0, 0, 9]}'),
)


@pytest.mark.parametrize("bounds", BOUNDS, ids=lambda text: text[:30])
def test_bounds_that_are_none_are_refused_by_a_name(server: Server, real: RealRig, bounds: str):
    assert refused(server, bounds=raw(bounds)).sqlstate in ("HP016", "HP017")
    assert real.ask("SELECT FROM harness.cuts WHERE table_id = %s", [server.table.table_id]) == []


def chunk(server: Server, **changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = module._parameters(server.look().draft())["chunks"].obj[0]
    return {**told, **changes}


CHUNKS: tuple[dict[str, Any], ...] = (
    {"path": 7}, {"path": None}, {"path": "file:///etc/passwd"}, {"rows": -1}, {"rows": None}, {"rows": "4"},
    {"rows": 0.5}, {"bytes": -1}, {"bytes": 10**300}, {"sequence": -1}, {"sequence": 2**62}, {"sequence": "1"},
    {"maker": None},
    {"maker": {}}, {"entry": None}, {"entry": {}}, {"ranges": None}, {"ranges": []}, {"ranges": {"0": None}},
    {"ranges": {"0": [5]}}, {"ranges": {"0": [9, 5]}}, {"ranges": {"0": [-5, 9]}}, {"ranges": {"x": [5, 9]}},
    {"ranges": {"00": [5, 9]}}, {"ranges": {"0": ["5", "9"]}}, {"ranges": {"0": [5, 10**300]}}, {"more": 1},
)  # fmt: skip


@pytest.mark.parametrize("changes", CHUNKS, ids=str)
def test_a_chunk_that_is_none_is_refused_by_a_name(server: Server, changes: dict[str, Any]):
    told = chunk(server)
    files = [told["path"], "a"]
    found = refused(server, chunks=Jsonb([{**told, **changes}]), files=files)
    assert (found.sqlstate, "is no chunk" in str(found)) == ("HP017", True)


@pytest.mark.parametrize("chunks", ["null", "{}", "7", "[7]", "[null]", "[[]]", '["x"]', "[{}]"])
def test_chunks_of_another_shape_are_refused_by_a_name(server: Server, chunks: str):
    assert refused(server, chunks=raw(chunks)).sqlstate == "HP017"


@pytest.mark.parametrize(
    "parts",
    ["null", "[]", "7", '{"base": 7}', '{"base": null}', '{"base": {}}', '{"base": {"key": 1, "manifests": ""}}',
     '{"base": {"key": ""}}', '{"base": {"key": "", "manifests": {}}}',
     '{"base": {"key": "", "manifests": "", "x": 1}}'],
)  # fmt: skip
def test_parts_of_another_shape_are_refused_by_a_name(server: Server, parts: str):
    assert refused(server, parts=raw(parts)).sqlstate == "HP017"


@pytest.mark.parametrize(
    "word",
    ["table_id", "sequence", "snapshot_id", "timestamp_ms", "version", "schema_version", "bounds", "metadata", "chunks",
     "parts", "files", "lease_id", "keep"],
)  # fmt: skip
def test_a_value_that_is_missing_is_refused_by_a_name(server: Server, word: str):
    assert refused(server, **{word: None}).sqlstate == "HP017"


def test_files_that_are_no_list_of_names_are_refused(server: Server):
    name = server.look().draft().metadata
    for files in ([[name, name], [name, name]], [], [name, None], [f"{server.folder}/data/deep/x.parquet", name]):
        assert refused(server, files=files, metadata=name).sqlstate == "HP017"


def test_another_schema_than_the_version_has_is_refused(server: Server):
    for number in (2, -5, 2**31 - 1):
        assert refused(server, schema_version=number).sqlstate == "HP017"


def test_an_end_in_infinity_is_a_day_or_no_promise(server: Server, real: RealRig):
    cut = server.cut(keep=timedelta(days=900))
    assert cut.until - cut.published_at == timedelta(days=1)
    ask = "SELECT harness.cut_serve(%s, %s, %s::interval) AS alive"
    for keep in ("-900 days", "900000 days", None):
        with server.cuts.database.transaction() as connection:
            row = connection.execute(ask, [cut.table_id, cut.sequence, keep]).fetchone()
        assert row == {"alive": True}
    newest, now, _ = server.cuts.newest(server.table)
    assert newest is not None and newest.until <= now + timedelta(days=1)


def test_a_row_that_a_server_does_not_understand_is_retired_by_it(server: Server, real: RealRig):
    """By hand: no function writes it. Each server would else fail for as long as the cut is alive."""
    cut = server.cut()
    key = [server.table.table_id]
    real.ask("UPDATE harness.cuts SET chunks = '[7]' WHERE table_id = %s", key)
    newest, *_ = server.cuts.newest(server.table)
    assert newest is not None and newest.is_over and newest.sequence > cut.sequence
    [row] = real.ask("SELECT retired_at FROM harness.cuts WHERE table_id = %s", key)
    assert row["retired_at"] is not None
    assert server.cut().sequence > cut.sequence


# -- a log whose end the ledger does not know ---------------------------------------------------------------


@pytest.fixture
def unbuffered(real: RealRig, table: TableRow) -> Server:
    """A server of a table without a buffer: its rows above the lake are decoded from the log."""
    real.ask('UPDATE harness.tables SET spec = spec || \'{"buffer": "none"}\' WHERE table_id = %s', [table.table_id])
    return server_of(real, table)


def lied(server: Server, high: int = 10**17) -> Cut:
    """A cut that claims offsets which the log never had."""
    server.look()
    return server.publish(server.draft(bounds={0: (0, 0, 5, high)}))


def noted(real: RealRig, table: TableRow, end: int, *, ago: timedelta = timedelta()) -> None:
    """A worker notes where the log ends."""
    real.ask(
        "INSERT INTO harness.log_ends (table_id, partition, log_start, log_end, seen_at) VALUES (%s, 0, 0, %s, "
        "clock_timestamp() - %s) ON CONFLICT (table_id, partition) DO UPDATE SET log_end = excluded.log_end, "
        "seen_at = excluded.seen_at",
        [table.table_id, end, ago],
    )


def aged(real: RealRig, table: TableRow, by: timedelta) -> None:
    real.ask(
        "UPDATE harness.cuts SET published_at = published_at - %s, looked_at = looked_at - %s WHERE table_id = %s",
        [by, by, table.table_id],
    )


def test_a_cut_above_the_end_of_the_log_is_left_behind_once_a_worker_has_seen_the_end(
    unbuffered: Server, real: RealRig
):
    lied(unbuffered)
    honest: Any = {"bounds": {0: (0, 0, 5, 20)}}
    noted(real, unbuffered.table, 20)
    with pytest.raises(CutOvertaken, match="ends at offset 20"):  # the note may be of before it was published
        unbuffered.look().publish(unbuffered.draft(**honest))
    aged(real, unbuffered.table, timedelta(seconds=61))
    with pytest.raises(CutOvertaken, match="ends at offset 19"):
        unbuffered.look().publish(unbuffered.draft(bounds={0: (0, 0, 5, 19)}))
    assert unbuffered.look().publish(unbuffered.draft(**honest)).bounds == honest["bounds"]
    with pytest.raises(CutOvertaken, match="ends at offset 19"):  # from here on it never falls again
        unbuffered.look().publish(unbuffered.draft(bounds={0: (0, 0, 5, 19)}))


def test_an_old_note_of_the_end_and_one_that_is_above_let_nothing_fall(unbuffered: Server, real: RealRig):
    lied(unbuffered, 100)
    aged(real, unbuffered.table, HOUR)
    for end, ago in ((50, 2 * HOUR), (100, timedelta()), (150, timedelta())):
        noted(real, unbuffered.table, end, ago=ago)
        with pytest.raises(CutOvertaken, match="ends at offset 50"):
            unbuffered.look().publish(unbuffered.draft(bounds={0: (0, 0, 5, 50)}))


def test_the_end_of_the_log_counts_for_no_table_with_a_buffer(server: Server, real: RealRig):
    server.cut()
    aged(real, server.table, HOUR)
    noted(real, server.table, 7)
    with pytest.raises(CutOvertaken, match="ends at offset 8"):
        server.look().publish(server.draft(bounds={0: (0, 0, 5, 8)}))


# -- size ---------------------------------------------------------------------------------------------------


def test_a_cut_of_two_thousand_partitions_is_taken(real: RealRig):
    """With sixty chunks that have all of them, at offsets as large as they get."""
    made = real.table(partitions=1)
    many, base = 2000, 10**17
    real.ask(
        "INSERT INTO harness.ingest_positions SELECT (jsonb_populate_record(p, jsonb_build_object('partition', n, "
        "'buffer_hi', %s::bigint))).* FROM harness.ingest_positions p, generate_series(0, %s) n "
        "WHERE table_id = %s ON CONFLICT (table_id, partition) DO UPDATE SET buffer_hi = excluded.buffer_hi",
        [base + many, many - 1, made.table_id],
    )
    server = server_of(real, made).look()
    bounds = {p: (base, base, base, base + p) for p in range(many)}
    ranges = {p: (base, base + p) for p in range(many)}
    paths = [f"{server.folder}/data/{n:036}-chunk.parquet" for n in range(60)]
    chunks = tuple(chunk_at(path, ranges=ranges, entry=json.dumps({"x": "y" * 4000})) for path in paths)
    draft = server.draft(bounds=bounds, chunks=chunks)
    cut = server.publish(replace(draft, files=(draft.metadata, *paths)))
    assert server.cuts.newest(made)[0] == cut


def test_what_the_ledger_does_not_take_is_known_before(server: Server):
    """Each limit is the ledger's: what is as large is taken; what is larger is refused, with its size."""
    draft = server.look().draft()
    name = f"{server.folder}/data/"
    long = [f"{name}{n:03}".ljust(FILES_BYTES_MAX // 999, "x") for n in range(998)]
    most = [f"{name}{n}" for n in range(FILES_MAX - 2)]
    text = "x" * (PARTS_BYTES_MAX - len(json.dumps({"p": {"key": "", "manifests": ""}})))
    one = chunk_at(draft.chunks[0].path, entry="")
    entry = "x" * (CHUNKS_BYTES_MAX - len(json.dumps([chunk_json(one)])))
    fits: tuple[dict[str, Any], ...] = (
        {"files": (*draft.files, *most)},
        {"files": (*draft.files, *long[:-2])},
        {"parts": {"p": CutPart(key="", manifests=text)}},
        {"chunks": (replace(one, entry=entry),)},
    )
    beyond: tuple[tuple[dict[str, Any], str], ...] = (
        ({"files": (*draft.files, *most, f"{name}more")}, "1,001 files, and the ledger takes 1,000; let otree merge"),
        ({"files": (*draft.files, *(f"{one}{'x' * 20}" for one in long[:-2]))}, "bytes of paths of files"),
        ({"parts": {"p": CutPart(key="", manifests=f"{text}x")}}, "1,048,577 bytes of parts"),
        ({"chunks": (replace(one, entry=f"{entry}x"),)}, "16,777,217 bytes of chunks.*let a worker tier the table"),
    )
    for changes, said in beyond:
        with pytest.raises(CutImpossible, match=f"{server.table.name}: a cut of it has .*{said}"):
            server.publish(server.look().draft(**changes))
    for changes in fits:
        files = changes.get("files", draft.files)
        server.look()
        cut = server.publish(
            server.draft(**{"chunks": draft.chunks, **changes, "files": files, "metadata": draft.metadata})
        )
        assert cut.files == files


def test_bounds_that_the_ledger_does_not_take_are_known_before_a_file_is_written():
    many = {p: (10**17,) * 4 for p in range(12_000)}
    assert "partitions, and the ledger takes 1,048,576; read it by `harness sql`" in (too_large(many) or "")
    assert too_large({p: many[p] for p in range(11_000)}) is None
    assert len(json.dumps({str(p): list(many[p]) for p in range(11_000)})) <= BOUNDS_BYTES_MAX
