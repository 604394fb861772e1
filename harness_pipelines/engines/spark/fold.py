"""The newest row per key in Spark, and cold rows without hot keys. DataFrame API only.

NULL is a value of a key: `groupBy` holds so, and the join compares null-safely. What is added to the result later, by
whoever uses the frame, is pushed below the fold by Spark only where it speaks of the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.keys import PUT, key_in_two_partitions
from harness_pipelines.spec.predicate import OFFSET, PARTITION

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

BROADCAST_OFFSETS_MAX = 1_000_000  #: a hot side of no more offsets is sent to every task of the cold scan
_NEWEST, _LOW, _HIGH = "_harness_newest", "_harness_low", "_harness_high"


def newest_puts(hot: DataFrame, table: str, key: Sequence[str], *, columns: Sequence[str]) -> DataFrame:
    """Of *hot*, which has *columns*, all coordinates among them, the newest row per *key*, unless it is a delete.

    The same columns. Its use fails with the words of `KeyInTwoPartitions` where a key has rows in two partitions.
    """
    from pyspark.sql import functions as f

    rest = [name for name in columns if name not in key]  # asking the frame would have Spark open all its tiers
    place = f.struct(PARTITION, OFFSET)
    folded = hot.groupBy(*(quoted(name) for name in key)).agg(
        f.max_by(f.struct(*(f.col(quoted(name)) for name in rest)), f.col(OFFSET)).alias(_NEWEST),
        f.min(place).alias(_LOW),
        f.max(place).alias(_HIGH),
    )
    newest, low, high = f.col(_NEWEST), f.col(_LOW), f.col(_HIGH)
    where_keys_meet = _one_partition(table, [f.col(quoted(name)) for name in key], key, low, high)
    return folded.filter(where_keys_meet & (newest.getField(OPERATION) == PUT)).select(
        *(f.col(quoted(name)) if name in key else newest.getField(name).alias(name) for name in columns)
    )


def uncovered(cold: DataFrame, hot: DataFrame, table: str, key: Mapping[str, bool], *, is_small: bool) -> DataFrame:
    """Return the rows of *cold* whose key no row of *hot* has; *hot* includes deletes.

    *key*: per column whether it is never NULL. *is_small*: so few rows are hot that each task gets all their keys. Its
    use fails as that of `newest_puts`.
    """
    from pyspark.sql import functions as f

    # Once per key: the offset is that of any row, for the message alone.
    keys = hot.groupBy(*(quoted(name) for name in key), PARTITION).agg(f.max(OFFSET).alias(OFFSET))
    keys = keys.select(
        *(f.col(quoted(name)).alias(f"{_LOW}_{i}") for i, name in enumerate(key)),
        f.struct(PARTITION, OFFSET).alias(_HIGH),
    )
    values = [f.col(quoted(name)) for name in key]
    others = [f.col(f"{_LOW}_{i}") for i in range(len(key))]
    # A null-safe comparison of one whole number is hashed as two columns, a plain one as the number that it is.
    pairs = zip(values, others, key.values(), strict=True)
    same = reduce(and_, (one == other if is_required else one.eqNullSafe(other) for one, other, is_required in pairs))
    place = f.struct(f.col(PARTITION), f.col(OFFSET))
    held = _one_partition(table, values, list(key), place, f.col(_HIGH))
    return cold.join(f.broadcast(keys) if is_small else keys, same & held, "left_anti")


def _one_partition(
    table: str, values: Sequence[SparkColumn], key: Sequence[str], one: SparkColumn, other: SparkColumn
) -> SparkColumn:
    """True where the coordinates *one* and *other* of a key are of one partition; fails where they are not."""
    from pyspark.sql import functions as f

    hole = ("%s", "%s")
    text = str(key_in_two_partitions(table.replace("%", "%%"), "%s", first=hole, second=hole))
    shown = f.to_json(
        f.struct(*(value.alias(name) for value, name in zip(values, key, strict=True))), {"ignoreNullFields": "false"}
    )
    places = [side.getField(name) for side in (one, other) for name in (PARTITION, OFFSET)]
    failed = f.raise_error(f.format_string(text, shown, *places)).cast("boolean")
    return f.when(one.getField(PARTITION) == other.getField(PARTITION), f.lit(True)).otherwise(failed)


def quoted(name: str) -> str:
    """*name* as Spark reads it back, whatever it holds."""
    return "`" + name.replace("`", "``") + "`"
