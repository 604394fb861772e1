"""Decisions and removals of expire: ended leases, segments below the trim floor, unreachable files.

Every decision is taken under the trim lock in a statement begun after the lock was granted; every removal is a
transaction or its own act, later.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from harness_pipelines import faults
from harness_pipelines.drivers.files import SameFile, SomeLeft
from harness_pipelines.drivers.postgres import Connection, Database, LedgerBusy, sql
from harness_pipelines.errors import HarnessError
from harness_pipelines.ledgers.postgres.boundary import check_held
from harness_pipelines.ledgers.postgres.named_snapshots import version_leased, versions_named
from harness_pipelines.ledgers.postgres.reach import InReach, KeptReach
from harness_pipelines.ledgers.postgres.specs import in_force
from harness_pipelines.ledgers.postgres.views.versions_needed import KnownVersions, pin_of
from harness_pipelines.ports import rows
from harness_pipelines.ports.errors import FilesKept
from harness_pipelines.ports.files import FileStore, FoundFile
from harness_pipelines.ports.lake import ViewMetadata
from harness_pipelines.ports.ledger import TableRow, view_dropped
from harness_pipelines.ports.repair import WarehouseMark
from harness_pipelines.ports.upkeep import StoredFile, Swept, TrimDecision
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.cuts import CONDEMNED_FROM
from harness_pipelines.protocol.lake.files import (
    LiveFilesUnlisted,
    check_listed,
    check_own,
    condemned_before,
    is_of_view,
    owner_path,
    shares,
)
from harness_pipelines.protocol.lake.overlays import needless, overlays_from_json
from harness_pipelines.protocol.moves import dead_branches, move_of
from harness_pipelines.protocol.segments import may_drop, retirable
from harness_pipelines.protocol.versions import Version, ViewName, trim_floor
from harness_pipelines.spec.locations import folder_of, normal

log = structlog.get_logger(__name__)
FILES_PER_RUN_MAX = 10_000
SHARE_MAX = 0.5  #: the size guard: one run never removes more than this share of a table's bytes
UPLOADS_LAST_MAX = timedelta(days=1)
UNLISTED_MAX = 100  #: needed files that a listing may lack where they are there: each costs a request, under the lock
GUARD_FREE_BYTES = 256 * 1024 * 1024


class SizeGuard(HarnessError):
    """Expire would remove more than it may in one run; nothing was removed."""

    way_on = "`harness run TABLE --stage expire --dry-run`; if it is meant, `--remove-large --for 60s`"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One look at the files of a table."""

    at: datetime  #: before anything was asked or listed, by the database's clock
    horizon: datetime  #: of then: who had a move open may have published its files since
    same: SameFile
    stored: Mapping[str, FoundFile]  #: all that there are, by their keys
    loose: tuple[StoredFile, ...]  #: those that nothing reaches
    gone: tuple[str, ...]  #: that nothing reaches any more either, and that are not there
    in_reach: InReach
    fresh: frozenset[str]  #: keys of those that servers wrote for cuts

    def of_cuts(self, file: FoundFile) -> bool:
        return self.same.key(file.path) in self.fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a table is.

    Of one that no server served *fresh* is empty, and nothing is asked or listed for cuts.
    """

    pointers: Mapping[ViewName, str]  #: metadata files that the catalog names
    folder: str | None  #: of the bytes of quarantined records, if any are in the lake
    metadata: str | None  #: of these
    fresh: tuple[str, ...]  #: folders of cuts


class Upkeep:
    """Decisions and removals of the expire stage for one database, catalog and warehouse."""

    def __init__(self, database: Database, catalog: ViewMetadata, ownership: WarehouseMark, files: FileStore) -> None:
        self.database = database
        self.catalog = catalog
        self.ownership = ownership
        self.files = files
        self._told = False  #: that the bucket keeps what is deleted
        self.reach = KeptReach(database, catalog)
        self._known: dict[int, KnownVersions] = {}  #: by table

    def trim(self, table: TableRow, claim: Claim, *, dry_run: bool = False) -> TrimDecision:
        """Raise the trim floor, retire the segments below it, and move ``retained_from`` up, all or nothing.

        Layouts that no version in reach names go with it, and tables of recalled rows retire. What is retained is
        decided by the spec in force, whatever the holder of *claim* read: a longer retention holds from its `apply`.
        """
        known, recent = self._read_versions(table)
        with self.database.transaction() as connection:
            connection.execute(sql("ledger/lock_table"), {"table_id": table.table_id})
            positions = connection.execute(sql("ledger/lock_positions"), {"table_id": table.table_id}).fetchall()
            current = in_force(connection, table)
            with connection.pipeline():  # reads wait from here on: as few round trips as can be
                connection.execute(sql("reads/take_trim_lock"), {"table_id": table.table_id})
                connection.execute(sql("upkeep/delete_ended"), {"table_id": table.table_id})
            starts = {row["partition"]: row["start"] for row in positions}
            recent += known.catch_up(connection, retained_from=table.retained_from)
            decision = self._decide(connection, current, starts, known=known, recent=recent)
            self._known[table.table_id] = known
            if dry_run:
                connection.rollback()
                return decision
            _trimmed(connection, table, decision)
            check_held(connection, claim)
            faults.point("expire.in_transaction")
            return decision

    def _read_versions(self, table: TableRow) -> tuple[KnownVersions, list[Version]]:
        """What the decision needs of the versions, read before the locks; and those that were the head lately.

        One caller has what is known of a table at a time: another one begins at its oldest retained version.
        """
        known = self._known.pop(table.table_id, None) or KnownVersions(table_id=table.table_id)
        first, grace = table.retained_from, timedelta(seconds=table.spec.retention.grace)
        with self.database.session() as connection:
            known.forget_lost(connection)
            known.catch_up(connection, retained_from=first)
            known.answers(connection, versions_named(connection, table.table_id))
            key = {"table_id": table.table_id, "first": first, "grace": grace}
            found = [rows.version(row) for row in connection.execute(sql("upkeep/versions_settled"), key)]
        return known, [v for v in found if v.version <= known.through]

    def _decide(
        self,
        connection: Connection,
        table: TableRow,
        starts: Vector,
        *,
        known: KnownVersions,
        recent: Sequence[Version],
    ) -> TrimDecision:
        """*recent* are the versions from one on that was the head a grace ago."""
        retention = table.spec.retention
        key = {"table_id": table.table_id}
        now: datetime = connection.execute(sql("reads/now")).fetchone()["now"]  # type: ignore[index]
        named = versions_named(connection, table.table_id)
        answers = known.answers(connection, named)
        aged = {"now": now, "retention": timedelta(seconds=retention.versions), "first": table.retained_from}
        with connection.pipeline():
            of_leases = connection.execute(sql("upkeep/leased_versions"), key)
            of_age = connection.execute(sql("upkeep/kept_from"), {**key, **aged})
            of_segments = connection.execute(sql("buffer/segments"), key)
        leased, segments = [version_leased(row) for row in of_leases], [rows.segment(row) for row in of_segments]
        kept_from: int = of_age.fetchone()["version"]  # type: ignore[index]
        waiting = [v for v in known.waiting if v.version >= kept_from]
        waiting += [v for v in named if answers[pin_of(v)] is None]
        grace = timedelta(seconds=retention.grace)
        # A partition that no version knows yet is read from its start, which is all it asks of the buffer.
        floor = {**starts} | trim_floor(recent, leased, waiting=waiting, grace=grace, now=now)
        return TrimDecision(
            floor=floor,
            retire=tuple(retirable(segments, floor)),
            retained_from=kept_from,
            overlays=tuple(_needless(connection, table, kept_from, [*leased, *named])),
        )

    def drop_retired(self, table: TableRow, *, retired_for: timedelta) -> list[str]:
        """Drop segments that were retired by an earlier run. A busy one is left for the next run."""
        dropped = []
        now: datetime = self.database.rows("reads/now")[0]["now"]
        for row in self.database.rows("buffer/segments", {"table_id": table.table_id}):
            segment = rows.segment(row)
            if may_drop(segment.retired_at, grace=retired_for, now=now) and self._drop(
                segment.name, "buffer/forget_segment"
            ):
                dropped.append(segment.name)
        for row in self.database.rows("overlays/all", {"table_id": table.table_id}):
            if may_drop(row["retired_at"], grace=retired_for, now=now) and self._drop(
                row["segment"], "overlays/forget"
            ):
                dropped.append(row["segment"])
        return dropped

    def _drop(self, segment: str, forget: str) -> bool:
        try:
            with self.database.transaction() as connection:
                connection.execute(sql("buffer/short_lock_timeout"))
                connection.execute(sql("buffer/drop_segment"), {"segment": segment})
                connection.execute(sql(forget), {"segment": segment})
                faults.point("expire.in_drop")
        except LedgerBusy:
            log.info("expire.segment_busy", segment=segment)
            return False
        return True

    # -- files ----------------------------------------------------------------------------------------------

    def sweep(self, table: TableRow, claim: Claim, *, dry_run: bool = False, remove_large: bool = False) -> Swept:
        """List the files once: delete those that were condemned a grace ago, then condemn what nothing reaches now.

        Raises: SizeGuard, WarehouseTaken, LiveFilesUnlisted, MetadataMissing; FilesKept at the end.
        """
        ripe = self._chosen(table, claim, dry_run=dry_run)
        seen, deleted, kept = self._look(table), list[str](), None
        if ripe:
            deleted, kept = self._delete(table, claim, ripe, seen, dry_run=dry_run, remove_large=remove_large)
        if not dry_run:  # else they would be condemned again
            seen = replace(seen, loose=tuple(file for file in seen.loose if file.path not in set(deleted)))
        condemned = self.condemn(table, dry_run=dry_run, seen=seen)
        if kept is not None:
            raise kept
        return Swept(deleted=tuple(deleted), condemned=tuple(condemned))

    def condemn(self, table: TableRow, *, dry_run: bool = False, seen: _Seen | None = None) -> list[StoredFile]:
        """Mark the files below the views' folders that nothing reaches now; pardon those reached again.

        Raises: LiveFilesUnlisted, with nothing marked; MetadataMissing.
        """
        seen = seen or self._look(table)
        young = min(seen.horizon, seen.at - CONDEMNED_FROM) if seen.fresh else seen.horizon
        loose = [f for f in seen.loose if f.modified < (young if seen.of_cuts(f) else seen.horizon)]
        if not dry_run:
            with self.database.transaction() as connection:
                key = {"table_id": table.table_id, "paths": [f.path for f in loose]}
                connection.execute(sql("upkeep/pardon"), key)
                if loose:
                    connection.execute(sql("upkeep/condemn"), {**key, "bytes": [f.bytes for f in loose]})
            self.reach.forget(table, seen.in_reach, seen.gone)
        return loose

    def has_ripe(self, table: TableRow) -> bool:
        """Files have been condemned for longer than the grace."""
        return bool(self.database.rows("upkeep/ripe", _ripe(table)))

    def ripe_in_s(self, table: TableRow) -> float | None:
        """Seconds until the first of what waits to be removed has waited for its grace; None: nothing waits."""
        return self.database.rows("upkeep/ripe_in", _ripe(table))[0]["seconds"]  # type: ignore[no-any-return]  # float8

    def delete_ripe(
        self, table: TableRow, claim: Claim, *, dry_run: bool = False, remove_large: bool = False
    ) -> list[str]:
        """Delete files that have been condemned for longer than the grace and that still nothing reaches.

        What the store keeps holds no other file up, and is tried again by the next run.
        Raises: SizeGuard, with nothing removed, unless *remove_large*; WarehouseTaken; FilesKept at the end.
        """
        if not (ripe := self._chosen(table, claim, dry_run=dry_run)):  # the lake is not walked for nothing
            return []
        seen = self._look(table)
        deleted, kept = self._delete(table, claim, ripe, seen, dry_run=dry_run, remove_large=remove_large)
        if kept is not None:
            raise kept
        return deleted

    def _chosen(self, table: TableRow, claim: Claim, *, dry_run: bool) -> list[Mapping[str, Any]]:
        """Files that were condemned a grace ago, without those that a move which is open now may have written.

        Before the look: it sees what such a move publishes after this.
        """
        with self.database.transaction() as connection:
            connection.execute(sql("reads/take_trim_lock"), {"table_id": table.table_id})
            found = connection.execute(sql("upkeep/ripe"), _ripe(table)).fetchall()
            if not dry_run:
                check_held(connection, claim)
        return [*found]

    def _delete(
        self,
        table: TableRow,
        claim: Claim,
        found: Sequence[Mapping[str, Any]],
        seen: _Seen,
        *,
        dry_run: bool,
        remove_large: bool,
    ) -> tuple[list[str], FilesKept | None]:
        """Returns what was to go, and why some of it did not."""
        condemned = seen.same.keys(str(row["path"]) for row in found)
        loose = {seen.same.key(file.path): file for file in seen.loose}
        ripe = [(path, loose[key]) for key, path in condemned.items() if key in loose]
        if not dry_run:
            if not remove_large:
                going = sum(file.bytes for _, file in ripe if not seen.of_cuts(file))
                if going > GUARD_FREE_BYTES:
                    self._guard(table, going, (file for file in seen.stored.values() if not seen.of_cuts(file)))
            ripe = _of_one_run(ripe, seen)
            if ripe:
                self.ownership.confirm()  # another ledger may reach what this one does not
            # Files that are already deleted, or that lie in no folder of this table.
            self._forget(table, [path for key, path in condemned.items() if key not in seen.stored])
            kept: list[SomeLeft] = []
            for batch in self.files.batches(ripe, [file.path for _, file in ripe]):
                self.ownership.check()
                begun = self._begin(table, claim, [path for path, _ in batch])
                part = [(path, file) for path, file in batch if path in begun]
                try:
                    self.files.delete(file.path for _, file in part)
                except SomeLeft as error:  # which of them stayed, the next run's listing says
                    kept.append(error)
                    continue
                faults.point("expire.during_trim")
                self._forget(table, [path for path, _ in part])
            if ripe:
                self._tell_of_versions(ripe[0][1].path)
            if kept:
                stayed = FilesKept(
                    f"{table.name}: the store kept files that nothing needs, by its answers to {len(kept)} requests: "
                    f"{kept[0]}. All others are deleted; expire asks again for these"
                )
                stayed.__cause__ = kept[0]
                return [file.path for _, file in ripe], stayed
        return [file.path for _, file in ripe], None

    def _begin(self, table: TableRow, claim: Claim, paths: Sequence[str]) -> set[str]:
        """Note that the files are removed now; those that are condemned still. Raises: FencedOut.

        The fence comes first: who fences all claims pardons after that, and so sees what was noted. A holder that
        sleeps from here on deletes when it wakes, and nothing adopts these files (`Reconciler`).
        """
        with self.database.transaction() as connection:  # a holder that slept here has been replaced
            check_held(connection, claim)
            key = {"table_id": table.table_id, "paths": list(paths)}
            return {str(row["path"]) for row in connection.execute(sql("upkeep/begin_removal"), key)}

    def _tell_of_versions(self, location: str) -> None:
        """Say once that a delete frees nothing in this bucket. An answer that does not come is no trouble of expire."""
        if not self._told:
            self._told = True
            with suppress(OSError, HarnessError):
                if self.files.keeps_deleted(location):
                    way_on = "let a lifecycle rule end noncurrent versions"
                    log.warning("expire.bucket_keeps_versions", location=location, way_on=way_on)

    def abort_uploads(self, table: TableRow) -> int:
        """Abort uploads below the views' folders that were cut off: parts that no listing shows, and that are billed.

        An upload that began a day before the horizon is abandoned: no write of the harness takes that long, and
        the store's clock, by which their age is known, may be off by hours. Raises: WarehouseTaken, FolderShared.
        """
        before = self._horizon(table, self._now()) - UPLOADS_LAST_MAX
        self.ownership.confirm()  # another ledger may write here
        views, fresh = self._folders(table, SameFile(), self._place(table))
        return sum(self.files.abort_uploads(folder, before=before) for folder in (*views, *fresh))

    @staticmethod
    def _guard(table: TableRow, going: int, stored: Iterable[FoundFile]) -> None:
        """Of the files of the views: those of cuts are copies, which all go some time after servers stop."""
        total = sum(found.bytes for file in stored if (found := _stored(file)))
        if going > SHARE_MAX * total:
            raise SizeGuard(
                f"{table.name}: expire would remove {going:,} of {total:,} bytes at once, more than {SHARE_MAX:.0%}; "
                f"nothing was removed. `harness run {table.name} --stage expire --dry-run` lists them. "
                "If that is meant, as after a rebuild of the batch view, write `--remove-large --for 60s` instead"
            )

    def _look(self, table: TableRow) -> _Seen:
        """List what is reachable, then what exists: a file written in between is young, and none is deleted meanwhile.

        Raises: LiveFilesUnlisted, FolderShared, MetadataMissing.
        """
        at = self._now()
        horizon = self._horizon(table, at)
        reached, needless, in_reach, place = self._reached(table)
        before = self._before_quarantine(table, place)
        same = SameFile()
        folders, of_cuts = self._folders(table, same, place)
        keys = {folder: same.folder(folder) for folder in folders}
        stored, beside = self._listed(keys, same)
        cuts, _ = self._listed(dict.fromkeys(one for one in of_cuts if one not in keys), same)
        stored, fresh = {**stored, **cuts}, set(cuts)
        live = same.keys(reached)
        kept = {*live, *same.keys(before)}
        if of_cuts:
            # Asked after the listing: a cut that is published meanwhile names files that are there. A reader's login
            # says what a cut names, so what is not there holds nothing up, and is not kept in mind; fsck says so.
            named = self.database.streamed("cuts/reached_files", {"table_id": table.table_id})
            kept |= {key for row in named if (key := same.key(str(row["path"]))) in fresh}
        ours: Container[str] | None = None
        if in_reach.mirrored is not None:
            published = self.database.rows("mirrors/published_files", {"table_id": table.table_id})
            ours = same.keys(row["path"] for row in published)
            # What a server names it may remove itself, so that it is gone is no damage.
            kept |= same.keys(in_reach.mirrored).keys()
        loose = tuple(
            found
            for key, file in stored.items()
            if key not in kept
            and (own := owner_path(key)) not in kept
            and key not in beside
            and (key in fresh or _is_own(own, ours))
            and (found := _stored(file)) is not None
        )
        try:
            check_listed(table.name, live, stored, folders=[*keys.values()], loose=[f.path for f in loose])
        except LiveFilesUnlisted as error:
            self._find_unlisted(table, error)
        gone = tuple(path for path in needless if same.key(path) not in stored)
        return _Seen(
            at=at,
            horizon=horizon,
            same=same,
            stored=stored,
            loose=loose,
            gone=gone,
            in_reach=in_reach,
            fresh=frozenset(fresh),
        )

    def _listed(self, folders: Mapping[str, str | None], same: SameFile) -> tuple[dict[str, FoundFile], set[str]]:
        """The files below *folders*, by their keys; the keys of those that are beside the view of their folder.

        Folders are by the spelling of their view, with their keys; None: all that lies below is of one.
        """
        stored, beside = dict[str, FoundFile](), set[str]()
        for folder, key_of in folders.items():
            views = (normal(folder), key_of) if key_of is not None else ()
            of_view: dict[str, bool] = {}  # by the folder that a file is directly in
            for found in self.files.listed(folder, sizes=False):
                stored[key := same.key(found.path)] = found
                if (directly := found.path.rpartition("/")[0]) not in of_view:
                    of_view[directly] = not views or any(is_of_view(found.path, view) for view in views)
                if not of_view[directly]:
                    beside.add(key)
        return stored, beside

    def _find_unlisted(self, table: TableRow, unlisted: LiveFilesUnlisted) -> None:
        """Go on where all are there: some stores list a new file a minute late, and a listing only lacks, so that what
        it shows is deleted as safely. Raises: *unlisted*, OSError, StoreRefused.
        """
        if not 0 < len(unlisted.missing) <= UNLISTED_MAX:
            raise unlisted
        if any(self.files.size_of(path) is None for path in unlisted.missing):
            raise unlisted
        log.warning("expire.listing_behind", table=table.name, files=len(unlisted.missing), first=unlisted.missing[0])

    def _reached(self, table: TableRow) -> tuple[set[str], list[str], InReach, _Place]:
        """Every file, of all views, that a readable version, a lease, an open move or the catalog reaches.

        And those that versions are known to have reached, and none in reach does; these versions; where the table is.
        """
        in_reach, place = self.reach.in_reach(table), self._place(table)
        if place.fresh:  # what answers for the rows above its version a cut has in its own files
            cuts = self.database.rows("cuts/reached_versions", {"table_id": table.table_id})
            in_reach = in_reach.and_these(row["version"] for row in cuts)
        self.reach.catch_up(table, in_reach)
        reached, needless = set[str](), list[str]()
        views = _identifiers(table)
        lists = {name: self.catalog.lists(views[name], place.pointers[name]) for name in views}
        known = self.reach.firsts_of(table, [path for found in lists.values() for path in found])
        for name, identifier in views.items():
            current = place.pointers[name]
            in_view = in_reach.and_shown(known[path] for path in lists[name] if path in known)
            reached |= {current, *self.catalog.reached(identifier, current=current, known=known)}
            for paths, is_reached in self.reach.paths(table, name, in_view):
                if is_reached:
                    reached.update(paths)
                else:
                    needless += paths
        if (quarantine := place.metadata) is not None:
            identifier = (table.spec.namespace, table.quarantine)
            reached |= {quarantine, *self.catalog.reached(identifier, current=quarantine)}
        return reached, needless, in_reach, place

    def _before_quarantine(self, table: TableRow, place: _Place) -> set[str]:
        """Metadata files of the quarantine that were published before: a backup of Postgres names one of them."""
        if place.metadata is None:
            return set()
        return self.catalog.earlier((table.spec.namespace, table.quarantine), place.metadata)

    def _place(self, table: TableRow) -> _Place:
        """Where the files of a table are. Raises: TableUnknown."""
        found = self.database.rows("quarantine/place", {"table_id": table.table_id})
        aside: Mapping[str, Any] = found[0] if found else {"folder": None, "metadata": None, "fresh": ()}
        pointers = {view: self._pointer(table, view) for view in table.views}
        return _Place(pointers=pointers, **{**aside, "fresh": tuple(aside["fresh"])})

    def _pointer(self, table: TableRow, view: ViewName) -> str:
        """The metadata file that the catalog names now. Raises: TableUnknown."""
        namespace, name = _identifiers(table)[view]
        key = {"catalog": self.catalog.name, "namespace": namespace, "view": name}
        if not (found := self.database.rows("reads/pointer", key)):
            raise view_dropped(table, view)
        return str(found[0]["metadata_location"])

    def _horizon(self, table: TableRow, now: datetime) -> datetime:
        """Nothing younger may be condemned: an open move may still be writing it."""
        oldest = self.database.rows("upkeep/oldest_open_move", {"table_id": table.table_id})[0]["planned_at"]
        return condemned_before(oldest_open=oldest, grace=timedelta(seconds=table.spec.retention.grace), now=now)

    def _now(self) -> datetime:
        now: datetime = self.database.rows("reads/now")[0]["now"]
        return now

    def _folders(self, table: TableRow, same: SameFile, place: _Place) -> tuple[list[str], list[str]]:
        """The folders of the views, with those that they were in before, and those of cuts. Raises: FolderShared."""
        views = _identifiers(table).items()
        folders = {self.catalog.folder(identifier, place.pointers[name]) for name, identifier in views}
        folders |= {str(row["folder"]) for row in self.database.rows("upkeep/folders", {"table_id": table.table_id})}
        folders |= {folder for folder in [place.folder] if folder}
        found = {normal(folder): folder for folder in sorted(folders)}
        fresh = {normal(folder): folder for folder in place.fresh}
        ours = [*table.views.values(), table.quarantine]
        key = {"catalog": self.catalog.name, "namespace": table.spec.namespace, "views": ours}
        others = [folder_of(row["metadata_location"]) for row in self.database.rows("upkeep/neighbours", key)]
        made_in = {
            same.folder(folder_of(path))
            for row in self.database.rows("upkeep/made_in", {"table_id": table.table_id})
            for path in (row["stream_metadata"], row["batch_metadata"])
        }
        check_own(table.name, map(same.folder, [*found, *fresh]), map(same.folder, others), made_in=made_in)
        return list(found.values()), list(fresh.values())

    def _forget(self, table: TableRow, paths: Sequence[str]) -> None:
        if paths:
            self.database.run("upkeep/forget_files", {"table_id": table.table_id, "paths": list(paths)})

    def dead_branches(self, table: TableRow, *, view: ViewName = "stream") -> list[str]:
        """Branches in the view's metadata whose move is closed, or that a later attempt has superseded."""
        refs = self.catalog.branches(_identifiers(table)[view], self._pointer(table, view))
        named = {name: move for name in refs if (move := move_of(name)) is not None}
        found = self.database.rows("upkeep/moves_by_id", {"move_ids": sorted(set(named.values()))}) if named else []
        return dead_branches(named, [(row["move_id"], row["attempt"], row["state"]) for row in found])


def _stored(found: FoundFile) -> StoredFile | None:
    """What the storage says of a listed file; None: it is gone."""
    try:
        return StoredFile(path=found.path, bytes=found.bytes, modified=found.modified or datetime.now(UTC))
    except FileNotFoundError:
        return None


def _of_one_run(ripe: Sequence[tuple[str, StoredFile]], seen: _Seen) -> list[tuple[str, StoredFile]]:
    """What one run deletes: of the files of the views and of those of cuts, oldest first, a share each."""
    own, fresh = ([one for one in ripe if seen.of_cuts(one[1]) is of_cuts] for of_cuts in (False, True))
    most = shares(len(own), len(fresh), most=FILES_PER_RUN_MAX)
    return [*own[: most[0]], *fresh[: most[1]]]


def _trimmed(connection: Connection, table: TableRow, decision: TrimDecision) -> None:
    """Write what was decided."""
    key = {"table_id": table.table_id, "retained_from": decision.retained_from}
    floors = {"partitions": list(decision.floor), "floors": list(decision.floor.values())}
    with connection.pipeline():
        connection.execute(sql("upkeep/set_trim_floor"), {**key, **floors})
        for segment in decision.retire:
            connection.execute(sql("buffer/lock_segment"), {"segment": segment.name})
            connection.execute(sql("buffer/retire_segment"), {"segment": segment.name})
        connection.execute(sql("overlays/retire"), {"segments": list(decision.overlays)})
        connection.execute(sql("upkeep/set_retained_from"), key)
        connection.execute(sql("upkeep/forget_layouts"), key)
        connection.execute(sql("upkeep/abandon_orphaned"), key)


def _needless(connection: Connection, table: TableRow, kept_from: int, pinned: Iterable[Version]) -> list[str]:
    """The tables of recalled rows that nothing needs, in the order in which it must be asked: a move is open, then it
    makes its table, then it is closed."""
    key: dict[str, Any] = {"table_id": table.table_id}
    made = {row["segment"]: row["move_id"] for row in connection.execute(sql("overlays/made"), key)}
    if not made:
        return []
    moves = connection.execute(sql("overlays/open_moves"), key).fetchall()
    bases = [row["base_version"] for row in moves if row["base_version"] is not None]
    key |= {"first": kept_from, "versions": [*bases, *(v.version for v in pinned)]}
    in_reach = [overlays_from_json(row["overlays"]) for row in connection.execute(sql("upkeep/overlays_in_reach"), key)]
    return needless(made, in_reach=in_reach, open_moves={row["move_id"] for row in moves})


def _ripe(table: TableRow) -> dict[str, Any]:
    """The parameters of `upkeep/ripe`."""
    grace = timedelta(seconds=table.spec.retention.grace)
    return {"table_id": table.table_id, "grace": grace, "cuts_take": CONDEMNED_FROM}


def _identifiers(table: TableRow) -> dict[ViewName, tuple[str, str]]:
    """The views of *table* as the catalog knows them."""
    return {name: (table.spec.namespace, view) for name, view in table.views.items()}


def _is_own(path: str, ours: Container[str] | None) -> bool:
    """Return whether the harness wrote the file: a server that mirrors the table may keep its metadata beside ours."""
    return ours is None or not path.endswith(".metadata.json") or path in ours
