"""Other engines read cuts from their metadata files, and see what the plan reads."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.engine_rows import COLUMNS, Row, plain, record, without_nested_null
from harness_pipelines_tests.engines import READERS
from harness_pipelines_tests.unit.lakes.cut_rig import CutRig, with_coordinates

PLACE = ("_kafka_partition", "_kafka_offset")
Places = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A cut, and the rows that its plan reads."""

    metadata: str
    rows: list[Row]


def run(partition: int, low: int, high: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(low, high)]


def seen(rig: CutRig, previous: Any = None) -> tuple[Seen, Any]:
    draft = rig.cut(previous=previous)
    return Seen(metadata=draft.metadata, rows=[plain_clock(row) for row in rig.read().to_pylist()]), draft


def plain_clock(row: Row) -> Row:
    """*row* as `plain` gives it."""
    found = {name: value for name, value in row.items() if name not in ("_kafka_timestamp", "clock")}
    return plain(found) | ({"clock": row["clock"]} if "clock" in row else {})


def every_type(folder: Any) -> list[Seen]:
    """A table with all types: two views, deletes in both, files that straddle, two cuts."""
    rng = random.Random(5)
    rig = CutRig(folder, COLUMNS, layout={"sample": 0.5})
    schema = arrow_schema(rig.table.spec.stored)

    def rows(places: Places) -> pa.Table:
        user = [_raw(record(1_000 * p + o, rng)) for p, o in places]
        return with_coordinates(
            {field.name: pa.array([row[field.name] for row in user], field.type) for field in schema}, places
        )

    rig.at(0, 0, 15, 30, 40)
    rig.at(1, 0, 10, 20, 20)
    rig.append("batch", rows(run(0, 0, 8) + run(1, 0, 5)))
    rig.append("batch", rows(run(0, 8, 15) + run(1, 5, 10)))
    rig.append("stream", rows(run(0, 10, 22) + run(1, 4, 20)))
    rig.append("stream", rows(run(0, 22, 30)))
    rig.hide("batch", {0: (3, 5)})
    rig.hide("stream", {0: (12, 17), 1: (11, 12)})
    rig.buffer = rows(run(0, 30, 50) + run(1, 20, 25)).select(rig.schema.names)
    first, draft = seen(rig)
    rig.at(0, 0, 15, 30, 50)
    rig.at(1, 0, 10, 20, 25)
    second, _ = seen(rig, draft)
    return [first, second]


def _raw(row: Row) -> Row:
    return row | {"u": row["u"] and row["u"].bytes, "counts": row["counts"] and list(row["counts"].items())}


def evolved(folder: Any) -> list[Seen]:
    """A table whose columns changed between its files; before a cut of it and after."""
    columns = {"id": {"type": "long", "required": True}, "n": "int", "s": "string", "raw": "binary"}
    rig = CutRig(folder, columns, layout={"columns": ["id"]})

    def rows(places: Places, **columns: pa.DataType) -> pa.Table:
        ids = pa.array([1_000 * p + o for p, o in places], pa.int64())
        raw = pa.array([b"raw"] * len(places), pa.binary())
        numbers = pa.array([o for _, o in places], pa.int64())
        return with_coordinates(
            {"id": ids, "raw": raw, **{name: numbers.cast(kind) for name, kind in columns.items()}}, places
        )

    old: Mapping[str, pa.DataType] = {"n": pa.int32(), "s": pa.string()}
    rig.at(0, 0, 5, 9, 12)
    rig.append("batch", rows(run(0, 0, 5), **old))
    rig.append("stream", rows(run(0, 3, 9), **old))
    rig.buffer = rows(run(0, 9, 12), **old).select(rig.schema.names)
    first, draft = seen(rig)
    rig.evolve(
        ColumnChanges(
            rename=(("s", "text"),),
            widen=(("n", parse_type("long")),),
            add=(Column(name="more", type=parse_type("double")),),
        )
    )
    new: Mapping[str, pa.DataType] = {"n": pa.int64(), "text": pa.string(), "more": pa.float64()}
    rig.append("stream", rows(run(0, 9, 14), **new))
    rig.at(0, 0, 5, 14, 20)
    rig.buffer = rows(run(0, 14, 20), **new).select(rig.schema.names)
    second, _ = seen(rig, draft)
    return [first, second]


def small(folder: Any) -> list[Seen]:
    """Nothing; one view alone, by each name; the buffer alone."""
    columns = {"id": {"type": "long", "required": True}, "raw": "binary"}

    def rows(places: Places) -> pa.Table:
        ids = pa.array([1_000 * p + o for p, o in places], pa.int64())
        return with_coordinates({"id": ids, "raw": pa.nulls(len(places), pa.binary())}, places)

    found = [seen(CutRig(folder / "empty", columns))[0]]
    alone = CutRig(folder / "buffer", columns)
    alone.at(0, 0, 0, 0, 5)
    alone.buffer = rows(run(0, 0, 5))
    found.append(seen(alone)[0])
    for view in ("stream", "batch"):
        rig = CutRig(folder / view, columns, views=view)
        rig.at(0, 0, 9 if view == "batch" else 0, 9, 12)
        rig.append("batch" if view == "batch" else "stream", rows(run(0, 0, 9)))
        rig.hide("batch" if view == "batch" else "stream", {0: (2, 4)})
        rig.buffer = rows(run(0, 9, 12))
        found.append(seen(rig)[0])
    return found


@pytest.fixture(scope="module", params=["every type", "columns that changed", "small tables"])
def cuts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    make = {"every type": every_type, "columns that changed": evolved, "small tables": small}[request.param]
    return make(tmp_path_factory.mktemp("lake"))


@pytest.mark.parametrize("engine", READERS)
def test_other_engines_see_what_the_plan_reads(cuts: list[Seen], engine: str):
    assert sum(len(one.rows) for one in cuts) > 20
    for one in cuts:
        # Daft finds columns by their names, so one that was renamed is NULL in older files; of any view, too.
        unread = {"u", "text"} if engine == "Daft" else set()
        wanted = [{name: value for name, value in row.items() if name not in unread} for row in one.rows]
        if engine == "chDB":
            wanted = [without_nested_null(row) if "place" in row else row for row in wanted]
        found = READERS[engine](one.metadata, "id >= 0")
        assert "_sample" not in found.column_names
        names = list(wanted[0]) if wanted else []
        rows = sorted(map(plain, found.select(names).to_pylist()), key=lambda row: [row[name] for name in PLACE])
        assert found.num_rows == len(wanted)
        assert rows == wanted


@pytest.mark.parametrize("engine", READERS)
def test_other_engines_prune_files_of_a_cut_by_their_bounds(cuts: list[Seen], engine: str):
    for one in cuts:
        found = READERS[engine](one.metadata, "_kafka_offset >= 11 AND id >= 0")
        assert found.num_rows == sum(row["_kafka_offset"] >= 11 for row in one.rows)
