"""Every route to the rows of a table gives the same values, in every session: Arrow is compared with Spark.

Tables with and without a buffer, keyed and not, with one view or both; each record lies in another tier; the values are
the extremes of every type; sessions have other time zones, ANSI off, names by their case; columns are changed between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness_pipelines.engines.spark.stage_session import SessionUnfit
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import Type, parse_type
from harness_pipelines_tests.integration.read.test_union_spark import in_sparks_words
from harness_pipelines_tests.integration.tables.test_spark_source import Sink
from harness_pipelines_tests.rig import OTREE, TableRig
from harness_pipelines_tests.unit.formats import values as json_values
from harness_pipelines_tests.wire import avro_bytes

MakeRig = Callable[..., TableRig]
COORDINATES = ("_kafka_timestamp", "_kafka_partition", "_kafka_offset")
LEAVES = {
    "ok": "boolean", "i": "int", "l": "long", "f": "float", "d": "double", "d9": "decimal(9,2)",
    "d18": "decimal(18,6)", "d38": "decimal(38,10)", "d38_38": "decimal(38,38)", "day": "date", "t": "time",
    "ts": "timestamp", "tz": "timestamptz", "s": "string", "bin": "binary", "u": "uuid",
}  # fmt: skip
COLUMNS = LEAVES | {
    "n": "struct<" + ", ".join(f"{name}: {kind}" for name, kind in LEAVES.items()) + ">",
    "ls": "list<timestamp>",
    "m": "map<string, decimal(38,10)>",
    "deep": "map<date, list<struct<ts: timestamp, u: uuid>>>",
}
NINES = "9" * 28 + "." + "9" * 10
LEAST: dict[str, Any] = {
    "ok": False, "i": -(2**31), "l": -(2**63), "f": -3.4028234663852886e38, "d": -1.7976931348623157e308,
    "d9": "-9999999.99", "d18": "-999999999999.999999", "d38": f"-{NINES}", "d38_38": "-0." + "9" * 38,
    "day": "0001-01-01", "t": "00:00:00", "ts": "0001-01-01T00:00:00", "tz": "0001-01-01T00:00:00Z", "s": "",
    "bin": "", "u": "00000000-0000-0000-0000-000000000000",
}  # fmt: skip
MOST: dict[str, Any] = {
    "ok": True, "i": 2**31 - 1, "l": 2**63 - 1, "f": 1.401298464324817e-45, "d": 5e-324, "d9": "9999999.99",
    "d18": "999999999999.999999", "d38": NINES, "d38_38": "0." + "9" * 38, "day": "9999-12-31",
    "t": "23:59:59.999999", "ts": "9999-12-31T23:59:59.999999", "tz": "9999-12-31T23:59:59.999999Z",
    "s": "ä\U0001f600'\"\\\n" * 3000, "bin": "////" * 3000, "u": "ffffffff-ffff-ffff-ffff-ffffffffffff",
}  # fmt: skip
ODD: dict[str, Any] = {
    "f": -0.0, "d": -0.0, "day": "1582-10-10", "ts": "1969-12-31T23:59:59.999999", "tz": "1900-01-01T00:00:00.000001Z",
    "d38": "0.0000000001", "s": " ", "t": "12:00:00.000001",
}  # fmt: skip
#: In a summer's night that New York does not have, and one that it has twice.
CLOCKS: dict[str, Any] = {"ts": "2024-03-10T02:30:00", "tz": "2024-11-03T05:30:00.000001Z", "day": "2024-03-10"}


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    ts, u = leaves.get("ts"), leaves.get("u")
    return {
        **leaves,
        "n": dict(leaves),
        "ls": [ts, None],
        "m": {"": leaves.get("d38"), "k": None},
        "deep": {leaves.get("day") or "2024-07-01": [{"ts": ts, "u": u}, None]},
    }


EXTREMES = [nested(LEAST), nested(MOST), nested(ODD), nested(CLOCKS), {}]
SESSIONS: list[dict[str, str]] = [
    {"spark.sql.session.timeZone": "America/New_York", "spark.sql.ansi.enabled": "false"},
    {
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.caseSensitive": "true",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
    },
]


@contextmanager
def settings_of(spark: Any, changed: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in changed}
    for name, value in changed.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def in_utc(kind: pa.DataType) -> pa.DataType:
    """*kind* with moments shown in UTC: Python's calendar ends where a zone would take the last of them."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_map(kind):
        return pa.map_(in_utc(kind.key_type), in_utc(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(in_utc(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, in_utc(one.type)) for one in kind])
    return kind


def rows_of(table: pa.Table, types: Mapping[str, Type]) -> list[tuple[Any, ...]]:
    """The rows in offset order, in the words in which Arrow's and Spark's values are the same."""
    table = table.select([*types, *COORDINATES])
    table = table.cast(pa.schema([pa.field(one.name, in_utc(one.type)) for one in table.schema]))
    table = table.sort_by([("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")])
    kinds = [*types.values(), parse_type("timestamptz"), parse_type("int"), parse_type("long")]
    columns = [
        [in_sparks_words(v, kind) for v in column.to_pylist()]
        for column, kind in zip(table.columns, kinds, strict=True)
    ]
    return list(zip(*columns, strict=True))


class Routes:
    """A table, and all ways to its rows."""

    def __init__(self, rig: TableRig, folder: Path) -> None:
        self.rig, self.folder, self.spark = rig, folder, rig.stores.spark()
        rig.harness.register_spark(self.spark)

    @property
    def types(self) -> dict[str, Type]:
        return {column.name: column.type for column in self.rig.harness.table(self.rig.name).spec.columns}

    def assert_agree(self, sessions: list[dict[str, str]], *, streams: bool = False) -> None:
        types, table = self.types, self.rig.harness.table(self.rig.name)
        wanted = [*types, *COORDINATES]
        expected = rows_of(table.read(columns=wanted), types)
        view = f"v_{self.rig.topic}"
        for changed in sessions:
            with settings_of(self.spark, changed):
                table.to_spark(self.spark, columns=wanted, view=view)
                for route, frame in {
                    "SQL over a view": self.spark.sql(f"SELECT * FROM {view}"),
                    "source": self.spark.read.format("harness").option("table", self.rig.name).load(),
                }.items():
                    self._compare(rows_of(frame.toArrow(), types), expected, types, f"{route} {changed}")
                if streams:
                    self._assert_streams(types, changed)
                self.spark.catalog.dropTempView(view)

    def _assert_streams(self, types: Mapping[str, Type], changed: Mapping[str, str]) -> None:
        """The log by Python's stream and by Spark's; what only Kafka has, Spark's does not bring."""
        table = self.rig.harness.table(self.rig.name)
        log = pa.concat_tables([batch.rows for batch in table.stream(follow=False)])
        reached = {p.partition: p.bounds for p in table.positions()}
        expected = [
            row
            for row in rows_of(log, types)
            if row[-1] < (reached[row[-2]].stream_hi if table.spec.buffer == "none" else reached[row[-2]].buffer_hi)
        ]
        folder = self.folder / changed["spark.sql.session.timeZone"].replace("/", "_") / str(len(expected))
        folder.mkdir(parents=True)
        sink = Sink(self.rig, folder)
        sink.take_all()
        found = self.spark.read.parquet(str(folder / "rows")).toArrow()
        self._compare(rows_of(found, types), expected, types, f"stream {changed}")

    @staticmethod
    def _compare(found: list[Any], expected: list[Any], types: Mapping[str, Type], route: str) -> None:
        assert len(found) == len(expected), route
        for one, other in zip(found, expected, strict=True):
            wrong = [name for name, a, b in zip(types, one, other, strict=False) if a != b]
            assert one == other, f"{route}: {wrong} of offset {other[-1]}"


def stepped(rig: TableRig, tier: str) -> None:
    """What was produced comes to *tier*: the batch view, the stream view, the buffer, or it stays in Kafka."""
    if tier == "kafka":
        return
    if rig.table.spec.buffer != "none":
        rig.ingest()
    if tier in ("batch", "stream"):
        rig.tier()
    if tier == "batch" and rig.table.spec.views == "both":
        rig.worker(OTREE, until_idle=True).run()


SHAPES: dict[str, dict[str, Any]] = {
    "both": {"views": "both", "layout": {"columns": ["ts", "tz"]}},
    "stream": {"views": "stream"},
    "batch": {"views": "batch", "layout": {"columns": ["d38", "day"]}},
    "no buffer": {"buffer": "none", "views": "stream"},
    "keyed": {"views": "both", "key": ["ts", "d38"], "layout": {"columns": ["ts"]}},
    "keyed, no buffer": {"views": "stream", "key": ["tz"], "buffer": "none", "layout": {}},
}
EVOLUTIONS: list[dict[str, Any]] = [
    {"add": (Column(name="more", type=parse_type("struct<x: int, ts: timestamp>")),)},
    {"drop": ("s",), "add": (Column(name="s", type=parse_type("long")),)},
    {"rename": (("bin", "bytes"),)},
    {"widen": (("i", parse_type("long")), ("f", parse_type("double")))},
    {"order": ("u", "t", "l")},
    {"drop": ("n.ts",), "add": (Column(name="n.ts", type=parse_type("timestamp")),)},
]


def make(make_rig: MakeRig, shape: str) -> TableRig:
    return make_rig(partitions=1, columns=COLUMNS, **SHAPES[shape])


def produce(rig: TableRig, rows: list[dict[str, Any]]) -> None:
    rig.kafka.produce(rig.topic, 0, [json.dumps(row).encode() for row in rows])


def tiers_of(rig: TableRig) -> tuple[str, ...]:
    return ("batch", "stream", "buffer") if rig.table.spec.buffer != "none" else ("stream", "kafka")


@pytest.mark.parametrize("shape", ["both", "no buffer", "keyed"])
def test_every_route_gives_the_extremes_of_every_type(make_rig: MakeRig, tmp_path: Path, shape: str):
    rig = make(make_rig, shape)
    for tier in tiers_of(rig):
        produce(rig, EXTREMES)
        stepped(rig, tier)
    assert rig.quarantine() == {}
    Routes(rig, tmp_path).assert_agree(SESSIONS if shape == "both" else SESSIONS[1:])


#: Each alone is a name: what another column may not have beside it is in unit/spec/test_names.py.
NAMES = (
    "\u212a",
    "e\u0301",
    "É t",
    " outer ",
    "ﬁ",
    "İ",
    "straße",
    "日" * 21,
    "a.b",
    "tick`",
    "it's",
    "select",
    "x%s{}",
    "-1",
)


@pytest.mark.parametrize("keyed", [pytest.param(False, marks=pytest.mark.long), True])
def test_every_route_gives_the_columns_whose_names_are_odd(make_rig: MakeRig, tmp_path: Path, keyed: bool):
    more: dict[str, Any] = {"key": ["\u212a", "İ"]} if keyed else {}
    inner = "struct<" + ", ".join(f"`{name.replace('`', '``')}`: int" for name in NAMES) + ">"
    columns = {**dict.fromkeys(NAMES, "int"), "inner": inner}
    rig = make_rig(partitions=1, columns=columns, views="both", layout={"columns": ["\u212a", " outer "]}, **more)
    for at, tier in enumerate(("batch", "stream", "buffer")):
        row = {name: 100 * at + i for i, name in enumerate(NAMES)}
        produce(rig, [{**row, "inner": row}])
        stepped(rig, tier)
    assert rig.quarantine() == {}
    found = rig.table.read(where='"e\u0301" >= 100').sort_by(" outer ").to_pylist()
    assert [[row[name] for name in NAMES] for row in found] == [
        [100 * a + i for i in range(len(NAMES))] for a in (1, 2)
    ]
    Routes(rig, tmp_path).assert_agree(SESSIONS)


@pytest.mark.parametrize("name", ["spark.sql.parser.quotedRegexColumnNames", "spark.sql.parser.escapedStringLiterals"])
@pytest.mark.filterwarnings("ignore:The SQL config")
def test_a_session_that_reads_our_expressions_otherwise_is_refused_by_name(make_rig: MakeRig, name: str):
    rig = make_rig(partitions=1)
    spark = rig.stores.spark()
    with settings_of(spark, {name: "true"}), pytest.raises(SessionUnfit, match=name):
        rig.table.to_spark(spark)
    assert rig.table.to_spark(spark).count() == 0


def drawn(count: int) -> list[bytes]:
    """Records with random values of every column."""
    parts = {name: json_values.written(parse_type(kind)) for name, kind in COLUMNS.items()}
    found: list[bytes] = []

    @settings(max_examples=count, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(st.fixed_dictionaries(parts))
    def draw(one: Mapping[str, tuple[str, Any]]) -> None:
        found.append(("{" + ",".join(f"{json.dumps(n)}:{text}" for n, (text, _) in one.items()) + "}").encode())

    draw()
    return found


@pytest.mark.long
@pytest.mark.timeout(1800)  # some minutes where the machine has nothing else to do
@pytest.mark.parametrize("shape", SHAPES)
def test_every_route_gives_the_same_values_across_evolutions(make_rig: MakeRig, tmp_path: Path, shape: str):
    rig = make(make_rig, shape)
    routes = Routes(rig, tmp_path)
    for tier in tiers_of(rig):
        produce(rig, EXTREMES)
        rig.kafka.produce(rig.topic, 0, drawn(30))
        stepped(rig, tier)
    routes.assert_agree(SESSIONS, streams=not rig.table.spec.key and rig.table.spec.views != "batch")
    for i, changes in enumerate(EVOLUTIONS):
        if rig.table.spec.buffer == "none":
            rig.tier()
        rig.harness.table(rig.name).evolve(ColumnChanges(**changes))
        rig.table = rig.harness.table(rig.name)
        row = {**nested(MOST), "more": {"x": i, "ts": LEAST["ts"]}, "s": i, "bytes": "/w=="}
        produce(rig, [row])
        stepped(rig, ("buffer", "batch", "stream")[i % 3])
        routes.assert_agree(SESSIONS[i % 2 :][:1])
    assert rig.table.audit(full=True).to_json()["ok"]


FLOATS = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "f", "type": "float"}, {"name": "d", "type": "double"},
        {"name": "l", "type": {"type": "array", "items": "double"}},
    ],
}  # fmt: skip
VALUES = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.5]


@pytest.mark.parametrize(
    "spec", [{"views": "both", "layout": {}}, pytest.param({"buffer": "none"}, marks=pytest.mark.long)]
)
def test_every_route_gives_the_floats_that_are_no_numbers(make_rig: MakeRig, tmp_path: Path, spec: dict[str, Any]):
    columns = {"f": "float", "d": "double", "l": "list<double>"}
    rig = make_rig(partitions=1, format="avro", schema={"text": json.dumps(FLOATS)}, columns=columns, **spec)
    for tier in tiers_of(rig):
        values = [avro_bytes(FLOATS, {"f": x, "d": x, "l": [x, -x]}) for x in VALUES]
        rig.kafka.produce(rig.topic, 0, values)
        stepped(rig, tier)
    assert rig.quarantine() == {}
    Routes(rig, tmp_path).assert_agree(SESSIONS[:1])
