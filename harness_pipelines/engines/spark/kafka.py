"""Kafka to Arrow rows on Spark executors, for tables without a buffer (``buffer: none``).

The records are decoded by the same codec as everywhere else, in Python workers (`mapInArrow`), so that a record's
verdict does not depend on the route that it takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.drivers.certificates import TlsPlace
from harness_pipelines.errors import UsageError
from harness_pipelines.files import SECRET_BYTES_MAX, Unreadable, read_text
from harness_pipelines.formats.base import Headers, header_name
from harness_pipelines.formats.columns.times import kafka_times_us
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import SchemaSource
from harness_pipelines.ports.ledger import RefusedRecord, TableRow
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.reading.plan import TailPart
from harness_pipelines.protocol.schema.nested_json import unsliced, uuid_text
from harness_pipelines.protocol.topics import place, table_partition, topics_of
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.table import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

Batches = Iterable[pa.RecordBatch]
Cells = list[bytes | None]
REFUSED = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("check", pa.string()),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.field("kafka_ms", pa.int64()),
    ]
)
#: librdkafka's names that the Java client spells otherwise; all others are the same in both.
_JAVA_NAMES: Mapping[str, str] = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
_SAME_NAMES = frozenset({"security.protocol", "sasl.mechanism", "ssl.key.password", "client.id"})
_HOST_CHECK = "ssl.endpoint.identification.algorithm"
#: Java wants key and certificate in one file, so what the files hold goes with the request.
_PEM_FILES: Mapping[str, str] = {
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}
_PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")
_LOGIN = ("sasl.username", "sasl.password")


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Settings of librdkafka as the Java client spells them.

    Raises: UsageError for one that has no counterpart here, or a file that is no PEM.
    """
    made: dict[str, str] = {}
    for name, value in (_read(name, value) for name, value in properties.items()):
        if name in _JAVA_NAMES or name in _SAME_NAMES:
            made[_JAVA_NAMES.get(name, name)] = value
        elif name == _HOST_CHECK:
            made[name] = "" if value == "none" else value
        elif name not in _LOGIN:
            raise UsageError(
                f"Kafka setting {name!r} has no counterpart in Spark's Kafka source: `buffer: none` cannot use it"
            )
    for store in ("truststore", "keystore"):
        if any(name.startswith(f"ssl.{store}.") for name in made):
            made[f"ssl.{store}.type"] = "PEM"
    if _LOGIN[0] in properties:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        if properties.get("sasl.mechanisms", properties.get("sasl.mechanism", "PLAIN")).startswith("SCRAM"):
            module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        user, password = (json.dumps(properties.get(name, "")) for name in _LOGIN)
        made["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    return made


def _read(name: str, value: str) -> tuple[str, str]:
    """A setting that names a file of key or certificate as the one that holds it. Raises: UsageError."""
    if name in _PEM_FILES:
        try:
            name, value = _PEM_FILES[name], read_text(value, SECRET_BYTES_MAX, encoding="ASCII")
        except Unreadable as error:
            raise UsageError(f"Kafka setting {name!r}: the PEM file {value} {error}") from error
    if name == "ssl.key.pem" and not any(begin in value for begin in _PKCS8):
        raise UsageError(
            "the key of the Kafka login is not in PKCS#8, the one form that Spark's Kafka source takes; nothing was "
            "read. `openssl pkcs8 -topk8 -in KEY -out NEW` writes it so, and HARNESS_KAFKA_SSL_KEY_LOCATION names it"
        )
    return name, value


def tls_place(settings: Settings) -> TlsPlace | None:
    """Where the first broker is, whose certificate is looked at if Spark does not accept one; None: without TLS."""
    host, _, port = (settings.kafka or "").split(",")[0].strip().rpartition(":")
    if "SSL" not in settings.kafka_properties.get("security.protocol", "").upper() or not host or not port.isdigit():
        return None
    roots = settings.kafka_properties.get("ssl.ca.location")
    return TlsPlace(host=host.strip("[]"), port=int(port), roots=None if roots == "probe" else roots)


def read_kafka(
    spark: SparkSession, settings: Settings, spec: TableSpec, ranges: Sequence[OffsetRange], *, headers: bool = False
) -> DataFrame:
    """The records of *ranges*: ``key, value, topic, partition, offset, timestamp, ...``; fails when one is gone.

    With ``headers`` where a column of *spec* has them, or on request.
    """
    offsets: dict[str, dict[int, OffsetRange]] = {topic: {} for topic in topics_of(spec.topic)}
    for one in ranges:
        topic, partition = place(spec.topic, one.partition)
        offsets[topic][partition] = one
    offsets = {topic: found for topic, found in offsets.items() if found}
    source = spark.read.format("kafka").options(
        **{
            "kafka.bootstrap.servers": settings.kafka or "",
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({t: list(found) for t, found in offsets.items()}),
            "startingOffsets": json.dumps({t: {p: r.low for p, r in found.items()} for t, found in offsets.items()}),
            "endingOffsets": json.dumps({t: {p: r.high for p, r in found.items()} for t, found in offsets.items()}),
            "failOnDataLoss": "true",
            "includeHeaders": str(headers or has_headers(spec)).lower(),
            **{f"kafka.{name}": value for name, value in java_properties(settings.kafka_properties).items()},
        }
    )
    return _numbered(source.load(), topics_of(spec.topic))


def _numbered(records: DataFrame, topics: Sequence[str]) -> DataFrame:
    """*records* with the partition numbers that a table of *topics* has."""
    from pyspark.sql import functions as f

    if len(topics) == 1:
        return records
    number = f.col("partition")
    for index, topic in enumerate(topics):
        number = f.when(f.col("topic") == topic, f.col("partition") + table_partition(index, 0)).otherwise(number)
    return records.withColumn("partition", number)


def has_headers(spec: TableSpec) -> bool:
    return any(c.source == "headers" for c in spec.columns)


def decoded_rows(records: DataFrame, table: TableRow, registry: SchemaSource) -> DataFrame:
    """Rows of the view from Kafka *records*; refused records appear with ``_refused = true`` and no values."""
    from pyspark.sql import functions as f

    from harness_pipelines.engines.spark.executors.functions import in_any_folder

    schema = spark_schema(table.spec)
    narrow = records.select("partition", "offset", "timestamp", "key", "value", *_headers_of(table.spec))
    decoder = in_any_folder(_row_decoder(dump_spec(table.spec), table.schema_version, registry))
    return narrow.mapInArrow(decoder, spark_struct(schema)).withColumn("_refused", f.col("_op").isNull())


def _headers_of(spec: TableSpec) -> list[str]:
    return ["headers"] if has_headers(spec) else []


def tail_frame(
    spark: SparkSession, settings: Settings, table: TableRow, part: TailPart, *, registry: SchemaSource
) -> DataFrame:
    """Rows of the user's columns and all coordinates of what only Kafka has; records that do not fit are left out."""
    ranges = [OffsetRange(partition=p, low=part.low[p], high=part.high[p]) for p in sorted(part.low)]
    rows = decoded_rows(read_kafka(spark, settings, table.spec, ranges), table, registry)
    return rows.where("NOT _refused").drop("_refused")


def judged_again(records: DataFrame, table: TableRow, registry: SchemaSource) -> list[RefusedRecord]:
    """Those of *records*, read with their headers, that do not fit, whole."""
    return [_refused_record(row) for row in _judged(records, table, registry).collect()]


def one_refused(records: DataFrame, table: TableRow, registry: SchemaSource) -> RefusedRecord:
    """The first record found in *records*, read with their headers, that does not fit; there is one."""
    return _refused_record(_judged(records, table, registry).limit(1).collect()[0])


def _judged(records: DataFrame, table: TableRow, registry: SchemaSource) -> DataFrame:
    from harness_pipelines.engines.spark.executors.functions import in_any_folder

    narrow = records.select("partition", "offset", "timestamp", "key", "value", "headers")
    decoder = in_any_folder(_refusal_decoder(dump_spec(table.spec), registry))
    return narrow.mapInArrow(decoder, spark_struct(REFUSED))


def _refused_record(row: Row) -> RefusedRecord:
    return RefusedRecord(
        partition=row["partition"],
        offset=row["offset"],
        reason=row["reason"],
        detail=row["detail"],
        key=None if row["key"] is None else bytes(row["key"]),
        value=None if row["value"] is None else bytes(row["value"]),
        headers=[
            (header_name(h["key"]), None if h["value"] is None else bytes(h["value"])) for h in row["headers"] or ()
        ],
        check=row["check"],
        kafka_ms=row["kafka_ms"],
    )


def spark_schema(spec: TableSpec) -> pa.Schema:
    """Arrow schema of a view's rows as Spark has them: uuid as text, time as microseconds, everything nullable."""
    return spark_types(arrow_schema(spec.stored, coordinates=True))


def spark_types(schema: pa.Schema) -> pa.Schema:
    """*schema* with the types that its rows have in Spark, everything nullable."""
    return pa.schema([pa.field(field.name, _spark_type(field.type)) for field in schema])


def spark_struct(schema: pa.Schema) -> StructType:
    """*schema*, of `spark_types`, in Spark's words: a timestamp without a zone is one in every session."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def for_spark(rows: pa.Table) -> pa.Table:
    """*rows* in the types of `spark_types`."""
    arrays = [_for_spark(unsliced(column.combine_chunks())) for column in rows.columns]
    return pa.table(arrays, schema=spark_types(rows.schema))


def _spark_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_binary(kind):
        return pa.string()
    if pa.types.is_time64(kind):
        return pa.int64()
    if pa.types.is_map(kind):
        return pa.map_(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _spark_type(part.type)) for part in kind])
    return kind


def _row_decoder(spec: dict[str, Any], schema_version: int, registry: SchemaSource) -> Callable[[Batches], Batches]:
    def decode(batches: Batches) -> Batches:
        table = TableSpec.model_validate(spec)
        schema = spark_schema(table)
        with closing(registry.open()) as schemas:
            codec = RecordCodec(table, schemas)
            for batch in batches:
                yield from _decode_rows(batch, codec, schema, schema_version)

    return decode


def _decode_rows(batch: pa.RecordBatch, codec: RecordCodec, schema: pa.Schema, schema_version: int) -> Batches:
    decoded = codec.decode(*_bytes_of(batch))
    accepted = pa.array(decoded.accepted)
    columns = {name: _for_spark(decoded.rows.column(name).combine_chunks()) for name in decoded.rows.column_names}
    columns["_kafka_partition"] = batch.column("partition").take(accepted)
    columns["_kafka_offset"] = batch.column("offset").take(accepted)
    columns["_kafka_timestamp"] = kafka_times_us(batch.column("timestamp").take(accepted))
    columns.setdefault("_op", pa.repeat(pa.scalar("put"), len(accepted)))
    columns["_schema_version"] = pa.repeat(pa.scalar(schema_version, pa.int32()), len(accepted))
    yield from pa.table([columns[name] for name in schema.names], schema=schema).combine_chunks().to_batches()
    if decoded.refused:  # counted, so that records = rows + refused can be checked
        empty = [pa.nulls(len(decoded.refused), kind) for kind in schema.types]
        yield pa.record_batch(empty, schema=schema)


def _bytes_of(batch: pa.RecordBatch) -> tuple[Cells, Cells, list[Headers | None] | None]:
    """Values, keys and, if they were read, headers."""
    headers: list[Headers | None] | None = None
    if "headers" in batch.schema.names:
        found = batch.column("headers").to_pylist()
        headers = [None if one is None else [(header_name(h["key"]), h["value"]) for h in one] for one in found]
    return batch.column("value").to_pylist(), batch.column("key").to_pylist(), headers


def _milliseconds(moments: pa.Array) -> pa.Array:
    """Kafka's own times of *moments*; -1: the log has none."""
    whole = pc.divide(moments.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1000)  # they are whole ones
    return pc.fill_null(whole, -1)


def _for_spark(array: pa.Array) -> pa.Array:
    """*array*, which is no slice, in the types of `spark_schema`."""
    kind = array.type
    target = _spark_type(kind)
    if target == kind:
        return array
    if pa.types.is_fixed_size_binary(kind):
        return uuid_text(array)
    if pa.types.is_time64(kind):
        return array.view(pa.int64())
    nulls = array.is_null() if array.null_count else None
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(
            array.offsets, _for_spark(array.keys), _for_spark(array.items), type=target, mask=nulls
        )
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, _for_spark(array.values), type=target, mask=nulls)
    parts = [_for_spark(array.field(i)) for i in range(kind.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=nulls)


def _refusal_decoder(spec: dict[str, Any], registry: SchemaSource) -> Callable[[Batches], Batches]:
    def decode(batches: Batches) -> Batches:
        table = TableSpec.model_validate(spec)
        with closing(registry.open()) as schemas:
            codec = RecordCodec(table, schemas)
            for batch in batches:
                # A codec that is given headers where no column has them would still see what others do not.
                seen = batch if has_headers(table) else batch.drop_columns(["headers"])
                decoded = codec.decode(*_bytes_of(seen))
                refused = decoded.refused
                where = pa.array([r.index for r in refused], pa.int64())
                columns = [
                    batch.column("partition").take(where),
                    batch.column("offset").take(where),
                    pa.array([str(r.reason) for r in refused], pa.string()),
                    pa.array([r.detail for r in refused], pa.string()),
                    batch.column("key").take(where),
                    batch.column("value").take(where),
                    pa.array([r.check for r in refused], pa.string()),
                    batch.column("headers").take(where).cast(REFUSED.field("headers").type),
                    _milliseconds(batch.column("timestamp").take(where)),
                ]
                yield pa.record_batch(columns, schema=REFUSED)

    return decode
