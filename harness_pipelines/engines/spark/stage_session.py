"""Settings that stages need in a Spark session: set and read back before each piece of work.

A value that Spark computes depends on more than the data: on the time zone, on how casts and text are read, on what
Iceberg's writer is asked for. A server's defaults, or other users of the session, may say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness_pipelines.errors import HarnessError, Recovery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: HotSpot compiles no method above 8000 bytes of byte code: rather than run such a one interpreted, ten times slower,
#: Spark shall cut it into several.
METHOD_BYTES = {"spark.sql.codegen.hugeMethodLimit": "8000"}
SETTINGS: Mapping[str, str] = {
    **METHOD_BYTES,
    # What a value is.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.legacy.castComplexTypesToString.enabled": "false",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    # How names and the text of expressions are read.
    "spark.sql.caseSensitive": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    # What is left out or put together on the way.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.optimizer.excludedRules": "",
    "spark.sql.adaptive.optimizer.excludedRules": "",
    # What is in a Parquet file, should Spark's own reader or writer meet one.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # What Iceberg takes of the session before the view's own properties.
    "spark.sql.iceberg.check-nullability": "true",
    "spark.sql.iceberg.check-ordering": "true",
    "spark.sql.iceberg.distribution-mode": "none",
    # What Python workers are given.
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
}
#: Not set at all. Iceberg's would redirect what a stage writes; the parser's is deprecated, which a warning says.
UNSET = (
    "spark.wap.id",
    "spark.wap.branch",
    "spark.sql.iceberg.merge-schema",
    "spark.sql.parser.escapedStringLiterals",
)


#: Under which the text of our expressions would be another one, in a session of a user's.
MISREAD = ("spark.sql.parser.quotedRegexColumnNames", "spark.sql.parser.escapedStringLiterals")


class SessionUnfit(HarnessError):
    """A session has a setting under which Spark would compute something else; nothing was read or written."""

    way_on = "take the setting that the message names out of Spark's session"

    recovery = Recovery.NEVER


def check_readable(spark: SparkSession) -> None:
    """Rows may be read in *spark*, a session of a user's: most settings change no value. Raises: SessionUnfit."""
    for name, value in _held(spark, MISREAD).items():
        if value == "true":
            raise SessionUnfit(
                f"this Spark session has {name} set to true, by which it reads names and text otherwise: unset it for "
                f'this read (spark.conf.set("{name}", "false")), or read in another session; nothing was read'
            )


def settle(spark: SparkSession) -> None:
    """Set what stages rely on in *spark*, a session of theirs, and see that it holds. Raises: SessionUnfit."""
    names = (*SETTINGS, *UNSET)
    held = _held(spark, names)
    if any(held[name] != value for name, value in SETTINGS.items()):
        _set(spark, SETTINGS)
        held = _held(spark, names)
    for name, value in SETTINGS.items():
        if held[name] != value:
            raise SessionUnfit(
                f"stages rely on Spark's {name} being {value!r}, the session says {held[name]!r} after it was set; "
                "nothing was read or written. See what holds it there (the server's settings, an extension)"
            )
    for name in UNSET:
        if held[name] not in (None, "", "false"):
            spark.conf.unset(name)


def _held(spark: SparkSession, names: Sequence[str]) -> dict[str, str | None]:
    """Return the values of *names* in *spark*, its server's settings included; one request on Connect."""
    connected: Any = spark
    if client := getattr(connected, "_client", None):
        from pyspark.sql.connect.proto import ConfigRequest, KeyValue

        pairs = [KeyValue(key=name) for name in names]
        asked = ConfigRequest.Operation(get_with_default=ConfigRequest.GetWithDefault(pairs=pairs))
        return dict(client.config(asked).pairs)
    return {name: spark.conf.get(name, None) for name in names}


def _set(spark: SparkSession, values: Mapping[str, str]) -> None:
    connected: Any = spark
    if hasattr(connected, "_client"):
        connected.conf._set_all(dict(values), silent=False)
        return
    for name, value in values.items():
        spark.conf.set(name, value)
