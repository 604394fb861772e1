"""Records of each format to Arrow on one core, beside a plain loop of the format's library.

The loop decodes the same bytes record by record and makes an Arrow table of the same schema of them, a column at a
time. It looks at nothing else: no record is refused by it, it ends at the first that is wrong.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import fastavro
import orjson
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.proto_text import MAIN, compiled
from harness_pipelines.formats.schema.registry import WrittenSchema
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.wire import GivenSchemas, framed, proto_field

BATCH_RECORDS = 20_000  #: as many as a poll of a busy topic returns
TIMES = 7
GOAL = 1.5
EPOCH_MS = 1_760_000_000_000
COLUMNS: Mapping[str, Any] = {
    "id": {"type": "long", "required": True}, "n": "int", "amount": "decimal(12,2)", "open": "boolean",
    "customer": "string", "status": "string", "ratio": "double", "at": "timestamptz",
}  # fmt: skip
NAMES = tuple(COLUMNS)
AVRO = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "n", "type": ["null", "int"]},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "open", "type": "boolean"}, {"name": "customer", "type": ["null", "string"]},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID", "SENT"]}},
        {"name": "ratio", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip
PROTO = """
syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1; optional int32 n = 2; string amount = 3; bool open = 4; optional string customer = 5;
  enum Status { NEW = 0; PAID = 1; SENT = 2; } Status status = 6; double ratio = 7; google.protobuf.Timestamp at = 8;
}
"""
STATUS = ("NEW", "PAID", "SENT")
Loop = Callable[[Sequence[bytes]], pa.Table]


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": 10_000_000 + i, "n": None if i % 10 == 0 else i % 1_000, "amount": Decimal(i * 7 % 10_000_000) / 100,
            "open": i % 3 == 0, "customer": f"customer number {i % 5_000}", "status": STATUS[i % 3], "ratio": i / 7,
            "at": dt.datetime.fromtimestamp((EPOCH_MS + i) / 1000, dt.UTC),
        }
        for i in range(count)
    ]  # fmt: skip


def spec(format_: str, **words: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "bench.formats", "format": format_, "columns": COLUMNS, **words})


SCHEMA = arrow_schema(spec("json").columns)


def table_of(cells: Mapping[str, Sequence[Any]]) -> pa.Table:
    return pa.table([pa.array(cells[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def _by_rows(found: Sequence[Mapping[str, Any]]) -> pa.Table:
    return table_of({name: [row[name] for row in found] for name in NAMES})


# JSON


def json_values(found: Sequence[dict[str, Any]]) -> list[bytes]:
    return [json.dumps({**row, "amount": str(row["amount"]), "at": row["at"].isoformat()}).encode() for row in found]


def json_loop(values: Sequence[bytes]) -> pa.Table:
    made = [orjson.loads(value) for value in values]
    for row in made:
        row["amount"], row["at"] = Decimal(row["amount"]), dt.datetime.fromisoformat(row["at"])
    return _by_rows(made)


# Avro


def avro_values(found: Sequence[dict[str, Any]]) -> list[bytes]:
    schema, made = fastavro.parse_schema(AVRO), []
    for row in found:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, row)
        made.append(framed(stream.getvalue()))
    return made


def avro_loop(values: Sequence[bytes]) -> pa.Table:
    schema = fastavro.parse_schema(AVRO)
    return _by_rows([fastavro.schemaless_reader(io.BytesIO(v[5:]), schema, None) for v in values])  # type: ignore[misc]


# Protobuf


def proto_values(found: Sequence[dict[str, Any]]) -> list[bytes]:
    made = []
    for row in found:
        ms = round(row["at"].timestamp() * 1000)
        at = proto_field(1, ms // 1000) + proto_field(2, ms % 1000 * 1_000_000)
        fields = [
            proto_field(1, row["id"]), b"" if row["n"] is None else proto_field(2, row["n"]),
            proto_field(3, str(row["amount"])), proto_field(4, row["open"]), proto_field(5, row["customer"]),
            proto_field(6, STATUS.index(row["status"])), proto_field(7, row["ratio"]), proto_field(8, at),
        ]  # fmt: skip
        made.append(framed(b"".join(fields), indexes=(0,)))
    return made


def proto_loop() -> Loop:
    """The schema is compiled before the clock runs, as it is for the codec."""
    files = descriptor_pb2.FileDescriptorSet.FromString(compiled(PROTO, {})).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    order = message_factory.GetMessageClass(pool.FindFileByName(MAIN).message_types_by_name["Order"])

    def loop(values: Sequence[bytes]) -> pa.Table:
        made = []
        for value in values:
            m = order.FromString(value[6:])
            made.append({
                "id": m.id, "n": m.n if m.HasField("n") else None, "amount": Decimal(m.amount), "open": m.open,
                "customer": m.customer if m.HasField("customer") else None, "status": STATUS[m.status],
                "ratio": m.ratio, "at": m.at.ToDatetime(dt.UTC) if m.HasField("at") else None,
            })  # fmt: skip
        return _by_rows(made)

    return loop


# Change events in JSON


def debezium_values(found: Sequence[dict[str, Any]]) -> list[bytes]:
    made = []
    for row in found:
        cents = int(row["amount"] * 100)
        amount = base64.b64encode(cents.to_bytes(cents.bit_length() // 8 + 1, "big", signed=True)).decode()
        after = {**row, "amount": amount, "at": row["at"].isoformat()}
        source = {"connector": "postgresql", "db": "shop", "table": "orders", "lsn": 1}
        made.append(json.dumps({"before": None, "after": after, "source": source, "op": "c"}).encode())
    return made


def debezium_loop(values: Sequence[bytes]) -> pa.Table:
    made = [orjson.loads(value)["after"] for value in values]
    for row in made:
        cents = int.from_bytes(base64.b64decode(row["amount"]), "big", signed=True)
        row["amount"], row["at"] = Decimal(cents).scaleb(-2), dt.datetime.fromisoformat(row["at"])
    return _by_rows(made)


def measure(run: Run) -> Sequence[Figure]:
    """Rows per second and core of each format, and how many times those of its plain loop."""
    found = rows(BATCH_RECORDS)
    schemas = {
        "avro": GivenSchemas.avro(AVRO), "protobuf": GivenSchemas({1: WrittenSchema(kind="PROTOBUF", text=PROTO)}),
    }  # fmt: skip
    change = {**COLUMNS, "amount": {"type": "decimal(12,2)", "from": "base64"}}
    cases: list[tuple[str, list[bytes], RecordCodec, Loop]] = [
        ("json", json_values(found), RecordCodec(spec("json")), json_loop),
        ("avro", avro_values(found), RecordCodec(spec("avro"), schemas["avro"]), avro_loop),
        ("protobuf", proto_values(found), RecordCodec(spec("protobuf"), schemas["protobuf"]), proto_loop()),
        ("debezium", debezium_values(found), RecordCodec(spec("debezium", columns=change, key=["id"])), debezium_loop),
    ]
    figures = []
    for name, values, codec, loop in cases:
        run.say(f"decode {name}")
        keys: list[bytes | None] = [None] * len(values)
        decoded = codec.decode(values, keys)
        assert decoded.refused == [], decoded.refused[:1]
        assert decoded.rows.select(NAMES).equals(loop(values)), f"{name}: the loop makes other rows"
        ours, theirs = [], []
        for _ in range(run.size(TIMES, 3)):  # in turn: what else the machine does meets both
            ours.append(_cpu_s(lambda: codec.decode(values, keys)))  # noqa: B023
            theirs.append(_cpu_s(lambda: loop(values)))  # noqa: B023
        rate, plain = (len(values) / statistics.median(s) for s in (ours, theirs))
        figures.append(Figure(figure=f"decode.{name}", value=rate / plain, unit="x plain loop", goal=GOAL, sense=">="))
        run.note(f"decode.{name}.rate", rate, "rows/s per core")
        run.note(f"decode.{name}.plain", plain, "rows/s per core")
        run.note(f"decode.{name}.bytes", sum(map(len, values)) / len(values), "B/record")
    return figures


def _cpu_s(action: Callable[[], object]) -> float:
    began = time.thread_time()
    action()
    return time.thread_time() - began
