"""Values of every type, as each format writes them, through buffer and lake to Arrow and Spark; the page of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import harness_pipelines as hp
from harness_pipelines.buffers.postgres.types import BUFFER_SCHEMA
from harness_pipelines.spec.types import ListType, MapType, StructType, Type, parse_type
from harness_pipelines_tests.every_type import WAYS, Row, Way
from harness_pipelines_tests.integration.read.test_union_spark import in_sparks_words
from harness_pipelines_tests.integration.tables.test_formats import with_registry
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.registry import RegistryServer, serving
from harness_pipelines_tests.rig import TableRig
from harness_pipelines_tests.types_page import iceberg_name, type_rows
from harness_pipelines_tests.unit.read.test_nested_json import exact

EXAMPLES = 60
#: Drawn first and used in one table: a table for each example would take seconds.
draws = partial(
    settings, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck)
)


@contextmanager
def harness_for(way: Way, harness: hp.Harness) -> Iterator[tuple[hp.Harness, int]]:
    """A harness that knows the schema of *way*, and the schema's id."""
    if way.schema is None:
        yield harness, 0
        return
    server: RegistryServer
    with serving(login="reader:s3cret") as server, with_registry(harness, server) as known:
        kind, text = way.schema
        yield known, server.register("every-value", text, kind=kind)


def drawn(way: Way, examples: int = EXAMPLES) -> list[tuple[bytes, Row]]:
    """Records and their rows."""
    found: list[tuple[bytes, Row]] = []

    @draws(max_examples=examples)
    @given(way.rows)
    def draw(one: tuple[bytes, Row]) -> None:
        found.append(one)

    draw()
    return found


def in_order(value: Any, kind: Type) -> Any:
    """*value* with the entries of maps sorted: no format promises their order."""
    if value is None:
        return None
    match kind:
        case ListType(element):
            return [in_order(part, element) for part in value]
        case MapType(_, item):
            return sorted(((k, in_order(v, item)) for k, v in value), key=lambda entry: repr(entry[0]))
        case StructType(fields):
            return {f.name: in_order(value[f.name], f.type) for f in fields}
    return value


def by_offset(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.sort_by("_kafka_offset").to_pylist()
    return rows


@pytest.mark.long
@pytest.mark.parametrize("format_", WAYS)
def test_what_a_producer_wrote_is_what_arrow_and_spark_read_from_buffer_and_lake(
    harness: hp.Harness, kafka: KafkaRig, format_: str
):
    way = WAYS[format_]()
    types = {name: parse_type(text) for name, text in way.columns.items()}
    records = drawn(way)
    assert len(records) >= EXAMPLES // 2
    with harness_for(way, harness) as (known, schema_id):
        rig = TableRig(known, kafka, format=format_, columns=dict(way.columns), partitions=1)
        kafka.produce(rig.topic, 0, [way.value(payload, schema_id) for payload, _ in records])
        rig.ingest()
        assert rig.quarantine() == {}
        meant = [{name: exact(in_order(row[name], kind)) for name, kind in types.items()} for _, row in records]
        meant_spark = [{n: in_sparks_words(row[n], kind) for n, kind in types.items()} for _, row in records]
        for place in ("buffer", "lake"):
            found = by_offset(rig.table.read(columns=[*types, "_kafka_offset"]))
            for place_row, row in zip(found, meant, strict=True):
                got = {name: exact(in_order(place_row[name], kind)) for name, kind in types.items()}
                assert got == row, f"{place}: {[n for n in row if got[n] != row[n]]}"
            frame = rig.table.to_spark(rig.stores.spark(), columns=[*types, "_kafka_offset"])
            for place_row, row in zip(by_offset(frame.toArrow()), meant_spark, strict=True):
                got = {name: in_sparks_words(place_row[name], kind) for name, kind in types.items()}
                assert got == row, f"Spark, {place}: {[n for n in row if got[n] != row[n]]}"
            if place == "buffer":
                rig.tier()
        assert [hi for hi, _ in rig.status().values()] == [len(records)]
        assert rig.table.audit(full=True).to_json()["ok"]


def test_the_page_of_types_says_what_the_systems_show(harness: hp.Harness, kafka: KafkaRig):
    rows = {f"c{i}": row for i, row in enumerate(type_rows())}
    rig = TableRig(harness, kafka, columns={name: row.type for name, row in rows.items()}, partitions=1)
    kafka.produce(rig.topic, 0, [b"{}"])
    rig.ingest()
    [segment] = rig.stores.segments.all(rig.table.row)
    with rig.stores.database.session() as connection:
        found = connection.execute(
            "SELECT attname AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0",
            [f"{BUFFER_SCHEMA}.{segment.name}"],
        ).fetchall()
    stored = {one["name"]: one["type"] for one in found}
    for place in ("buffer", "lake"):
        read = rig.table.read(columns=list(rows)).schema
        frame = rig.table.to_spark(rig.stores.spark(), columns=list(rows)).schema
        for name, row in rows.items():
            told = (stored[name], str(read.field(name).type), frame[name].dataType.simpleString())
            assert told == (row.postgres, row.arrow, row.spark), f"{row.type}, {place}"
        if place == "buffer":
            rig.tier()
    head = rig.stores.ledger.head(rig.table.row)
    view = rig.stores.catalog.at((rig.table.spec.namespace, rig.table.row.tiered_view), head.stream.metadata)
    for name, row in rows.items():
        assert iceberg_name(str(view.schema().find_field(name).field_type)) == row.iceberg
