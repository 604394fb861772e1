"""Spark's part of a keyed merge: the newest version of each key, and the files with older ones.

A row of the batch view whose key changed is hidden where it is, or its file is rewritten without it: which of the
two, the stage says. Keys are compared null-safe. Within a move the newest is found by one aggregation, which
takes a key with a hundred thousand versions together before they are sent anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, NoReturn, cast

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

from harness_pipelines.drivers.tree_values import to_values
from harness_pipelines.engines.spark.cluster import file_rows, quoted
from harness_pipelines.engines.spark.view import Pins
from harness_pipelines.layout.files import Extent
from harness_pipelines.layout.tree import key_columns
from harness_pipelines.ports.engine import POSITIONS_MAX, Met, Rows
from harness_pipelines.ports.errors import StagedWrong
from harness_pipelines.protocol.keys import PUT, key_in_two_partitions

if TYPE_CHECKING:
    from harness_pipelines.layout.files import FileStats
    from harness_pipelines.spec.table import TableSpec

_PLACE = ("_kafka_partition", "_kafka_offset")
_CHANGED_AT = ("_harness_partition", "_harness_offset")
_WINNER, _PUT, _SPLIT = "_harness_winner", "_harness_put", "_harness_split"
_ROWS, _AT, _FIRST, _LAST = "_harness_rows", "_harness_at", "_harness_first", "_harness_last"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkKeyChanges:
    """The newest version of each key that a move has."""

    spec: TableSpec
    stream: DataFrame  #: all rows of the move
    newest: DataFrame  #: one row per key, held by Spark: the key, where its newest version is, and whether it is a put
    keys: int
    puts: int
    box: tuple[Extent, ...]  #: where the keys lie, by the columns of `key_columns`
    pins: Pins

    @property
    def rows(self) -> Rows:
        """The puts, with all columns."""
        return Rows(self._puts)

    @property
    def _puts(self) -> DataFrame:
        at = reduce(and_, (f.col(c) == f.col(to) for c, to in zip(_PLACE, _CHANGED_AT, strict=True)))
        return self.stream.join(self.newest.where(_PUT).select(*_CHANGED_AT), at, "left_semi")

    def met_in(self, metadata: str, files: Sequence[FileStats]) -> Mapping[str, Met]:
        """Per path which rows of *files* have a changed key; files without any are left out.

        *files* as `Lake.key_files` gives them; each of their live rows is one key, and every one must have been
        compared: a key that was overlooked would be there twice. Raises: KeyInTwoPartitions, StagedWrong.
        """
        if not files:
            return {}
        view = file_rows(self.stream.sparkSession, metadata, files, key_columns(self.spec), pins=self.pins)
        cold = view.select(*(quoted(c) for c in (*self.spec.key, *_PLACE)), "_file", "_pos")
        seen = Observation()
        met = cold.observe(seen, f.count(f.lit(1)).alias(_ROWS)).join(self.newest, self._same_key)
        moved = f.col(_PLACE[0]) != f.col(_CHANGED_AT[0])
        places = f.collect_list("_pos") if self.keys <= POSITIONS_MAX else f.lit(None).cast("array<bigint>")
        told = met.groupBy("_file").agg(
            f.count(f.lit(1)).alias(_ROWS), f.count_if(moved).alias(_SPLIT), places.alias(_AT)
        ).toArrow()  # fmt: skip
        live, counted = sum(file.live for file in files), seen.get.get(_ROWS)
        # If Spark finds at run time that the join is empty, the plan that counts is no longer part of it.
        read = cold.count() if counted is None else int(counted)
        if read < live:
            raise StagedWrong(
                f"{self.spec.table}: Spark compared {read} of the {live} keys in {len(files)} files of the batch view "
                "with those that changed; nothing was published, for a key may be there twice"
            )
        if any(told.column(_SPLIT).to_pylist()):
            ends = [f.struct(*_PLACE).alias(_FIRST), f.struct(*_CHANGED_AT).alias(_LAST)]
            _stop(
                self.spec,
                cold.join(self.newest, self._same_key).where(moved).select(*map(quoted, self.spec.key), *ends),
            )
        columns = (told.column("_file").to_pylist(), told.column(_ROWS).to_pylist(), told.column(_AT))
        return {path: Met(rows, at.values and at.values.to_numpy()) for path, rows, at in zip(*columns, strict=True)}

    def beside(self, older: Rows) -> Rows:
        """The puts and those of *older* whose key did not change."""
        keys = self.newest.select(*map(_key, range(len(self.spec.key))))
        return Rows(cast("DataFrame", older).join(keys, self._same_key, "left_anti").unionByName(self._puts))

    @property
    def _same_key(self) -> Column:
        return reduce(and_, (f.col(quoted(c)).eqNullSafe(f.col(_key(i))) for i, c in enumerate(self.spec.key)))


@contextmanager
def newest_of(
    spec: TableSpec, rows: DataFrame, *, recalled: DataFrame | None = None, pins: Pins
) -> Iterator[SparkKeyChanges]:
    """The newest version of each key of *rows*, the changelog, for as long as the context lasts.

    Keys of *recalled*, rows that lie in Postgres, are left out: their changes stay there.
    Raises: KeyInTwoPartitions.
    """
    partition, offset = map(f.col, _PLACE)
    # Of two offsets the higher wins, whatever the last bit, which says that it is a put: all that is aggregated are
    # numbers, so Spark does it by a hash table and not by sorting.
    winner = f.max(offset * 2 + (f.col("_op") == PUT).cast("long"))
    per_key = rows.groupBy(*(f.col(quoted(name)).alias(_key(i)) for i, name in enumerate(spec.key))).agg(
        winner.alias(_WINNER), f.min(partition).alias(_CHANGED_AT[0]), f.max(partition).alias(_LAST)
    )
    if recalled is not None:
        keys = recalled.select(*(f.col(quoted(name)).alias(_recalled(i)) for i, name in enumerate(spec.key)))
        same = reduce(and_, (f.col(_key(i)).eqNullSafe(f.col(_recalled(i))) for i in range(len(spec.key))))
        per_key = per_key.join(keys, same, "left_anti")
    newest = per_key.select(
        *map(_key, range(len(spec.key))),
        _CHANGED_AT[0],
        f.shiftright(_WINNER, 1).alias(_CHANGED_AT[1]),
        (f.col(_WINNER) % 2 == 1).alias(_PUT),
        (f.col(_CHANGED_AT[0]) < f.col(_LAST)).alias(_SPLIT),
    ).persist()
    try:
        told = _told(newest, spec)
        if told[_SPLIT]:
            ends = [end(f.struct(*_PLACE)).alias(name) for end, name in ((f.min, _FIRST), (f.max, _LAST))]
            met = rows.groupBy(*map(quoted, spec.key)).agg(*ends)
            _stop(spec, met.where(f.col(_FIRST)[_PLACE[0]] < f.col(_LAST)[_PLACE[0]]))
        box = tuple(_extent(told, spec.key.index(c.name)) for c in key_columns(spec))
        yield SparkKeyChanges(
            spec=spec, stream=rows, newest=newest, keys=told[_ROWS], puts=told[_PUT], box=box, pins=pins
        )
    finally:
        newest.unpersist()


def _told(newest: DataFrame, spec: TableSpec) -> dict[str, Any]:
    """Counts, and per column of `key_columns` its least and its greatest value in the domain of the tree, its NULLs."""
    box = {spec.key.index(column.name): column for column in key_columns(spec)}
    ends = [
        made
        for i in box
        for made in (
            f.min(_key(i)).alias(_low(i)),
            f.max(_key(i)).alias(_high(i)),
            f.count_if(f.col(_key(i)).isNull()).alias(_nulls(i)),
        )
    ]
    counts = [f.count(f.lit(1)).alias(_ROWS), *(f.count_if(name).alias(name) for name in (_PUT, _SPLIT))]
    found = newest.agg(*counts, *ends).toArrow()
    told = {name: found.column(name)[0].as_py() for name in (_ROWS, _PUT, _SPLIT, *map(_nulls, box))}
    for i, column in box.items():
        for name in (_low(i), _high(i)):
            values = to_values(found.column(name), column)
            told[name] = None if values.is_null[0] else values.values[0]
    return told


def _extent(told: Mapping[str, Any], at: int) -> Extent:
    return Extent(lower=told[_low(at)], upper=told[_high(at)], nulls=told[_nulls(at)])


def _stop(spec: TableSpec, met: DataFrame) -> NoReturn:
    """Name one key of *met*, which has two coordinates for each: always the same one."""
    found = met.orderBy(_FIRST, _LAST).first()
    assert found is not None
    key = ", ".join(f"{name}={found[name]!r}" for name in spec.key)
    raise key_in_two_partitions(spec.table, key, first=tuple(found[_FIRST]), second=tuple(found[_LAST]))


def _recalled(at: int) -> str:
    return f"_harness_recalled_{at}"


def _key(at: int) -> str:
    return f"_harness_key_{at}"


def _low(at: int) -> str:
    return f"_harness_low_{at}"


def _high(at: int) -> str:
    return f"_harness_high_{at}"


def _nulls(at: int) -> str:
    return f"_harness_nulls_{at}"
