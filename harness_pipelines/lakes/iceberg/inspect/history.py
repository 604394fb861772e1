"""Read a table's history from the lake alone: metadata files and their summaries."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from harness_pipelines.drivers.files import directly_in, listed, size_of
from harness_pipelines.lakes.iceberg.catalog import COORDINATE_FIELDS, StagingCatalog
from harness_pipelines.lakes.iceberg.checked_io import fresh
from harness_pipelines.lakes.iceberg.read.live_files import OPEN, live_files
from harness_pipelines.lakes.iceberg.read.manifests import fresh_columns
from harness_pipelines.lakes.iceberg.write.checks import no_bounds
from harness_pipelines.lakes.iceberg.write.foreign import ACCEPTED
from harness_pipelines.lakes.iceberg.write.publish import reached_by, recalled_from
from harness_pipelines.lakes.iceberg.write.revert import STREAM_HI
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.ports.errors import ForeignDeletes, LakeAway, LakeHistoryMissing, MetadataMissing
from harness_pipelines.ports.lake import LakeFile, reachable
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.repair import ByFile, LakeState
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.coordinates import OFFSET
from harness_pipelines.protocol.lake.history import LiveRows, NamedMove, PastMove, parse_ranges
from harness_pipelines.protocol.lake.properties import ATTEMPT, EVOLVED, MOVE, NONCE, RANGES, SCHEMA_VERSION
from harness_pipelines.protocol.moves import move_of
from harness_pipelines.protocol.topics import FOREIGN_PARTITION
from harness_pipelines.protocol.versions import View, ViewName
from harness_pipelines.spec.locations import folder_of, normal

TIPS_MAX = 12  #: newest metadata files to read in order to see whether the ledger is older
SHOWN_MAX = 3
_NOT_USERS = {LAYER.name, *(str(field["name"]) for field in COORDINATE_FIELDS)}
_NUMBERED = re.compile(r"^(\d+)-.*\.metadata\.json$")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFile:
    """A metadata file of a view; numbers rise with every change, and two that were built at once share one."""

    number: int
    path: str


FILES_BACK = 8  #: metadata files below the catalog's that are looked at too: what went on since may lie above them


def metadata_files(view_location: str) -> list[MetadataFile]:
    """The metadata files below a view's location, newest first."""
    folder = f"{normal(view_location)}/metadata"
    return _numbered(folder, directly_in(folder).files, at_least=0)


def _numbered(folder: str, names: Iterable[str], *, at_least: int) -> list[MetadataFile]:
    """The metadata files among the *names* in a folder from number *at_least* on, newest first."""
    matches = [matched for name in names if (matched := _NUMBERED.match(name)) and int(matched[1]) >= at_least]
    found = [MetadataFile(number=int(matched[1]), path=f"{folder}/{matched.string}") for matched in matches]
    return sorted(found, key=lambda f: (f.number, f.path), reverse=True)


def number_of(path: str) -> int:
    """The number of a metadata file, 0 for one that was not named by PyIceberg or Spark."""
    matched = _NUMBERED.match(path.rsplit("/", 1)[-1])
    return int(matched[1]) if matched else 0


class IcebergHistory:
    """`LakeHistory`: what the location of one view shows."""

    def __init__(self, catalog: StagingCatalog, identifier: tuple[str, str], location: str) -> None:
        self._catalog, self._identifier, self.location = catalog, identifier, location

    def named_moves(
        self, *, at_least: int, read: Mapping[str, Collection[NamedMove]]
    ) -> dict[str, Collection[NamedMove]]:
        """The moves that the newest metadata files name, by file: of those numbered *at_least* and above.

        What files name that were *read* before is taken from there: a file never changes.
        Raises: LakeAway for an empty folder: what the catalog names is in it.
        """
        folder = f"{normal(self.location)}/metadata"
        if not (names := directly_in(folder).files):
            raise LakeAway(
                f"{folder} holds no file, and the catalog names one there: the warehouse is not mounted, or was "
                "emptied (`harness fsck` names what is gone); nothing was written, it is tried again"
            )
        found: dict[str, Collection[NamedMove]] = {}
        for file in _numbered(folder, names, at_least=at_least)[:TIPS_MAX]:
            if file.path in read:
                found[file.path] = read[file.path]
                continue
            with suppress(MetadataMissing):  # half written when its writer died: it was never published
                found[file.path] = set(_named(self._catalog.at(self._identifier, file.path)))
        return found

    def newest(self) -> LakeState:
        """The state of the newest complete metadata file: readable, with all its files, without foreign rows.

        Raises: LakeHistoryMissing, naming why each of the newest cannot be taken.
        """
        with reachable(self.location, "reading the lake's metadata"):
            stored = self._stored()
        why = []
        for file in metadata_files(self.location):
            try:
                state = self._read(file.path, stored)
            except (MetadataMissing, OSError) as error:
                why.append(f"{file.path}: {error}")
                continue
            if state.is_sound:
                return state
            trouble = f"{len(state.gone)} data files are gone" if state.gone else "another writer's rows are in it"
            why.append(f"{file.path}: {trouble}")
        shown = "; ".join(why[:SHOWN_MAX]) or "there is no metadata file"
        raise LakeHistoryMissing(f"{self.location}: nothing there can be taken over ({shown}); nothing was changed")

    def newest_readable(self) -> LakeState | None:
        """The state of the newest metadata file that can be read; None: there is none. Raises: LakeAway."""
        with reachable(self.location, "reading the lake's metadata"):
            for file in metadata_files(self.location):
                with suppress(MetadataMissing):  # half written when its writer died
                    return self.at(file.path)
        return None

    def at(self, metadata: str) -> LakeState:
        """What a metadata file says. Raises: MetadataMissing."""
        return self._read(metadata, self._stored())

    def _read(self, metadata: str, stored: frozenset[str]) -> LakeState:
        """What a metadata file says; *stored* are the files that there are."""
        view = self._catalog.at(self._identifier, metadata)
        head = view.metadata.current_snapshot()
        if head is None:
            raise MetadataMissing(f"{metadata} has no snapshot")
        line = list(_ancestry(view, head))
        live, deletes = _live(view, head)
        extents = _extents(live)
        foreign = extents.pop(FOREIGN_PARTITION, None)
        return LakeState(
            head=View(metadata=metadata, snapshot=head.snapshot_id),
            moves=tuple(_past_moves(reversed(line))),
            extents=extents,
            accepted=tuple(_past_move(s, ranges) for s in reversed(line) if (ranges := _accepted_in(s))),
            foreign_hi=foreign.high if foreign else 0,
            strangers=_strangers(line),
            gone=tuple(p for p in (*(path for _, path, *_ in live), *deletes) if _is_gone(p, stored)),
            reached=reached_by(view),
            recalled=recalled_from(view),
            properties=view.metadata.properties,
            changed_ms=view.metadata.last_updated_ms,
            schema_changes=view.schema().schema_id,  # each change sets the next id
            fields=[field for field in _json(view.schema()) if field["name"] not in _NOT_USERS],
        )

    def _stored(self) -> frozenset[str]:
        return frozenset(file.path for file in listed(self.location))


class IcebergHistories:
    """`LakeHistories` of one warehouse."""

    def __init__(self, catalog: StagingCatalog, *, warehouse: str) -> None:
        self._catalog, self._warehouse = catalog, warehouse

    def of(self, table: TableRow, pointer: str, *, view: ViewName) -> IcebergHistory:
        """The past of a view whose catalog row names *pointer*, which itself may be gone."""
        return IcebergHistory(self._catalog, (table.spec.namespace, table.views[view]), folder_of(pointer))

    def below(self, location: str, *, namespace: str, view: str) -> IcebergHistory:
        """The past of what a folder has."""
        return IcebergHistory(self._catalog, (namespace, view), location)

    def folders(self, *, namespace: str, view: str) -> list[str]:
        """Folders that may hold *view*: every table that was made by that name left one. Raises: LakeAway."""
        with reachable(f"{namespace}.{view}", "looking for its folders"):
            found = directly_in(normal(f"{self._warehouse}/{namespace}")).folders
        pattern = re.compile(rf"{re.escape(view)}-[0-9a-f]{{8}}")
        return [normal(f"{self._warehouse}/{namespace}/{name}") for name in sorted(found) if pattern.fullmatch(name)]

    def present(self, paths: Sequence[str]) -> set[str]:
        """Those of *paths* that are there; each folder is listed once."""
        folders = {path.rsplit("/", 1)[0] for path in paths}
        stored = {f"{folder}/{name}" for folder in folders for name in directly_in(folder).files}
        return stored & set(paths)

    def named_by_files(
        self, table: TableRow, pointer: str, view: ViewName, *, read: ByFile
    ) -> dict[str, Collection[NamedMove]]:
        """The moves that the newest metadata files of a view name. Raises: LakeAway."""
        at_least = max(number_of(pointer) - FILES_BACK, 0)
        return self.of(table, pointer, view=view).named_moves(at_least=at_least, read=read)


def _is_gone(path: str, listed_files: frozenset[str]) -> bool:
    """Whether a file is not there; one that the listing does not have by its name may have another name there."""
    return normal(path) not in listed_files and size_of(path) is None


def is_foreign(snapshot: Snapshot) -> bool:
    """True for a snapshot that changed the files of its view and is of no move."""
    summary = snapshot.summary
    if summary is None:
        return True
    changed = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")
    return summary[MOVE] is None and any(int(summary[name] or 0) for name in changed)


def _strangers(line: Iterable[Snapshot]) -> tuple[int, ...]:
    """The snapshots of other writers that were not accepted in *line*, which is newest first.

    One that accepts rows puts files of its move in place of all that was added since the published version, and nothing
    is published on rows that were not accepted. So no file of another writer is left below it.
    """
    later = takewhile(lambda snapshot: not _accepted_in(snapshot), line)
    return tuple(snapshot.snapshot_id for snapshot in later if is_foreign(snapshot))


def _accepted_in(snapshot: Snapshot) -> tuple[OffsetRange, ...]:
    """The range of the pseudo-partition in which a snapshot accepted rows of other writers; none of another one."""
    accepted = snapshot.summary[ACCEPTED] if snapshot.summary else None
    return parse_ranges(f"{FOREIGN_PARTITION}:{accepted}") if accepted else ()


def _named(view: Table) -> Iterator[NamedMove]:
    """The moves that a metadata file names: of its snapshots, of branches that hold none, of its columns."""
    for snapshot in view.metadata.snapshots:
        if snapshot.summary and (move := snapshot.summary[MOVE]):
            yield NamedMove(move_id=int(move), nonce=snapshot.summary[NONCE] or "")
    for ref in view.metadata.refs:
        if (branch := move_of(ref)) is not None:
            yield NamedMove(move_id=branch, nonce="")
    if evolved := view.metadata.properties.get(EVOLVED):
        move, _, nonce = evolved.partition("/")
        yield NamedMove(move_id=int(move), nonce=nonce)


def _ancestry(view: Table, head: Snapshot) -> Iterator[Snapshot]:
    current: Snapshot | None = head
    while current is not None:
        yield current
        parent = current.parent_snapshot_id
        current = None if parent is None else view.metadata.snapshot_by_id(parent)


def _past_moves(line: Iterable[Snapshot]) -> list[PastMove]:
    """The moves that are in effect at the end of *line*, which is oldest first; a revert takes those above it back."""
    found: list[PastMove] = []
    for snapshot in line:
        summary = snapshot.summary
        if summary is None or not summary[MOVE]:
            continue
        if (restored := summary[STREAM_HI]) is not None:
            high = {int(p): int(o) for p, _, o in (part.partition(":") for part in restored.split(",") if part)}
            found = [m for m in found if all(r.high <= high.get(r.partition, -1) for r in m.ranges)]
        elif ranges := parse_ranges(summary[RANGES] or ""):  # accepted rows of another writer have none
            found.append(_past_move(snapshot, ranges))
    return found


def _past_move(snapshot: Snapshot, ranges: tuple[OffsetRange, ...]) -> PastMove:
    summary = snapshot.summary
    assert summary is not None
    return PastMove(
        move_id=int(summary[MOVE] or 0),
        attempt=int(summary[ATTEMPT] or 1),
        schema_version=int(summary[SCHEMA_VERSION] or 1),
        ranges=ranges,
        rows=int(summary["added-records"] or 0),
        bytes=int(summary["added-files-size"] or 0),
        snapshot=snapshot.snapshot_id,
        nonce=summary[NONCE] or "",
    )


LiveFile = tuple[int | None, str, int, int, int]  #: partition (None: several), path, rows, first and last offset


def _live(view: Table, head: Snapshot) -> tuple[list[LiveFile], list[str]]:
    """The data files, and the paths of the files that hide rows of theirs. Raises: MetadataMissing."""
    try:
        offset_id = view.schema().find_field(OFFSET).field_id
        files = live_files(head, fresh(view.io), offset_id=offset_id, read=fresh_columns)
    except ForeignDeletes as foreign:
        raise MetadataMissing(str(foreign)) from foreign
    if strange := next((file for file in files if file.high == OPEN), None):
        raise no_bounds(strange.path)
    found = [run for file in files for run in _runs_of(file)]
    return found, [file.path for file in files.deletes.values()]


def _runs_of(file: LakeFile) -> Iterator[LiveFile]:
    """What it has of each partition; of one that mixes several and does not say so, all of it.

    Rows that are hidden in one that mixes several are not known by partition: they are taken from the first ones.
    """
    if file.extents is None:
        yield file.partition, file.path, file.rows, file.low, file.high - 1
        return
    hidden = file.stored - file.rows
    for one in file.extents:
        less = min(hidden, one.rows)
        hidden -= less
        yield one.partition, file.path, one.rows - less, one.low, one.high - 1


def _json(schema: Schema) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = schema.model_dump(mode="json", by_alias=True)["fields"]
    return found


def _extents(live: Sequence[LiveFile]) -> dict[int, LiveRows]:
    """By partition; accepted rows of other writers are in the pseudo-partition."""
    found: dict[int, LiveRows] = {}
    for partition, _, rows, low, last in live:
        if partition is None or partition < FOREIGN_PARTITION:
            continue
        seen = found.get(partition, LiveRows(rows=0, low=low, high=last + 1))
        found[partition] = LiveRows(rows=seen.rows + rows, low=min(seen.low, low), high=max(seen.high, last + 1))
    return found
