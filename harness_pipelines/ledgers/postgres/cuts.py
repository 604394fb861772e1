"""The ledger's side of cuts: which one is the newest, and until when the files of each stay.

The rules are in the ledger's functions (migration 0047), since a reader's login has no other way to write a cut. They
are called here, and what they refuse gets its name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
import structlog
from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import Database, sql
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.ledger import LeaseEnded, TableRow, TableUnknown
from harness_pipelines.ports.rows import state_seen, table_row
from harness_pipelines.ports.serving.cuts import (
    Cut,
    CutDamaged,
    CutDraft,
    CutImpossible,
    CutOvertaken,
    CutPart,
    CutRejected,
    CutsFull,
    Found,
    Marks,
    Newest,
)
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.cuts import (
    bounds_json,
    bounds_of_json,
    chunk_json,
    chunk_of_json,
    cut_folder,
    parts_json,
    too_large,
)

log = structlog.get_logger(__name__)
_TIMES = ("looked_at", "published_at", "served_at", "until")
#: Errors of reading a row that another login wrote.
_NOT_UNDERSTOOD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
#: What the ledger's functions refuse, by SQLSTATE.
_REFUSALS: Mapping[str, tuple[type[HarnessError], str]] = {
    "HP001": (LeaseEnded, "expire may take its files for orphans; it was not published, load the table again"),
    "HP016": (CutOvertaken, "this one was not published, load the table again"),
    "HP017": (CutRejected, "nothing was written"),
    "HP018": (CutsFull, "this one was not published"),
    "HP022": (TableUnknown, "the files that were written for the cut are left to `harness table drop --purge`"),
}


class Cuts:
    """The cuts of one ledger, as a reader's login may publish and serve them."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def newest(self, table: TableRow) -> Newest:
        """The last cut, with the state of the same instant. Of one that is over the numbers alone: see `Cut.is_over`.

        Where there was none, numbers that are the clock's: a ledger that was lost may have given lower ones.
        The folder of the next cut's files is in the ledger when this returns. One whose row is not understood is
        retired. Raises: TableUnknown, CutDamaged.
        """
        row = self._row(table.name)
        if row is None or row["of_table"] != table.table_id:
            raise TableUnknown(f"{table.name} is not there any more; `harness table list` shows the existing tables")
        return self._newest(row)

    def found(self, name: str, *, known: Found | None = None) -> Found | None:
        """The table called *name*, with `newest` of it; None: there is none. It is one question.

        *known* is as in the port: a load that finds nothing new asks for less. Raises: TableDamaged, CutDamaged.
        """
        if known is not None and (same := self._same(name, known)) is not None:
            return same
        asked = time.monotonic()
        row = self._row(name)
        if row is None:
            return None
        return Found(table_row({**row, "table_id": row["of_table"]}), self._newest(row), asked, _marks(row))

    def _same(self, name: str, known: Found) -> Found | None:
        """*known* with the times of now, and without its state if that has changed; None: all is to be read."""
        cut, asked = known.newest.cut, time.monotonic()
        if cut is None or cut.is_over:
            return None
        row = next(iter(self.database.rows("cuts/known_newest", {**_named(name), "known": cut.metadata})), None)
        if row is None or row["table_mark"] != known.marks.table:
            return None
        is_same = row["state_mark"] == known.marks.state
        if is_same and known.newest.state is None:  # it came to rest: once read, it is compared with the cut
            return None
        if not cut.metadata.startswith(f"{cut_folder(known.table.spec.name, row['stream_metadata'])}/"):
            return None  # the folder of the next cut may not be noted
        times = {word: row[word] for word in _TIMES}
        newest = Newest(replace(cut, **times), row["now"], known.newest.state if is_same else None)
        return Found(known.table, newest, asked, _marks(row))

    def _row(self, name: str) -> Mapping[str, Any] | None:
        return next(iter(self.database.rows("cuts/newest", _named(name))), None)

    def _newest(self, row: Mapping[str, Any]) -> Newest:
        if not row["is_noted"]:
            with self.database.transaction() as connection:
                connection.execute(sql("cuts/prepare"), {"table_id": row["of_table"], "version": None})
        return Newest(self._understood(row), row["now"], state_seen(row))

    def _understood(self, row: Mapping[str, Any]) -> Cut:
        if row["sequence"] is None:
            return _none_yet(row)
        try:
            return _cut(row)
        except _NOT_UNDERSTOOD as error:
            name = f"{row['namespace']}.{row['name']}"
            log.warning("cut.not_understood", table=name, sequence=row["sequence"], error=str(error)[:200])
            self._retire("cuts/retire", row["table_id"], row["sequence"])
            return _cut({**row, "is_alive": False})

    def is_there(self, table: TableRow) -> bool:
        """Whether *table* was not dropped."""
        return bool(self.database.rows("cuts/is_there", {"table_id": table.table_id}))

    def publish(self, table: TableRow, draft: CutDraft, *, previous: int | None, lease_id: str, keep: timedelta) -> Cut:
        """Record a cut, if the newest one is still that of the sequence *previous*, and the maker's lease is alive.

        Raises: CutOvertaken, LeaseEnded, CutRejected, CutsFull, CutImpossible, TableUnknown; OutcomeUnknown when the
        answer was lost: the newest cut says whether it was published.
        """
        given = {"previous": previous, "lease_id": lease_id, "keep": keep}
        return self._published("cuts/publish", table, draft, given)

    def named(self, table: TableRow, name: str) -> tuple[Cut, datetime] | None:
        """The cut of the state that the snapshot *name* pins of *table*, and the ledger's clock; None: it pins none.

        Where no such cut is alive the numbers alone, which are the clock's. The folder of its files is in the ledger
        when this returns. One whose row is not understood is retired.
        Raises: CutRejected where the pin was changed by hand, CutDamaged.
        """
        found = self.database.rows("cuts/named", {"table_id": table.table_id, "name": name})
        if not found:
            return None
        row = found[0]
        if not row["is_sound"]:
            raise CutRejected(
                f"what snapshot {name} pins of {table.name} was changed by hand; no cut of it is served. Drop it, and "
                f"make another one; `harness fsck {table.name}` names all such"
            )
        if not row["is_noted"]:
            key = {"table_id": table.table_id, "version": row["of_version"]}
            with self.database.transaction() as connection:
                connection.execute(sql("cuts/prepare"), key)
        if not row["is_alive"]:
            return _none_yet(row, is_named=True), row["now"]
        try:
            return _cut(row, is_named=True), row["now"]
        except _NOT_UNDERSTOOD as error:
            log.warning("cut.not_understood", table=table.name, sequence=row["sequence"], error=str(error)[:200])
            self._retire("cuts/retire_named", row["table_id"], row["sequence"])
            return _none_yet(row, is_named=True), row["now"]

    def tables_of(self, name: str) -> Sequence[str]:
        """The tables that the snapshot *name* pins, by name; none where there is no such snapshot."""
        return [row["table_name"] for row in self.database.rows("cuts/tables_of", {"name": name})]

    def publish_named(self, table: TableRow, draft: CutDraft, *, lease_id: str, keep: timedelta) -> Cut:
        """Record the cut of a state that a snapshot pins, if none is alive.

        Raises: CutOvertaken where there is one, or no snapshot pins the state any more; as `publish`.
        """
        given = {"lease_id": lease_id, "keep": keep}
        return replace(self._published("cuts/publish_named", table, draft, given), is_named=True)

    def _published(self, statement: str, table: TableRow, draft: CutDraft, given: Mapping[str, Any]) -> Cut:
        _check_size(table, draft)
        given = {"table_id": table.table_id, **given, **_parameters(draft)}
        with self.database.transaction() as connection:
            try:
                row = connection.execute(sql(statement), given).fetchone()
            except psycopg.Error as error:
                raise _refusal(error, table) from error
        assert row is not None, "the function returns one row"
        return Cut(
            **{word: getattr(draft, word) for word in CutDraft.__dataclass_fields__},
            table_id=table.table_id,
            looked_at=row["looked_at"],
            published_at=row["served_at"],
            served_at=row["served_at"],
            until=row["until"],
        )

    def serve(self, cut: Cut, *, keep: timedelta) -> None:
        """Let the files of *cut* stay for *keep* from now, at most until a day after the next cut was published.

        Those of a named one stay no longer than was promised when its snapshot was dropped.
        It does not wait for the disk, as a change of a lease does not: what a crash takes back is less than a second.
        Raises: CutOvertaken where the cut is gone, or its snapshot: make another one.
        """
        key = {"table_id": cut.table_id, "sequence": cut.sequence, "keep": keep}
        with self.database.transaction() as connection:
            with connection.pipeline():
                connection.execute(sql("reads/async_commit"))
                cursor = connection.execute(sql("cuts/serve_named" if cut.is_named else "cuts/serve"), key)
            row = cursor.fetchone()
        if row is None or not row["alive"]:
            raise CutOvertaken(
                f"the time of cut {cut.snapshot_id} has ended, or its named snapshot was dropped; its files may go; "
                "load the table again"
            )

    def retire(self, cut: Cut) -> None:
        """Let no server show *cut* again, nor go on from its files: one is lost or damaged.

        The next cut goes on from its numbers alone, as from one whose time has ended. Its files stay until that time.
        Nothing is done where it is not the newest one any more. Raises: CutDamaged where another cut of the table was
        retired less than a minute ago: what is wrong is then perhaps not the cut.
        """
        self._retire("cuts/retire_named" if cut.is_named else "cuts/retire", cut.table_id, cut.sequence)

    def _retire(self, statement: str, table_id: int, sequence: int) -> None:
        with self.database.transaction() as connection:
            row = connection.execute(sql(statement), {"table_id": table_id, "sequence": sequence}).fetchone()
        if row is None or not row["done"]:
            raise CutDamaged(
                f"the cut with sequence {sequence} is lost or damaged, and another one was retired less than a minute "
                "ago; it is not served, and none is made in its place yet"
            )

    def pinned(
        self, table: TableRow, *, every_s: int, mine: Cut | None = None, window: int | None = None
    ) -> tuple[Cut | None, int]:
        """The cut that all servers give out in *window*, if it is alive, and the window, by default that of now.

        Of a window without one it is *mine* from now on. A window of *every_s* begins at a whole multiple of its length
        by the ledger's clock.
        """
        given = {"mine": None if mine is None else mine.sequence, "slot": window}
        with self.database.transaction() as connection:
            key = {"table_id": table.table_id, "seconds": every_s}
            row = connection.execute(sql("cuts/pinned"), {**key, **given}).fetchone()
        assert row is not None, "the function returns one row"
        return (_cut(row) if row["is_alive"] else None), row["slot"]

    def merged(self, table: TableRow, *, above: int, below: int) -> Vector:
        """By partition the highest `batch_hi` of the versions between *above* and *below*, of neither of these two."""
        found = self.database.rows("cuts/merged", {"table_id": table.table_id, "above": above, "below": below})
        return {row["partition"]: row["batch_hi"] for row in found}

    def known(self, table: TableRow, snapshot_id: int) -> Cut | None:
        """The cut of a snapshot, by whatever server, if it is alive."""
        key = {"table_id": table.table_id, "snapshot_id": snapshot_id}
        if found := self.database.rows("cuts/known", key):
            return _cut(found[0])
        found = self.database.rows("cuts/known_named", key)
        return _cut(found[0], is_named=True) if found else None


def _named(name: str) -> dict[str, str]:
    namespace, _, short = name.partition(".")
    return {"namespace": namespace, "name": short}


def _marks(row: Mapping[str, Any]) -> Marks:
    return Marks(table=row["table_mark"], state=row["state_mark"])


def _parts(draft: CutDraft) -> Mapping[str, tuple[str, str]]:
    return {name: (part.key, part.manifests) for name, part in draft.parts.items()}


def _check_size(table: TableRow, draft: CutDraft) -> None:
    """Raises: CutImpossible, for what the ledger does not take, as the last check: all is written by now."""
    if why := too_large(draft.bounds, chunks=draft.chunks, parts=_parts(draft), files=draft.files):
        raise CutImpossible(f"{table.name}: {why}; the cut was not published")


def _refusal(error: psycopg.Error, table: TableRow) -> Exception:
    kind, way_on = _REFUSALS.get(error.sqlstate or "", (None, ""))
    if kind is None:
        return error
    return kind(f"{table.name}: {error.diag.message_primary}; {way_on}")


def _parameters(draft: CutDraft) -> dict[str, Any]:
    return {
        "sequence": draft.sequence,
        "snapshot_id": draft.snapshot_id,
        "timestamp_ms": draft.timestamp_ms,
        "version": draft.version,
        "schema_version": draft.schema_version,
        "bounds": Jsonb(bounds_json(draft.bounds)),
        "metadata": draft.metadata,
        "chunks": Jsonb([chunk_json(chunk) for chunk in draft.chunks]),
        "parts": Jsonb(parts_json(_parts(draft))),
        "files": list(draft.files),
    }


def _cut(row: Mapping[str, Any], *, is_named: bool = False) -> Cut:
    """The cut of a row; without all that may be gone where its time has ended."""
    alive = row["is_alive"]
    return Cut(
        table_id=row["table_id"],
        snapshot_id=row["snapshot_id"] if alive else 0,
        is_named=is_named,
        sequence=row["sequence"] if alive else row["following"],
        timestamp_ms=row["timestamp_ms"],
        version=row["version"],
        schema_version=row["schema_version"],
        bounds=bounds_of_json(row["bounds"]),
        metadata=row["metadata"] if alive else "",
        chunks=tuple(chunk_of_json(one) for one in row["chunks"]) if alive else (),
        parts={name: CutPart(**part) for name, part in row["parts"].items()} if alive else {},
        files=tuple(row["files"]) if alive else (),
        looked_at=row["looked_at"],
        published_at=row["published_at"],
        served_at=row["served_at"],
        until=row["until"],
    )


def _none_yet(row: Mapping[str, Any], *, is_named: bool = False) -> Cut:
    """What the first cut of a table, or of a state that a snapshot pins, goes on from."""
    return Cut(
        is_named=is_named,
        table_id=row["of_table"],
        snapshot_id=0,
        sequence=row["following"],
        timestamp_ms=0,
        version=0,
        schema_version=0,
        bounds={},
        metadata="",
        chunks=(),
        looked_at=row["now"],
        published_at=row["now"],
        served_at=row["now"],
        until=row["now"],
    )
