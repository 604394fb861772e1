"""Corrections below a reader's offsets: rows that changed between two versions, marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.changes.corrections import Coordinate, Kind
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.reading.selection import COORDINATE_TYPES, Selection, work_of
from harness_pipelines.protocol.versions import Version
from harness_pipelines.read.lease import Hold
from harness_pipelines.read.stream.changes import changes_plan, log_plan, version_of
from harness_pipelines.read.union import ArrowReader
from harness_pipelines.spec.predicate import OFFSET, PARTITION, Compare, OneOf, Op, Ref, all_of

CORRECTION = "_correction"
OFFSETS_PER_READ = 10_000  #: of one partition: corrections in memory


def read_corrections(
    reader: ArrowReader,
    log: ReadPlan,
    selection: Selection,
    *,
    told: Mapping[Coordinate, Kind],
    check_lease: Callable[[], None],
) -> Iterator[pa.Table]:
    """What *told*, the net of corrections up to the version of *log* (`passed_plan`), made of each record, in order.

    The columns of *selection*, the coordinates, and `_correction`: ``added`` and ``replaced`` with the row that is
    there now, ``removed`` with partition and offset alone. A row that is another one now, for which `where` does not
    hold, is reported as removed. At most `OFFSETS_PER_READ` at a time; the first table comes
    in any case, with no row where there is nothing to tell. Raises: as `ArrowReader.read`.
    """
    wanted = replace(selection, coordinates=True, changelog=True)
    is_first = True
    for partition, offsets in _runs(sorted(told)):
        here = Compare(Ref((PARTITION,), COORDINATE_TYPES[PARTITION]), Op.EQ, partition)
        only = OneOf(Ref((OFFSET,), COORDINATE_TYPES[OFFSET]), tuple(offsets))
        one = replace(wanted, matching=all_of(wanted.matching, here, only))
        rows = reader.read(log, one, check_lease=check_lease)
        marked = _marked(rows, {(partition, o): told[partition, o] for o in offsets})
        if is_first or marked.num_rows:
            yield marked
            is_first = False
    if is_first:
        yield _marked(work_of(log, wanted).schema.empty_table(), {})


def passed_plan(plan: ReadPlan, version: Version, below: Vector) -> ReadPlan:
    """The records of *plan*, which is of *version*, that a reader has passed."""
    return log_plan(plan, version, low={p: b.start for p, b in plan.bounds.items()}, high=below)


def corrections_passed(
    reader: ArrowReader,
    plan: ReadPlan,
    versions: Sequence[Version],
    selection: Selection,
    *,
    since: int,
    told: Mapping[Coordinate, Kind],
    hold: Hold,
) -> pa.Table:
    """Those of *told* that `changes_plan` leaves out, as `read_corrections`. Raises: as both."""
    changes_plan(plan, versions, since=since)  # refuses what it refuses
    had = version_of(plan, versions, since).buffer_hi
    part = passed_plan(plan, version_of(plan, versions, plan.version), had)
    found = list(read_corrections(reader, part, selection, told=passed(told, had), check_lease=hold.check))
    hold.finish()
    return pa.concat_tables(found)


def passed(told: Mapping[Coordinate, Kind], below: Vector) -> dict[Coordinate, Kind]:
    """Those of *told* that a reader has passed; a record ahead of it is read in its current state."""
    return {at: kind for at, kind in told.items() if at[1] < below.get(at[0], 0)}


def _runs(wanted: Sequence[Coordinate]) -> Iterator[tuple[int, list[int]]]:
    for partition in sorted({p for p, _ in wanted}):
        offsets = [o for p, o in wanted if p == partition]
        for first in range(0, len(offsets), OFFSETS_PER_READ):
            yield partition, offsets[first : first + OFFSETS_PER_READ]


def _marked(rows: pa.Table, told: Mapping[Coordinate, Kind]) -> pa.Table:
    schema = pa.schema([field.with_nullable(True) for field in rows.schema])
    there = list(zip(rows.column(PARTITION).to_pylist(), rows.column(OFFSET).to_pylist(), strict=True))
    gone = sorted(at for at in told.keys() - set(there) if told[at] is not Kind.ADDED)
    nothing = {name: pa.nulls(len(gone), schema.field(name).type) for name in schema.names}
    places = {PARTITION: [p for p, _ in gone], OFFSET: [o for _, o in gone]}
    nothing |= {name: pa.array(values, schema.field(name).type) for name, values in places.items()}
    both = pa.concat_tables([rows.cast(schema), pa.table(nothing, schema=schema)])
    kinds = [str(told[at]) for at in there] + [str(Kind.REMOVED)] * len(gone)
    marked = both.append_column(CORRECTION, pa.array(kinds, pa.string()))
    return marked.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])
