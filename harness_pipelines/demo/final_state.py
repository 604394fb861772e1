"""The keyed demo's last check: the whole state column by column against the replayed log, in Arrow and in Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.demo.truth import whole_numbers
from harness_pipelines.demo.verify import COORDINATES, Verdict, has_spark, sums_of, unequal_sums

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table

KEYS_NAMED = 5


def replay(keys: Iterable[int], deletes: Iterable[bool]) -> list[int]:
    """The numbers of the records that are rows in the end: of each key the newest, unless it is a delete."""
    newest: dict[int, int] = {}
    for number, (key, is_delete) in enumerate(zip(keys, deletes, strict=True)):
        if is_delete:
            newest.pop(key, None)
        else:
            newest[key] = number
    return sorted(newest.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Keys whose rows are wrong."""

    missing: Sequence[int]
    doubled: Sequence[int]  #: once for each row too many
    strange: Sequence[int]  #: deleted, or never sent
    other_version: Sequence[int]  #: the row is that of another record
    columns: Mapping[str, Sequence[int]]  #: by column, where the row of the right record has another value

    def said(self, reader: str, key: str) -> tuple[str, ...]:
        """Sentences with the first of the keys; none when nothing differs."""
        kinds = [
            ("are missing", self.missing),
            ("are too many: their key is there already", self.doubled),
            ("are of a key that is deleted or was never sent", self.strange),
            ("are not the newest version of their key", self.other_version),
            *((f"have another {name}", keys) for name, keys in self.columns.items()),
        ]
        return tuple(f"{reader}: {len(keys):,} rows {what}: {_named(key, keys)}" for what, keys in kinds if len(keys))


def differences(expected: pa.Table, found: pa.Table, *, key: str) -> Differences:
    """Compare *found* with *expected*, which has one row per key and tells which columns count."""
    wanted, got = whole_numbers(expected.column(key)), whole_numbers(found.column(key))
    there, first, times = np.unique(got, return_index=True, return_counts=True)
    both, in_wanted, in_there = np.intersect1d(wanted, there, return_indices=True)
    expected, found = expected.take(pa.array(in_wanted)), found.take(pa.array(first[in_there]))
    unequal = {name: _unequal(expected.column(name), found.column(name)) for name in expected.column_names}
    moved = np.logical_or.reduce([unequal.pop(name) for name in COORDINATES])
    wrong = {name: both[differs & ~moved].tolist() for name, differs in unequal.items()}
    return Differences(
        missing=np.setdiff1d(wanted, there).tolist(),
        doubled=np.repeat(there, times - 1).tolist(),
        strange=np.setdiff1d(there, wanted).tolist(),
        other_version=both[moved].tolist(),
        columns={name: keys for name, keys in wrong.items() if keys},
    )


def verify_state(table: Table, expected: pa.Table, *, key: str, numeric: Sequence[str], judge: str) -> Verdict:
    """Compare *table* with *expected*, as Arrow reads it and, where it is there, Spark: all columns and coordinates."""
    names = expected.column_names
    read = {"Arrow": table.read(columns=names)}
    if has_spark(table):
        read["Spark"] = _spark(table, names)
    found = {reader: differences(expected, rows, key=key) for reader, rows in read.items()}
    return Verdict(
        expected=expected.num_rows,
        read={reader: rows.num_rows for reader, rows in read.items()},
        missing=max(len(one.missing) for one in found.values()),
        duplicated=max(len(one.doubled) for one in found.values()),
        unequal=unequal_sums(
            {reader: sums_of(rows, numeric) for reader, rows in read.items()},
            sums_of(expected, numeric),
            judge=judge,
        ),
        state=tuple(said for reader, one in found.items() for said in one.said(reader, key)),
    )


def _unequal(expected: pa.ChunkedArray, found: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Where the two differ; NULL is equal to NULL alone."""
    same = pc.fill_null(pc.equal(expected, found.cast(expected.type)), False)
    return ~np.asarray(pc.or_(same, pc.and_(pc.is_null(expected), pc.is_null(found))).to_numpy(), dtype=np.bool_)


def _named(key: str, keys: Sequence[int]) -> str:
    more = ", ..." if len(keys) > KEYS_NAMED else ""
    return f"{key} {', '.join(map(str, keys[:KEYS_NAMED]))}{more}"


def _spark(table: Table, columns: Sequence[str]) -> pa.Table:
    plan = table.plan()
    try:
        return table.to_spark(table.harness.stores.spark(), columns=columns, plan=plan).toArrow()
    finally:
        table.release(plan)
