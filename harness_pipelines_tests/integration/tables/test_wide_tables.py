"""Tables with rows that are larger than a page of Postgres: by every route the same rows as of a narrow one."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.buffers.postgres.types import rest_of
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import COLUMNS_MAX, Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.integration.tables.test_routes_agree import (
    COLUMNS,
    EVOLUTIONS,
    EXTREMES,
    LEAST,
    MOST,
    SESSIONS,
    Routes,
    drawn,
    nested,
    produce,
    stepped,
)
from harness_pipelines_tests.keyed import KeyedRig, assert_sound
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import TableRig

MakeRig = Callable[..., TableRig]
#: Texts that alone fill what a page has room for, so that all columns behind them share one value.
FILL = {f"w{i}": "string" for i in range(312)}
PART = "".join(chr(random.Random(i).randrange(0x4E00, 0x9FFF)) for i in range(100))  #: that is not made shorter

GIVEN: dict[str, tuple[Any, Any]] = {
    "boolean": (True, True),
    "int": (-(2**31), -(2**31)),
    "long": (2**62, 2**62),
    "float": (0.10000000149011612, 0.10000000149011612),
    "double": (0.1, 0.1),
    "decimal(9,2)": ("-9999999.99", Decimal("-9999999.99")),
    "decimal(18,6)": ("999999999999.999999", Decimal("999999999999.999999")),
    "decimal(38,10)": ("9" * 28 + ".0000000001", Decimal("9" * 28 + ".0000000001")),
    "date": ("9999-12-31", date(9999, 12, 31)),
    "time": ("23:59:59.999999", time(23, 59, 59, 999999)),
    "timestamp": ("2024-07-01T12:00:00.000001", datetime(2024, 7, 1, 12, 0, 0, 1)),
    "timestamptz": ("2024-07-01T12:00:00.000001Z", datetime(2024, 7, 1, 12, 0, 0, 1, tzinfo=UTC)),
    "string": (PART, PART),
    "binary": ("////" * 100, b"\xff" * 300),
    "uuid": ("ffffffff-ffff-ffff-ffff-fffffffffffe", b"\xff" * 15 + b"\xfe"),
    "list<string>": ([PART, None], [PART, None]),
    "map<string, long>": ({"a": 2**62, "": None}, [("a", 2**62), ("", None)]),
    "struct<a: long, b: list<double>>": ({"a": 2**62, "b": [0.1]}, {"a": 2**62, "b": [0.1]}),
}  #: by type a value of a record, and of its row
KINDS = [*GIVEN]


def widest(make_rig: MakeRig, kind: str, **words: Any) -> tuple[TableRig, dict[str, Any], dict[str, Any]]:
    """A table of as many columns as one may have, a record with a value in each of them, and its row."""
    columns = {f"c{i}": kind if kind != "mixed" else KINDS[i % len(KINDS)] for i in range(COLUMNS_MAX - 1)}
    rig = make_rig(partitions=1, columns={"id": "long", **columns}, **words)
    given, row = ({name: GIVEN[kind][at] for name, kind in columns.items()} for at in (0, 1))
    return rig, given, row


@pytest.mark.parametrize("kind", ["mixed", *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS)])
def test_a_row_of_as_many_columns_as_a_table_has_is_a_row(make_rig: MakeRig, kind: str):
    rig, given, row = widest(make_rig, kind)
    produce(rig, [{"id": 1}, {"id": 2, **given}, {"id": 3}])
    rig.ingest()

    assert rig.quarantine() == {}
    in_buffer = rig.table.read().sort_by("id")
    assert in_buffer.column("id").to_pylist() == [1, 2, 3]
    assert all(column.null_count == 2 for column in in_buffer.columns[1:])
    assert in_buffer.to_pylist()[1] == {"id": 2, **row}


@pytest.mark.long
@pytest.mark.timeout(1800)  # fifteen hundred columns in Spark, for each of its plans
@pytest.mark.parametrize("kind", ["mixed", *KINDS])
def test_a_row_of_as_many_columns_as_a_table_has_is_the_same_by_every_route(
    make_rig: MakeRig, tmp_path: Path, kind: str
):
    rig, given, row = widest(make_rig, kind, views="both", layout={"columns": ["id"]})
    for number, tier in enumerate(("batch", "stream", "buffer")):
        produce(rig, [{"id": number, **given}])
        stepped(rig, tier)
    assert rig.quarantine() == {}
    assert rig.table.read().sort_by("id").to_pylist() == [{"id": number, **row} for number in range(3)]
    Routes(rig, tmp_path).assert_agree(SESSIONS[1:])


SHAPES: dict[str, dict[str, Any]] = {
    "both": {"views": "both", "layout": {"columns": ["ts", "tz"]}},
    "keyed": {"views": "both", "key": ["ts", "d38"], "layout": {"columns": ["ts"]}},
}


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_every_route_gives_the_extremes_of_every_type_of_a_wide_table(make_rig: MakeRig, tmp_path: Path, shape: str):
    rig = make_rig(partitions=1, columns=FILL | COLUMNS, **SHAPES[shape])
    assert {*COLUMNS} - {*rest_of(rig.table.spec)} == {
        *SHAPES[shape].get("key", ()),
        *SHAPES[shape]["layout"]["columns"],
    }
    for tier in ("batch", "stream", "buffer"):
        produce(rig, [{**one, "w0": PART, "w311": PART} for one in EXTREMES])
        stepped(rig, tier)
    assert rig.quarantine() == {}
    Routes(rig, tmp_path).assert_agree(SESSIONS[1:])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_route_gives_the_same_values_of_a_wide_table_across_evolutions(
    make_rig: MakeRig, tmp_path: Path, shape: str
):
    rig = make_rig(partitions=1, columns=FILL | COLUMNS, **SHAPES[shape])
    routes = Routes(rig, tmp_path)
    for tier in ("batch", "stream", "buffer"):
        rig.kafka.produce(rig.topic, 0, drawn(30))
        stepped(rig, tier)
    routes.assert_agree(SESSIONS)
    for i, changes in enumerate(EVOLUTIONS):
        rig.harness.table(rig.name).evolve(ColumnChanges(**changes))
        rig.table = rig.harness.table(rig.name)
        row = {**nested(MOST), "more": {"x": i, "ts": LEAST["ts"]}, "s": i, "bytes": "/w=="}
        produce(rig, [row])
        stepped(rig, ("buffer", "batch", "stream")[i % 3])
        routes.assert_agree(SESSIONS[i % 2 :][:1])
    assert rig.table.audit(full=True).to_json()["ok"]


@pytest.mark.long
def test_a_narrow_table_grows_wide_and_narrow_again_and_old_segments_are_read_beside_new_ones(
    make_rig: MakeRig, tmp_path: Path
):
    names = [*FILL][:300]
    rig = make_rig(
        partitions=1, views="stream", layout=None, columns={"id": "long", "n": "int"} | dict.fromkeys(names, "string")
    )
    full: dict[str, Any] = {**dict.fromkeys([*FILL], PART), "n": 5}
    produce(rig, [{**full, "id": 1}])
    rig.ingest()
    assert rest_of(rig.table.spec) == ()
    wide = [Column(name=name, type=parse_type("string")) for name in [*FILL][300:]]
    steps: list[dict[str, Any]] = [
        {"add": tuple(wide)},
        {"rename": (("w311", "last"),), "widen": (("n", parse_type("long")),), "order": ("n",)},
        {"drop": tuple(names[:100])},
    ]
    widths = []
    for i, changes in enumerate(steps):
        rig.harness.table(rig.name).evolve(ColumnChanges(**changes))
        rig.table = rig.harness.table(rig.name)
        widths.append(len(rest_of(rig.table.spec)))
        produce(rig, [{**full, "id": i + 2, "last": PART + "!"}])
        rig.ingest()

    assert widths[0] > 0 and widths[1] > 0 and widths[2] == 0
    expected = [(1, None), (2, PART), (3, PART + "!"), (4, PART + "!")]
    assert rig.quarantine() == {}
    found = rig.table.read(columns=["id", "last", "w305", "n"]).sort_by("id")
    assert [(row["id"], row["last"]) for row in found.to_pylist()] == expected
    assert found.column("w305").null_count == 1
    Routes(rig, tmp_path).assert_agree([])
    assert rig.table.read(where=f"last = '{PART}'", columns=["id"]).to_pylist() == [{"id": 2}]
    rig.tier()
    assert [
        (row["id"], row["last"]) for row in rig.table.read(columns=["id", "last"]).sort_by("id").to_pylist()
    ] == expected
    assert rig.table.audit(full=True).to_json()["ok"]
    assert fsck(rig.stores, [rig.name]).ok


@pytest.mark.long
def test_a_wide_keyed_table_finds_merges_recalls_and_deletes_by_key(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(
        harness, kafka, partitions=1, columns={**FILL, "id": "long", "region": "string", "n": "int", "s": "string"}
    )
    assert {*rest_of(rig.table.spec)} == {"s", "w310", "w311"}
    values = {name: PART for name in FILL}
    rig.put(*({"id": i, "region": "eu", "n": i, "s": f"s{i}", **values} for i in range(5)))
    rig.merge_all()
    rig.put({"id": 1, "region": "eu", "n": 10, "s": "new", **values}, {"id": 9, "region": "eu", "n": 9, "s": "s9"})
    rig.delete((2, "eu"))
    rig.ingest()

    rig.assert_exact()
    found = rig.table.get({"id": 1, "region": "eu"})
    assert found is not None and (found["s"], found["w311"]) == ("new", PART)
    assert rig.table.get({"id": 2, "region": "eu"}) is None
    assert rig.table.read(where="s = 'new'", columns=["id", "w311"]).to_pylist() == [{"id": 1, "w311": PART}]
    rig.merge_all()
    assert rig.recall("id >= 3 and id < 9").rows == 2
    rig.put({"id": 3, "region": "eu", "n": 30, "s": "again", **values})
    rig.ingest()
    rig.assert_exact()
    rig.merge_all()
    rig.assert_exact()
    assert {row["s"] for row in rig.recalled_rows().to_pylist()} == {"again", "s4"}
    assert_sound(rig)
