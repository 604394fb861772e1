"""The lake is plain Iceberg: other engines read both views from their metadata files and see what was produced."""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pytest

import harness_pipelines as hp
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.services import Endpoints
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines_tests.engines import READERS, with_spark
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import COORDINATES, TableRig

COLUMNS = {
    "id": {"type": "long", "required": True},
    "b": "boolean",
    "i": "int",
    "f": "float",
    "d": "double",
    "price": "decimal(12,2)",
    "wide": "decimal(38,5)",
    "day": "date",
    "at": "timestamp",
    "zoned": "timestamptz",
    "clock": "time",
    "s": "string",
    "u": "uuid",
    "raw": "binary",
    "tags": "list<string>",
    "counts": "map<string, int>",
    "place": "struct<city: string, pos: struct<lat: double, lon: double>>",
}
RECORDS = 120  #: per partition and round
PARTITIONS, ROUNDS = 2, 2
Row = dict[str, Any]  #: a record's values by column, as Python has them


def record(number: int, rng: random.Random) -> Row:
    """Values of every type, some of them NULL; columns that the batch view is clustered by among them."""
    moment = datetime(1900, 1, 1) + timedelta(microseconds=rng.randrange(200 * 365 * 86_400 * 10**6))
    row: Row = {
        "b": rng.random() < 0.5,
        "i": rng.randrange(-(2**31), 2**31),
        "f": rng.choice([0.5, -1.25, 2.0**100]),
        "d": rng.choice([1e308, rng.gauss(0, 1)]),
        "price": Decimal(rng.randrange(-(10**12), 10**12)).scaleb(-2),
        "wide": Decimal(f"{rng.randrange(-(10**30), 10**30)}.12345"),
        "day": date(1900, 1, 1) + timedelta(days=rng.randrange(200 * 365)),
        "at": moment,
        "zoned": moment.replace(tzinfo=UTC),
        "clock": moment.time(),
        "s": rng.choice(["", "ä", "\U0001f600" * 9, f"https://example.org/{number}"]),
        "u": UUID(int=rng.getrandbits(128)),
        "raw": rng.randbytes(7),
        "tags": ["a", None, str(number)][: rng.randrange(4)],
        "counts": {"x": number, "y": None},
        "place": {"city": "Oslo", "pos": rng.choice([None, {"lat": 59.9, "lon": None}])},
    }
    return {"id": number} | {name: rng.choice([value] * 4 + [None]) for name, value in row.items()}


def encoded(row: Row) -> bytes:
    def text(value: Any) -> str:
        return b64encode(value).decode() if isinstance(value, bytes) else str(value)

    clock = row["clock"] and str(row["clock"])  # orjson 3.13 leaves out a leading 0 of a time's microseconds
    return orjson.dumps(row | {"clock": clock}, default=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A table that went through two merges and a relayout."""

    views: Mapping[str, str]  #: metadata files by what they pin
    rows: list[Row]  #: what was produced, with its coordinate, in that order


@pytest.fixture(scope="module")
def lake(harness: hp.Harness, endpoints: Endpoints) -> Iterator[Lake]:
    assert endpoints.kafka is not None
    with closing(KafkaRig(endpoints.kafka, properties=endpoints.kafka_login)) as kafka:
        yield filled(harness, kafka)


def filled(harness: hp.Harness, kafka: KafkaRig) -> Lake:
    rng = random.Random(5)
    layout = {"columns": ["i", "s", "wide"], "regions": 6}
    rig = TableRig(harness, kafka, partitions=PARTITIONS, views="both", columns=COLUMNS, layout=layout)
    made: dict[int, Row] = {}
    for _ in range(ROUNDS):
        for partition in range(PARTITIONS):
            rows = [record(len(made) + i, rng) for i in range(RECORDS)]
            kafka.produce(rig.topic, partition, [encoded(row) for row in rows])
            made |= {row["id"]: row for row in rows}
        rig.ingest()
        rig.tier()
        clustered(rig)
    merged = batch(rig)
    clustered(rig)
    assert [bool(move["lo"]) for move in harness.stores.ledger.moves(rig.table.row, stage=Stage.OTREE)] == [
        False, True, True,
    ], "newest first: a relayout after two merges"  # fmt: skip
    rig.assert_exact()
    stream = harness.stores.ledger.head(rig.table.row).stream.metadata
    return Lake(
        views={"stream view": stream, "after merges": merged, "after a relayout": batch(rig)},
        rows=[made[number] | dict(zip(COORDINATES, at, strict=True)) for *at, number in sorted(rig.truth)],
    )


def clustered(rig: TableRig) -> None:
    """One move of otree."""
    claim = rig.claim(Stage.OTREE)
    assert otree_once(rig.stores, rig.table.row, claim, trigger="test") is not None
    rig.stores.ledger.release(claim)


def batch(rig: TableRig) -> str:
    found = rig.stores.ledger.head(rig.table.row).batch
    assert found is not None
    return found.metadata


@pytest.mark.parametrize("engine", [*READERS, "Spark"])
def test_other_engines_see_the_rows_that_were_produced(lake: Lake, harness: hp.Harness, engine: str):
    read = with_spark(harness.stores.spark(), harness.stores.settings) if engine == "Spark" else READERS[engine]
    unread = {"u"} if engine == "Daft" else set()
    expected = [{name: value for name, value in row.items() if name not in unread} for row in lake.rows]
    if engine == "chDB":
        expected = list(map(without_nested_null, expected))

    for where, holds in (("id >= 0", lambda row: True), ("i < -1000000000", is_low)):
        wanted = [row for row in expected if holds(row)]
        assert len(wanted) > RECORDS / 2
        for view, metadata in lake.views.items():
            found = read(metadata, where).select(list(wanted[0])).to_pylist()
            rows = sorted(map(plain, found), key=lambda row: [row[name] for name in COORDINATES])
            assert rows == wanted, f"{view}, {where}"


def is_low(row: Row) -> bool:
    return row["i"] is not None and row["i"] < -1_000_000_000


def plain(row: Row) -> Row:
    """*row* with one Python type per column, whichever of its own types an engine gave."""
    return {name: value if value is None else PLAIN.get(name, lambda v: v)(value) for name, value in row.items()}


PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "at": lambda value: value.replace(tzinfo=None),
    "clock": lambda micros: (datetime.min + timedelta(microseconds=micros)).time(),
    "u": lambda value: UUID(bytes=value) if isinstance(value, bytes) else UUID(str(value)),
    "raw": lambda value: bytes.fromhex(value) if isinstance(value, str) else value,
    "counts": dict,
}


def without_nested_null(row: Row) -> Row:
    """*row* as an engine has it that knows no NULL list, map or struct."""
    place = row["place"] or {"city": None, "pos": None}
    pos = place["pos"] or {"lat": None, "lon": None}
    return row | {"tags": row["tags"] or [], "counts": row["counts"] or {}, "place": place | {"pos": pos}}
