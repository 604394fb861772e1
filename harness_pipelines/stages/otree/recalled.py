"""What moves of otree do with recalled rows: gather them from the lake, carry the changes of a merge into them, judge
what went back.

Recalled rows go through this process, so `recall: max_rows` of the spec bounds them. What is written is read back and
compared before a version names it (S32).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.ports.access import HasLake, HasLakeReads, HasOverlays, HasRecalls
from harness_pipelines.ports.lake import judged
from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.digest import added, as_first, parsed, row_digests, shown, total_digest
from harness_pipelines.protocol.keys import PUT
from harness_pipelines.protocol.lake.overlays import (
    NotRecallable,
    Overlay,
    OverlayChange,
    RecallTooLarge,
    check_same,
    check_size,
    next_generation,
    recalled,
)
from harness_pipelines.protocol.reading.fold import KeyNumbers, fold, gathered
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery, LakeStats, schema_of
from harness_pipelines.spec.arrow import COORDINATES, to_arrow
from harness_pipelines.spec.predicate import TRUE, Predicate
from harness_pipelines.spec.where import parse_where
from harness_pipelines.stages.run.moving import Pointless

if TYPE_CHECKING:
    from harness_pipelines.layout.files import Positions
    from harness_pipelines.ports.lake import LakeReads, Staged
    from harness_pipelines.ports.ledger import TableRow
    from harness_pipelines.protocol.moves import Move
    from harness_pipelines.protocol.versions import Version

FOLD_ROWS = 65_536  #: records of a merge that are looked at together, or as many as there are recalled keys
_AT = "_harness_at"


class Ports(HasLake, HasLakeReads, HasOverlays, HasRecalls, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Rows of the lake that an attempt has copied to Postgres, and what that hides in the lake."""

    overlays: OverlayChange
    hidden: Mapping[str, Positions]  #: rows of files that stay, by path
    emptied: Mapping[str, str | None]  #: files of which no row is left, with their delete files


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """The rows of the lake that match a `where`. Files and bytes are those opened to find them."""

    rows: int
    bytes: int  #: of the rows, as Arrow has them
    files: int
    found: pa.Table = field(repr=False)
    places: Mapping[str, tuple[Positions, int, str | None]] = field(repr=False)  #: positions, live rows, delete file


def check_recallable(table: TableRow) -> None:
    """Rows are recalled by key, from a batch view that a stream view stands beside. Raises: NotRecallable."""
    if not table.spec.key:
        raise NotRecallable(
            f"{table.name} has no key: its rows are never updated, so there is nothing to bring them back for"
        )
    if not table.view_set.merged:
        raise NotRecallable(
            f"{table.name}: rows are recalled from a batch view beside a stream view, and its spec says `views: "
            f"{table.view_set.word}`"
        )


def predicate_of(table: TableRow, where: str) -> Predicate:
    """Raises: WhereError."""
    return parse_where(where, {column.name: column.type for column in table.spec.columns})


def matching(lake: LakeReads, table: TableRow, version: Version, where: Predicate, *, rows_max: int) -> Matching:
    """The live rows of the batch view of *version* for which *where* holds; beyond *rows_max* they are only counted.

    Rows that are recalled already are hidden in the lake, so they are none of them.
    Raises: LakeFileMissing, LakeUnreadable.
    """
    assert version.batch is not None
    schema, stats = schema_of(table.spec), LakeStats()
    ranges = {p: (b.start, b.batch_hi) for p, b in version.bounds.items() if b.start < b.batch_hi}
    query = LakeQuery(table=table.name, version=version.version, ranges=ranges, columns=_columns(table), where=where)
    rows, size, found, places = 0, 0, [schema.empty_table()], {}
    for part in lake.located(version.batch.metadata, query, stats) if ranges else ():
        held = conformed(part.rows, schema).append_column(_AT, pa.array(part.positions))
        if where != TRUE:
            held = held.filter(to_arrow(where))
        rows, size = rows + held.num_rows, size + held.nbytes
        if held.num_rows and rows <= rows_max:
            deletes = part.file.deletes
            found.append(held.drop_columns([_AT]))
            at = held.column(_AT).to_numpy()
            places[part.file.path] = (at, part.file.rows, deletes.path if deletes else None)
    return Matching(
        rows=rows,
        bytes=size,
        files=stats.files_opened,
        found=pa.concat_tables(found),
        places=places,
    )


def gather(stores: Ports, table: TableRow, move: Move, *, base: Version) -> Gathered:
    """Copy the rows that *move*'s request selects to a table in Postgres, which no reader sees yet.

    Raises: Pointless where there are none, or more than may be; OverlayWrong, PostgresUnreachable, LakeUnreadable.
    """
    where = _request(stores, table, move)
    assert where is not None
    held, rows_max = sum(one.rows for one in base.overlays), table.spec.recall.max_rows
    found = matching(stores.lake_reads, table, base, predicate_of(table, where), rows_max=rows_max - held)
    try:
        check_size(table.name, rows=found.rows, held=held, rows_max=rows_max)
    except RecallTooLarge as large:
        stores.recalls.refuse(move, detail=str(large))
        raise Pointless(str(large)) from large
    if not found.rows:
        stores.recalls.nothing_to_do(move)
        raise Pointless(f"{table.name}: no row of the lake matches, nothing was recalled")
    made = _made(stores, table, move, found.found)
    emptied = {path: deletes for path, (at, live, deletes) in found.places.items() if len(at) == live}
    return Gathered(
        overlays=recalled(base.overlays, made),
        hidden={path: at for path, (at, _, _) in found.places.items() if path not in emptied},
        emptied=emptied,
    )


def check_release(stores: Ports, table: TableRow, move: Move, *, base: Version) -> None:
    """Raises: Pointless when there is nothing to release."""
    _request(stores, table, move)
    if not base.overlays:
        stores.recalls.nothing_to_do(move)
        raise Pointless(f"{table.name}: nothing is recalled")


def check_released(stores: Ports, table: TableRow, staged: Staged, *, base: Version) -> None:
    """Check that the rows that return to the lake are the recalled ones. Raises: OverlayWrong (REFRESH)."""
    view = stores.lake_reads.view(stores.lake.pointer(table, "batch"))
    rows, digest = 0, 0
    for file in staged.files:
        with judged(table, file):
            for part in view.rows(table, file):
                rows, digest = rows + part.num_rows, added(digest, total_digest(row_digests(part)))
    check_same(
        table.name,
        "rows that go back to the lake",
        rows=(sum(one.rows for one in base.overlays), rows),
        digests=(_together(base.overlays), shown(digest)),
    )


def merged(stores: Ports, table: TableRow, move: Move, *, base: Version, ranges: Ranges) -> OverlayChange | None:
    """The next generation of the recalled rows: with the newest puts of their keys, without those that are deleted.

    None where no record of *ranges* has a recalled key. All tables of recalled rows become one.
    Raises: KeyInTwoPartitions, OverlayWrong, PostgresUnreachable, LakeUnreadable.
    """
    if not base.overlays:
        return None
    held = stores.overlays.read(table, base.overlays)
    _check_read(table, base.overlays, held)
    changes = _changes(stores.lake_reads, table, held, base=base, ranges=ranges)
    if not changes.num_rows:
        return None
    newest = fold(table.name, pa.concat_tables([held, changes]), table.spec.key)
    left = newest.rows.filter(pc.equal(newest.rows.column(OPERATION), PUT))
    return next_generation(base.overlays, _made(stores, table, move, left) if left.num_rows else None)


def _changes(lake: LakeReads, table: TableRow, held: pa.Table, *, base: Version, ranges: Ranges) -> pa.Table:
    """The newest record of *ranges* of each key that is among *held*; memory is bounded by the number of these keys."""
    schema, key = held.schema, table.spec.key
    keys = KeyNumbers([held.column(name) for name in key])
    query = LakeQuery(table=table.name, version=base.version, ranges=ranges, columns=_columns(table))
    newest = schema.empty_table()
    # Looking keys up begins by hashing all of those that are held, so it is done for as many records at a time.
    for rows in gathered(
        (conformed(part, schema) for part in lake.scan(base.stream.metadata, query, LakeStats())),
        max(FOLD_ROWS, held.num_rows),
    ):
        mine = rows.filter(pa.array(keys.of([rows.column(name) for name in key]) >= 0))
        newest = fold(table.name, pa.concat_tables([newest, mine]), key).rows
    return newest


def _made(stores: Ports, table: TableRow, move: Move, rows: pa.Table) -> Overlay:
    """A table of *rows* that this attempt writes, read back. Raises: OverlayWrong, PostgresUnreachable."""
    digest = _digest(table, rows)
    written = stores.overlays.write(table, move, rows)
    made = Overlay(
        segment=written.segment,
        rows=rows.num_rows,
        bytes=written.bytes,
        schema_version=table.schema_version,
        digest=digest,
        move=move.move_id,
        packed=written.packed,
    )
    _check_read(table, [made], stores.overlays.read(table, [made]))
    return made


def _check_read(table: TableRow, overlays: Sequence[Overlay], rows: pa.Table) -> None:
    check_same(
        table.name,
        f"recalled rows in {', '.join(one.segment for one in overlays)}",
        rows=(sum(one.rows for one in overlays), rows.num_rows),
        digests=(_together(overlays), _digest(table, rows)),
    )


def _together(overlays: Sequence[Overlay]) -> str:
    return shown(reduce(added, (parsed(one.digest) for one in overlays), 0))


def _digest(table: TableRow, rows: pa.Table) -> str:
    return shown(total_digest(row_digests(as_first(rows, table))))


def _request(stores: Ports, table: TableRow, move: Move) -> str | None:
    """The `where` of the request that *move* answers. Raises: Pointless when it is over: another attempt said so."""
    assert move.recall is not None
    request = stores.recalls.find(table, move.recall)
    if not request.is_open:
        raise Pointless(f"{table.name}: request {request.recall_id} is {request.state} already")
    return request.where


def _columns(table: TableRow) -> list[LakeColumn]:
    user = [LakeColumn(name=f["name"], field_id=int(f["id"])) for f in table.fields]
    return [*user, *(LakeColumn(name=name, field_id=None) for name in COORDINATES.names)]
