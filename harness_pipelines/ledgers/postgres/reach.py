"""What the versions of a table reach in the lake, as the ledger keeps it: each file of metadata is read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg.types.json import Jsonb

from harness_pipelines import faults
from harness_pipelines.drivers.file_notes import KNOWN
from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ledgers.postgres import parameters
from harness_pipelines.ledgers.postgres.named_snapshots import version_leased, versions_named
from harness_pipelines.ledgers.postgres.views.versions_needed import KnownVersions, older_needed
from harness_pipelines.ports import rows
from harness_pipelines.ports.lake import ViewMetadata
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.lake.reach import Main, Newest, Span
from harness_pipelines.protocol.versions import Version, ViewName

VERSIONS_PER_WRITE = 200
Newests = dict[ViewName, Newest]


@dataclass(frozen=True, slots=True, kw_only=True)
class InReach:
    """The versions whose files must stay."""

    retained_from: int  #: all from this one on
    pinned: frozenset[int]  #: and these
    mirrored: frozenset[str] | None = None  #: files that foreign catalogs name; None: there are no such catalogs
    shown: frozenset[int] = frozenset()  #: and these, but for their metadata files: the catalog's has their snapshots

    def and_these(self, versions: Iterable[int]) -> InReach:
        return replace(self, pinned=self.pinned | frozenset(versions))

    def and_shown(self, versions: Iterable[int]) -> InReach:
        return replace(self, shown=self.shown | frozenset(versions))


class KeptReach:
    """The reach of the tables of one ledger.

    The reach of a version is a fact: every process that reads it writes the same rows, so none needs a claim.
    """

    def __init__(self, database: Database, catalog: ViewMetadata) -> None:
        self._database, self._catalog = database, catalog
        self._known: dict[int, KnownVersions] = {}  #: by table

    def in_reach(self, table: TableRow) -> InReach:
        """The versions that can be read, or that a lease, an open move, a foreign catalog or a snapshot needs.

        The oldest retained version is read first: what is pinned later was retained then. Leases are read before the
        snapshots, whose pins may go while they are read.
        """
        key = {"table_id": table.table_id}
        fresh = self._database.rows("ledger/tables", parameters.of_names([table.name]))
        retained_from: int = fresh[0]["retained_from"] if fresh else table.retained_from
        read = [version_leased(row) for row in self._database.rows("upkeep/leased_versions", key)]
        numbers = {r["base_version"] for r in self._database.rows("upkeep/open_bases", key)}
        mirrors = self._database.rows("mirrors/kept", key)
        numbers |= {version for mirror in mirrors for version in mirror["holds"]}
        with self._database.session() as connection:
            named = [*versions_named(connection, table.table_id), *read]
            known = self._known.setdefault(table.table_id, KnownVersions(table_id=table.table_id))
            numbers |= {v.version for v in read}
            pinned = older_needed(connection, known, retained_from=retained_from, numbers=numbers, named=named)
        named_there = None if not mirrors else frozenset(path for mirror in mirrors for path in mirror["files"])
        return InReach(retained_from=retained_from, pinned=frozenset(pinned), mirrored=named_there)

    def catch_up(self, table: TableRow, wanted: InReach) -> None:
        """Read the versions in reach that were not read yet; what was read is kept where a later one cannot be read.

        Raises: MetadataMissing, ManifestDamaged, OSError.
        """
        while not self._read_on(table, wanted):  # somebody else did at the same time
            pass

    def paths(self, table: TableRow, view: ViewName, wanted: InReach) -> Iterator[tuple[Sequence[str], bool]]:
        """Every file of a view that versions are known to reach, some at a time, and whether one in reach does."""
        for row in self._database.streamed("reach/paths", {**_parameters(table, wanted), "view": view}):
            yield row["paths"], row["is_reached"]

    def firsts_of(self, table: TableRow, lists: Sequence[str]) -> dict[str, int]:
        """For each of these manifest lists that is known a version that has it."""
        found = self._database.rows("reach/first_of_lists", {"table_id": table.table_id, "paths": lists})
        return {row["path"]: row["version"] for row in found}

    def forget(self, table: TableRow, wanted: InReach, paths: Sequence[str]) -> None:
        """Forget files that are gone, where no version in reach has them."""
        if paths:
            self._database.run("reach/forget", {**_parameters(table, wanted), "paths": list(paths)})

    # -- reading --------------------------------------------------------------------------------------------

    def _read_on(self, table: TableRow, wanted: InReach) -> bool:
        """Returns whether all was written."""
        newest = self._newest(table)
        through = _through(newest)
        above = max(through, wanted.retained_from - 1)
        key = {"table_id": table.table_id, "above": above, "versions": sorted(wanted.pinned)}
        found = self._database.rows("reach/unread", key)
        older = [row for row in found if row["version"] <= through]
        later = [rows.version(row) for row in found if row["version"] > through]
        for row in older:
            self._add(
                table, rows.version(row), is_read={"stream": row["is_stream_read"], "batch": row["is_batch_read"]}
            )
        for first in range(0, len(later), VERSIONS_PER_WRITE):
            before, some = _through(newest), later[first : first + VERSIONS_PER_WRITE]
            KNOWN.learn(pinned.metadata for version in some for pinned in version.views.values())
            try:
                for version in some:
                    self._follow(newest, version)
            finally:
                written = self._write(table, newest, before=before)
            if not written:
                return False
        return True

    def _newest(self, table: TableRow) -> Newests:
        parts: dict[ViewName, dict[str, Any]] = {}
        for row in self._database.rows("reach/newest", {"table_id": table.table_id}):
            part = parts.setdefault(row["view"], {"alone": {}, "manifests": {}})
            if row["kind"] == "manifest":
                part["manifests"][row["path"]] = row["files"]
            else:
                part["alone"][row["path"]] = row["kind"]
            if row["kind"] == "metadata":
                part["through"] = row["first"]
        return {view: Newest(**part) for view, part in parts.items()}

    def _follow(self, newest: Newests, version: Version) -> None:
        """All views or none: a version that was read in one of them counts as read."""
        mains: dict[ViewName, Main] = {}
        for view, pinned in version.views.items():
            before = newest.get(view, Newest())
            if pinned.metadata not in before.alone:
                mains[view] = self._catalog.main(pinned.metadata, known=before.manifests)
        for view, main in mains.items():
            newest.setdefault(view, Newest()).follow(version.version, main)

    def _add(self, table: TableRow, version: Version, *, is_read: Mapping[str, bool]) -> None:
        """A version that came in reach when later ones were read: a lease has it of a pin that went."""
        for view, pinned in version.views.items():
            if not is_read[view]:
                paths, kinds = zip(*self._catalog.main(pinned.metadata).paths(), strict=True)
                key = {"table_id": table.table_id, "view": view, "version": version.version}
                with self._database.transaction() as connection:
                    connection.execute(sql("reach/lock"), {"table_id": table.table_id})
                    connection.execute(sql("reach/add"), {**key, "paths": list(paths), "kinds": list(kinds)})

    # -- writing --------------------------------------------------------------------------------------------

    def _write(self, table: TableRow, newest: Newests, *, before: int) -> bool:
        """Write what changed, unless somebody else wrote since it was at version *before*; returns whether it was."""
        key = {"table_id": table.table_id}
        with self._database.transaction() as connection:
            connection.execute(sql("reach/lock"), key)
            through: int = connection.execute(sql("reach/through"), key).fetchone()["first"]  # type: ignore[index]
            if through != before:
                return False
            for view, one in newest.items():
                _write_view(connection, {**key, "view": view}, one)
            faults.point("expire.in_reach")
        for one in newest.values():
            one.written()
        faults.point("expire.after_reach")
        return True


def _write_view(connection: Connection, key: Mapping[str, Any], one: Newest) -> None:
    """Spans end before others begin: a file may do both."""
    if one.ended:
        connection.execute(sql("reach/end"), {**key, "paths": list(one.ended), "lasts": list(one.ended.values())})
    if spans := one.spans():
        columns = {
            "paths": [span.path for span in spans],
            "kinds": [span.kind for span in spans],
            "firsts": [span.first for span in spans],
            "lasts": [span.last for span in spans],
            "files": [Jsonb(list(one.manifests[s.path])) if _is_open_manifest(s) else None for s in spans],
        }
        connection.execute(sql("reach/begin"), {**key, **columns})


def _is_open_manifest(span: Span) -> bool:
    return span.kind == "manifest" and span.last is None


def _through(newest: Newests) -> int:
    return max((one.through for one in newest.values()), default=-1)


def _parameters(table: TableRow, wanted: InReach) -> dict[str, Any]:
    return {
        "table_id": table.table_id,
        "retained_from": wanted.retained_from,
        "versions": sorted(wanted.pinned),
        "shown": sorted(wanted.shown),
    }
