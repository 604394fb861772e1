"""Dropping a table: its buffer, its rows in the ledger and its catalog rows in one transaction; files on demand.

Runs as the login itself (the owner that ran `harness init`), because workers may not delete versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg import sql as compose

from harness_pipelines.drivers.files import SameFile, listed, remove_empty, remove_folders
from harness_pipelines.drivers.object_stores.deletion import SomeLeft, batches, delete
from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.ports.errors import MirrorsLeft
from harness_pipelines.ports.ledger import TableRow, TableUnknown
from harness_pipelines.protocol.cuts import is_cut_folder
from harness_pipelines.protocol.lake.files import OF_VIEWS, check_own, overlap
from harness_pipelines.spec.locations import folder_of, normal
from harness_pipelines.spec.table import QUARANTINE_SUFFIX, STREAM_SUFFIX

SCHEMA = "harness_buffer"


class TableInUse(TryAgain):
    """A worker holds a claim on the table; nothing was dropped."""

    way_on = "stop the worker that the message names, or wait for its lease (30 s)"


class FolderPurged(HarnessError):
    """The files that a table would be made of are being deleted by `table drop --purge`."""

    way_on = "let `harness table drop TABLE --purge --yes` finish, then create the table and load it from Kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Droppable:
    """What a drop needs of a table; a table whose spec cannot be parsed has it too."""

    table_id: int
    name: str  #: with its namespace
    views: tuple[str, ...]  #: names of its Iceberg tables inside the namespace
    quarantine: str  #: and of the one that has bytes of quarantined records, if there are any

    @classmethod
    def of(cls, table: TableRow) -> Droppable:
        views = tuple(table.views.values())
        return cls(table_id=table.table_id, name=table.name, views=views, quarantine=table.quarantine)

    @classmethod
    def of_damaged(cls, row: Mapping[str, Any]) -> Droppable:
        """Use the names that any table may have if its spec does not give its views."""
        bare, spec = row["name"], row["spec"]
        names = {"stream": f"{bare}{STREAM_SUFFIX}", "batch": bare}
        said = spec.get("views") if isinstance(spec, dict) else None
        views = (names[said],) if said in names else tuple(names.values())
        name = f"{row['namespace']}.{bare}"
        return cls(table_id=row["table_id"], name=name, views=views, quarantine=f"{bare}{QUARANTINE_SUFFIX}")

    @property
    def namespace(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSeen:
    """A buffer table that goes."""

    name: str
    state: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What a drop took, or with a dry run would take."""

    table: str
    segments: tuple[SegmentSeen, ...]
    views: tuple[str, ...]
    metadata: tuple[str, ...]  #: locations of the views' last metadata files
    versions: int
    moves: int
    quarantined: int
    readers: int  #: live leases: these reads fail by name
    cuts: int = 0  #: that servers show: what engines read of them fails by name
    fresh: tuple[str, ...] = ()  #: folders of the files of cuts

    @classmethod
    def of_purge(cls, name: str) -> Dropped:
        """Of a table that was dropped before: what is left are files."""
        return cls(table=name, segments=(), views=(), metadata=(), versions=0, moves=0, quarantined=0, readers=0)

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "segments": [{"name": s.name, "state": s.state, "bytes": s.bytes} for s in self.segments],
            "views": list(self.views),
            "versions": self.versions,
            "moves": self.moves,
            "quarantined": self.quarantined,
            "readers": self.readers,
            "cuts": self.cuts,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFiles:
    """The files below the location of a table's view."""

    location: str
    count: int
    bytes: int


def drop_table(
    database: Database,
    table: TableRow | Droppable,
    *,
    catalog: str,
    dry_run: bool = False,
    purge: Sequence[str] = (),
) -> Dropped:
    """Drop *table* with its segments, ledger rows and catalog rows, all or nothing. Files of the lake stay.

    The folders of *purge* are noted with it: `purge_noted` deletes what is in them, however often it was cut off.

    Raises: TableUnknown, TableInUse, naming who holds the claim; FolderShared; LedgerBusy.
    """
    if isinstance(table, TableRow):
        table = Droppable.of(table)
    with database.transaction() as connection:
        connection.execute(sql("drop/as_owner"))
        if connection.execute(sql("drop/lock_table"), {"table_id": table.table_id}).fetchone() is None:
            raise TableUnknown(f"table {table.name} is not there any more; nothing was dropped")
        dropped = _look(connection, table, catalog)
        if dry_run:
            connection.rollback()
        else:
            _check_unclaimed(connection, table)
            _check_unmirrored(connection, table)
            _check_own_folders(connection, table, catalog, purge)
            _drop(connection, table, catalog, dropped)
            connection.execute(sql("drop/ask_purge"), {"name": table.name, "folders": list(purge)})
        return dropped


def _check_unmirrored(connection: Connection, table: Droppable) -> None:
    """Raises: MirrorsLeft."""
    found = connection.execute(sql("drop/mirrors"), {"table_id": table.table_id}).fetchall()
    if names := ", ".join(row["catalog"] for row in found):
        raise MirrorsLeft(
            f"{table.name}: foreign catalogs name its files ({names}); nothing was dropped. `harness mirror drop "
            f"{table.name} --catalog NAME --yes` takes it out of each"
        )


def _check_own_folders(connection: Connection, table: Droppable, catalog: str, purge: Sequence[str]) -> None:
    """Raises: FolderShared, where somebody has changed the location of a view to the place of another table."""
    same = SameFile()
    others = connection.execute(sql("upkeep/neighbours"), _pointers(connection, table, catalog)).fetchall()
    places = [same.folder(folder_of(row["metadata_location"])) for row in others]
    first = connection.execute(sql("upkeep/made_in"), {"table_id": table.table_id}).fetchall()
    made_in = {same.folder(folder_of(path)) for row in first for path in row.values()}
    check_own(table.name, [same.folder(normal(folder)) for folder in purge], places, made_in=made_in)


def _look(connection: Connection, table: Droppable, catalog: str) -> Dropped:
    """Lock in the order of all commits (catalog rows, then the trim lock) and list what is there."""
    key = {"table_id": table.table_id}
    views = connection.execute(sql("drop/lock_pointers"), _pointers(connection, table, catalog)).fetchall()
    connection.execute(sql("reads/take_trim_lock"), key)
    counts = connection.execute(sql("drop/ledger_rows"), key).fetchone()
    assert counts is not None
    segments = connection.execute(sql("drop/segments"), key).fetchall()
    segments += connection.execute(sql("overlays/sizes"), key).fetchall()
    return Dropped(
        table=table.name,
        segments=tuple(SegmentSeen(name=s["segment"], state=s["state"], bytes=s["bytes"]) for s in segments),
        views=tuple(f"{table.namespace}.{v['table_name']}" for v in views),
        metadata=tuple(v["metadata_location"] for v in views),
        **{**counts, "fresh": tuple(counts["fresh"])},
    )


def _check_unclaimed(connection: Connection, table: Droppable) -> None:
    held = connection.execute(sql("drop/live_claims"), {"table_id": table.table_id}).fetchall()
    if held:
        who = ", ".join(f"{c['stage']} by {c['holder']} until {c['lease_until']:%Y-%m-%d %H:%M:%S} UTC" for c in held)
        raise TableInUse(
            f"table {table.name} is being worked on ({who}); nothing was dropped. Stop its worker, or wait until its "
            "lease has ended, then run the same command again"
        )


def _drop(connection: Connection, table: Droppable, catalog: str, seen: Dropped) -> None:
    key = {"table_id": table.table_id}
    for segment in seen.segments:
        connection.execute(compose.SQL("DROP TABLE IF EXISTS {}").format(compose.Identifier(SCHEMA, segment.name)))
    connection.execute(sql("overlays/delete_all"), key)
    pointers = _pointers(connection, table, catalog)
    for what in ("segments", "ingest_positions", "quarantine", "violations", "filtered", "table"):
        connection.execute(sql(f"drop/delete_{what}"), key)
    connection.execute(sql("drop/delete_pointers"), pointers)


def _pointers(connection: Connection, table: Droppable, catalog: str) -> dict[str, Any]:
    """Of the views, and of the bytes of records that were quarantined, if there are any in the lake."""
    place = connection.execute(sql("quarantine/place"), {"table_id": table.table_id}).fetchone()
    aside = [table.quarantine] if place and place["metadata"] else []
    return {"catalog": catalog, "namespace": table.namespace, "views": [*table.views, *aside]}


def location_of(metadata: str) -> str:
    """The location of the view of a metadata file, from its path alone: the harness keeps them in a folder of it."""
    return metadata.rpartition("/metadata/")[0]


def files_below(location: str) -> LakeFiles:
    """Count the files below the location of a view."""
    sizes = [file.bytes for file in listed(location)]
    return LakeFiles(location=location, count=len(sizes), bytes=sum(sizes))


def to_purge(database: Database, name: str) -> list[str]:
    """Folders of dropped tables *name* with files that are still to be deleted.

    A folder that a table is in again, because it was rebuilt from there, stays: however either is spelled.
    """
    places = [row["metadata_location"] for row in database.rows("drop/places")]
    folders = [str(row["folder"]) for row in database.rows("drop/to_purge", {"name": name})]
    return [one for one in folders if not _is_place(one, map(folder_of, places))]


def _is_place(folder: str, places: Iterable[str]) -> bool:
    """Whether one of *places*, which are folders of tables, is *folder*, or lies in it or around it."""
    same = SameFile()
    key = same.folder(normal(folder))
    return any(overlap(key, place) for place in {same.folder(path) for path in places})


def purge_noted(database: Database, name: str) -> list[str]:
    """Delete what views wrote to the folders that `to_purge` names, and forget each that has none of it any more.

    Return the folders of cuts that stay noted: a server that was making a cut when the table was dropped may write to
    them yet. Five minutes after the drop none does, and the same call ends with them.

    A folder is noted before each request for its files. Who makes a table of them after that is refused.

    What lies beside that is left alone: somebody may have changed the location of a view to a folder with other files.
    Raises: StoreRefused, OSError, with the rest still noted.
    """
    return [folder for folder in to_purge(database, name) if not _Purge(database, folder).run()]


@dataclass(slots=True)
class _Purge:
    """One process that deletes the files of one folder, perhaps beside others, and may sleep at any moment."""

    database: Database
    folder: str
    is_left: bool = False  #: when it began last, no server wrote there any more
    begun_at: datetime | None = None  #: as it noted last; a later time is another process's, or of a later drop
    elsewhere: set[str] = field(default_factory=set)  #: folders of tables that were compared with it: each is once

    def run(self) -> bool:
        """Delete what is there; False: a server may write there yet."""
        # A server alone writes to a folder of cuts, so that all in it goes.
        of_cuts = is_cut_folder(self.folder)
        parts = ("",) if of_cuts else OF_VIEWS
        if not (self._begin() and all(purge(f"{self.folder.rstrip('/')}/{part}", self._begin) for part in parts)):
            return True
        if of_cuts and not self.is_left:
            return False
        remove_empty(self.folder)
        self._forget()
        return True

    def _begin(self) -> bool:
        """Note that files of the folder go now; False: all are gone, or a table lies there."""
        with self.database.transaction() as connection:
            connection.execute(sql("drop/as_owner"))
            connection.execute(sql("drop/lock_purges"))
            places = {folder_of(row["metadata_location"]) for row in connection.execute(sql("drop/places"))}
            if _is_place(self.folder, places - self.elsewhere):
                return False
            self.elsewhere |= places
            noted = connection.execute(sql("drop/begin_purge"), {"folder": self.folder}).fetchone()
            self.begun_at = noted["begun_at"] if noted else None
            self.is_left = bool(noted and noted["is_left"])
            return noted is not None

    def _forget(self) -> None:
        """Not where another one has begun since: its request may still be under way, for a file from a backup."""
        with self.database.transaction() as connection:
            connection.execute(sql("drop/as_owner"))
            connection.execute(sql("drop/purged"), {"folder": self.folder, "begun_at": self.begun_at})


def check_not_purged(connection: Connection, table: str, metadata: Sequence[str]) -> None:
    """Check that nobody deletes the files of a table that is made with *metadata*. Raises: FolderPurged."""
    connection.execute(sql("drop/lock_purges"))
    for row in connection.execute(sql("drop/begun")):
        if _is_place(row["folder"], map(folder_of, metadata)):
            raise FolderPurged(
                f"{table}: `harness table drop {row['name']} --purge` deletes the files in {row['folder']}: no table "
                "is made of them; nothing was changed"
            )


def purge(location: str, begin: Callable[[], bool] = lambda: True) -> bool:
    """Delete everything below a location, for good: what a listing shows, until it shows nothing.

    *begin* is asked before each request; where it says no, the rest stays and the answer is False.
    Raises: SomeLeft, when all that the store gives away is gone; StoreRefused, OSError.
    """
    before: set[str] = set()
    while found := {file.path for file in listed(location)}:
        kept: list[SomeLeft] = []
        paths = sorted(found)
        for some in batches(paths, paths):
            if not begin():
                return False
            if stayed := found & before:  # a store may answer yes to a request of which it did a part
                raise OSError(
                    f"{location}: the store did not delete {len(stayed)} files, {min(stayed)} among them, or lists "
                    "them still; the same command deletes the rest"
                )
            try:
                delete(some)
            except SomeLeft as error:
                kept.append(error)
        if kept:
            raise kept[0]
        before = found
    remove_folders(location)
    return True
