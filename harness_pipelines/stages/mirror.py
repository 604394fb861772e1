"""Mirror: foreign catalogs follow the published versions, so that every engine finds the views by its own catalog.

A round looks at what the server shows, judges it, sends at most one request, and looks again: only what was seen is
noted. So an answer that is lost, a worker that dies and a server that goes back to a backup are all one case: the next
look. Whatever is wrong with a catalog holds its mirror by name; the table and its other mirrors continue.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from harness_pipelines import faults
from harness_pipelines.errors import HarnessError
from harness_pipelines.extras import ExtraMissing
from harness_pipelines.pauses import Pauses
from harness_pipelines.ports.access import HasGuard, HasLedger, HasMirrors
from harness_pipelines.ports.errors import (
    MetadataMissing,
    MirrorAway,
    MirrorLoginFailed,
    MirrorNamespaceMissing,
    MirrorRefused,
    MirrorUndecided,
)
from harness_pipelines.ports.lake import ForeignCatalog, MirrorChange, MirrorState, mirrored_views
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake.mirrors import ForeignInMirror, MirrorNameTaken, MirrorStep, Seen, judge, went_back
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines.spec.sections.catalogs import CatalogSecretMissing, CatalogSpec
from harness_pipelines.stages.run.progress import TableProgress

log = structlog.get_logger(__name__)
LOOK_EVERY_S = 60.0  #: at a server that is to show nothing new
LOOKS_MAX = 6  #: of one round: a registration and a commit, each with a lost answer
PAUSE_S, PAUSE_S_MAX = 0.5, 60.0  #: before a catalog in trouble is asked again; doubles while it is
#: What holds up one mirror and nothing else.
OF_CATALOG = (
    MirrorAway,
    MirrorLoginFailed,
    MirrorNamespaceMissing,
    MirrorRefused,
    MirrorUndecided,
    ForeignInMirror,
    MirrorNameTaken,
    CatalogSecretMissing,
    ExtraMissing,
    MetadataMissing,
)


class Ports(HasLedger, HasMirrors, HasGuard, Protocol):
    """The ports that it uses."""


@dataclass(slots=True)
class _Follower:
    """One catalog of one table, as a worker follows it."""

    catalog: CatalogSpec
    server: ForeignCatalog | None = None
    pauses: Pauses = field(default_factory=lambda: Pauses(PAUSE_S, PAUSE_S_MAX))
    next_at: float = 0.0  #: monotonic seconds; not asked before
    error: HarnessError | None = None


class Mirroring:
    """All catalogs of one table. One in trouble is asked more and more rarely, and holds no other one up."""

    def __init__(self, stores: Ports, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._stores, self._look_every_s = stores, look_every_s
        self._followers: dict[str, _Follower] = {}

    def step(self, table: TableRow, claim: Claim, progress: TableProgress) -> bool:
        """Ask each catalog that is due once; whether one was brought further.

        What holds a catalog up is noted, and shown in *progress*. Raises: FencedOut, and what the ledger raises.
        """
        for name in self._followers.keys() - {one.name for one in table.spec.catalogs}:
            del self._followers[name]
        moved = any([self._follow(table, catalog, claim, progress) for catalog in table.spec.catalogs])
        if troubles := [str(one.error) for one in self._followers.values() if one.error is not None]:
            progress.trouble[Stage.MIRROR] = "; ".join(troubles)
        else:
            progress.trouble.pop(Stage.MIRROR, None)
        return moved

    def is_quiet(self, table: TableRow) -> bool:
        """Every catalog shows the head, or is in trouble."""
        return all(
            (known := self._followers.get(one.name)) is not None
            and (known.error is not None or (state := self._state(table, one)).version == state.head)
            for one in table.spec.catalogs
        )

    def _follow(self, table: TableRow, catalog: CatalogSpec, claim: Claim, progress: TableProgress) -> bool:
        follower = self._followers.get(catalog.name)
        if follower is None or follower.catalog != catalog:
            follower = self._followers[catalog.name] = _Follower(catalog)
        if time.monotonic() < follower.next_at:
            return False
        state = self._state(table, catalog)
        rested = state.looked_s is not None and state.looked_s < self._look_every_s
        if rested and state.version == state.head and state.trouble is None:
            return False
        try:
            follower.server = follower.server or self._stores.foreign_catalog(table, catalog)
            moved = Round(self._stores, table, catalog, follower.server, claim, state).run()
        except OF_CATALOG as error:
            progress.errors[Stage.MIRROR] += 1
            if follower.error is None or str(error) != str(follower.error):
                log.warning("mirror.failed", table=table.name, catalog=catalog.name, error=str(error))
                self._stores.mirrors.trouble(table, catalog.name, str(error))
            if isinstance(error, MirrorLoginFailed):
                follower.server = None  # the next one reads the secret again: it may be a new one by then
            follower.error, follower.next_at = error, time.monotonic() + follower.pauses.next_s()
            return False
        follower.error, follower.next_at = None, 0.0
        follower.pauses.worked()
        return moved

    def _state(self, table: TableRow, catalog: CatalogSpec) -> MirrorState:
        return self._stores.mirrors.state(table, catalog.name)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one catalog."""

    stores: Ports
    table: TableRow
    catalog: CatalogSpec
    server: ForeignCatalog
    claim: Claim
    state: MirrorState  #: before the round

    def run(self) -> bool:
        """Bring the catalog to the head, and note it once it was seen there; whether anything had to be sent.

        Raises: `OF_CATALOG`, FencedOut; before anything is sent, WarehouseTaken, LedgerOlderThanLake, LakeAway.
        """
        table, name = self.table, self.catalog.name
        target = self.stores.mirrors.intend(table, name, self.claim)
        faults.point("mirror.after_plan")
        lost: MirrorUndecided | None = None
        for looks in range(LOOKS_MAX):
            seen, acts = self._look(target)
            if MirrorStep.OVERTAKEN in acts.values():
                return False
            if all(act is MirrorStep.NOTHING for act in acts.values()):
                self.stores.mirrors.settle(table, name, self.claim, version=target.version, seen=seen)
                log.info("mirror.published", table=table.name, catalog=name, version=target.version)
                return looks > 0
            self.stores.guard.check(table, self.stores.ledger)
            try:
                if not self._send(target, seen, acts):
                    log.info("mirror.dropped", table=table.name, catalog=name)
                    return False  # where the spec still names it, the next round begins again
            except MirrorUndecided as unknown:  # the next look tells
                lost = unknown
                log.info("mirror.outcome_unknown", table=table.name, catalog=name, error=str(unknown))
        raise lost or MirrorUndecided(f"{table.name}: catalog {name} does not show what it was sent")

    def _look(self, target: Version) -> tuple[dict[ViewName, Seen], dict[ViewName, MirrorStep]]:
        """What the server shows, and what is to be done about each view."""
        table, seen, acts = self.table, dict[ViewName, Seen](), dict[ViewName, MirrorStep]()
        for view in mirrored_views(table, self.catalog):
            found, pin = self.server.load(view), target.views[view]
            uuids = {self.server.uuid_of(view, pin.metadata), *filter(None, [self.state.uuids.get(view)])}
            known = self.stores.mirrors.known(table, view, found)
            where = f"{table.name}: the {view} view in catalog {self.catalog.name}"
            acts[view] = judge(where, found, known, uuids=uuids, snapshot=pin.snapshot, version=target.version)
            if found is not None:
                seen[view] = found
        back = [one.version for one in seen.values() if went_back(one, self.state.version)]
        if back and not all(act is MirrorStep.NOTHING for act in acts.values()):
            log.warning("mirror.server_went_back", table=table.name, catalog=self.catalog.name, version=back[0])
        return seen, acts

    def _send(self, target: Version, seen: Mapping[ViewName, Seen], acts: Mapping[ViewName, MirrorStep]) -> bool:
        """One kind of request: what is missing is registered first, and followed after another look.

        False, with nothing sent: the mirror was dropped meanwhile, and expire may forget what it kept for it.
        Raises: MirrorUndecided, and what the server raises.
        """
        if missing := [view for view, act in acts.items() if act is MirrorStep.REGISTER]:
            for view in missing:
                metadata = target.views[view].metadata
                if not self.stores.mirrors.register(self.table, self.catalog.name, self.claim, metadata=metadata):
                    return False
                self.server.register(view, metadata)
                faults.point("mirror.during_files")
            return True
        behind = [view for view, act in acts.items() if act is MirrorStep.FOLLOW]
        pins = {view: target.views[view].metadata for view in behind}
        self.server.follow(
            [MirrorChange(view=v, seen=seen[v], metadata=pins[v], version=target.version) for v in behind]
        )
        faults.point("mirror.after_commit")
        return True


def drop_mirror(
    stores: Ports, table: TableRow, catalog: CatalogSpec, *, really: bool, forget: bool = False
) -> tuple[ViewName, ...]:
    """Take the views out of *catalog* and forget the mirror; those that are there. Files stay.

    The drop is noted before the server is asked, so that a worker registers nothing between the look and the end. One
    whose spec names the catalog follows it again: then nothing is forgotten. *forget*: the server is not asked.
    Raises: MirrorNameTaken for a table that is not ours, with nothing dropped, and what the server raises; a drop that
    was cut off stays noted, and its files are kept until another one ends.
    """
    mirrors, server = stores.mirrors, stores.foreign_catalog(table, catalog)
    there = () if forget else _ours(stores, table, catalog, server)
    if really:
        mirrors.begin_drop(table, catalog.name)
        if not forget:
            there = _ours(stores, table, catalog, server)
        for view in there:
            server.drop(view)
        mirrors.forget(table, catalog.name)
    return there


def _ours(stores: Ports, table: TableRow, catalog: CatalogSpec, server: ForeignCatalog) -> tuple[ViewName, ...]:
    """The views that *server* has. Raises: MirrorNameTaken."""
    mirrors, there = stores.mirrors, list[ViewName]()
    uuids, head = mirrors.state(table, catalog.name).uuids, stores.ledger.head(table)
    for view in mirrored_views(table, catalog):
        if (found := server.load(view)) is None:
            continue
        known = {server.uuid_of(view, head.views[view].metadata), uuids.get(view)}
        if found.uuid not in known and mirrors.known(table, view, found).newest is None:
            raise MirrorNameTaken(
                f"{table.name}: the {view} view in catalog {catalog.name}: a table is there that this ledger never "
                f"registered (uuid {found.uuid}); it was left alone"
            )
        there.append(view)
    return tuple(there)
