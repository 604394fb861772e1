"""Published states of the lake side of a table, and which of them answers for an old read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from heapq import heappop, heappush
from typing import Literal

from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.bounds import Bounds, Vector, check_starts, covers, lowest
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.overlays import Overlay, OverlayChange
from harness_pipelines.protocol.moves import Move

ViewName = Literal["stream", "batch"]  #: the lake in offset order, and in value order
BoundName = Literal["stream_hi", "batch_hi"]


class VersionGone(HarnessError):
    """The version is no longer retained, or never existed."""

    way_on = "read a newer version; keep states with `harness snapshot create`"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One Iceberg table as a version pins it."""

    metadata: str  #: location of the metadata JSON
    snapshot: int  #: id of the snapshot that the metadata's main branch names


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The effect of a stage's moves: the view that they write, and the bound that they advance."""

    view: ViewName
    bounds: tuple[BoundName, ...]  #: none: its moves have no ranges


#: Of the stages that publish files, in a table with a stream view.
EFFECTS: Mapping[Stage, Effect] = {
    Stage.TIER: Effect(view="stream", bounds=("stream_hi",)),
    Stage.OTREE: Effect(view="batch", bounds=("batch_hi",)),
    Stage.COMPACT: Effect(view="stream", bounds=()),
}
#: The same with `views: batch`: tier writes what otree rewrites.
ONE_VIEW: Mapping[Stage, Effect] = {
    Stage.TIER: Effect(view="batch", bounds=("stream_hi", "batch_hi")),
    Stage.OTREE: Effect(view="batch", bounds=()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One published state, numbered without gaps."""

    table_id: int
    version: int
    stream: View  #: has every row below stream_hi; with `views: batch` the batch view is this too
    schema_version: int
    bounds: Mapping[int, Bounds]
    move_id: int | None
    committed_at: datetime
    batch: View | None = None  #: has every row below batch_hi; None in a table without a batch view
    layout: int | None = None  #: the version that last changed how the batch view is clustered
    revert_of: int | None = None  #: the version that a revert restored
    overlays: tuple[Overlay, ...] = ()  #: rows of the batch view that lie in Postgres instead of it
    narrowed: int = 0  #: how many of the table's schemas so far dropped a column

    @property
    def views(self) -> dict[ViewName, View]:
        """The views that it has, by name."""
        return by_name(self.stream, self.batch)

    @property
    def tiered(self) -> ViewName:
        """The view that tier writes."""
        return "batch" if self.stream == self.batch else "stream"

    @property
    def stream_hi(self) -> dict[int, int]:
        return {p: b.stream_hi for p, b in self.bounds.items()}

    @property
    def buffer_hi(self) -> dict[int, int]:
        return {p: b.buffer_hi for p, b in self.bounds.items()}


def by_name(stream: View, batch: View | None) -> dict[ViewName, View]:
    """What a version pins, each view once."""
    if batch is None:
        return {"stream": stream}
    return {"batch": batch} if stream == batch else {"stream": stream, "batch": batch}


def tiered_of(views: Mapping[ViewName, View]) -> View:
    """Of the views of a table the one that tier writes."""
    return views["stream"] if "stream" in views else views["batch"]


class ForeignCommit(HarnessError):
    """Another writer committed to a view of the table; only the harness may."""

    way_on = (
        "`harness audit TABLE`, then `harness revert TABLE --to HEAD --yes` or `harness reconcile TABLE "
        "--accept-foreign --yes`"
    )


def check_base(head: Version, base_snapshot: int, *, table: str, view: ViewName = "stream") -> None:
    """What is built on must be what the ledger published last: another writer's rows are never taken over.

    Raises: ForeignCommit (NEVER).
    """
    published = head.views[view].snapshot
    if published != base_snapshot:
        raise ForeignCommit(
            f"{table}: the {view} view is at snapshot {base_snapshot}, version {head.version} published "
            f"{published}: another writer committed to it. Nothing was written; `harness audit {table}` lists its "
            f"rows, `harness revert {table} --to HEAD --yes` sets the view back to what the ledger published, `harness "
            f"reconcile {table} --accept-foreign --yes` takes them over"
        )


def advance(
    head: Version,
    move: Move,
    *,
    view: View,
    buffer_hi: Vector,
    starts: Vector,
    now: datetime,
    relaid: bool = False,
    overlays: OverlayChange | None = None,
) -> Version:
    """The next version: *head* as locked with only this move's columns changed.

    *view* is what the move published; *relaid*: it changed how the batch view is clustered; *overlays*: what it
    recalled, released or merged into recalled rows.
    Raises: BoundaryGap, OverlaysMoved (REFRESH).
    """
    effect = (ONE_VIEW if head.tiered == "batch" else EFFECTS)[move.stage]
    positions = {p: head.bounds.get(p, Bounds.at(starts[p])) for p in buffer_hi}
    reached = {p: getattr(b, effect.bounds[0]) for p, b in positions.items()} if effect.bounds else {}
    check_starts(move.lo, reached, what=f"the {effect.view} view")
    bounds = {p: replace(b, buffer_hi=buffer_hi[p]) for p, b in positions.items()}
    bounds |= {p: replace(bounds[p], **dict.fromkeys(effect.bounds, move.hi[p])) for p in move.hi}
    return replace(
        head,
        version=head.version + 1,
        stream=view if effect.view == head.tiered else head.stream,
        batch=view if effect.view == "batch" else head.batch,
        layout=head.version + 1 if relaid else head.layout,
        overlays=head.overlays if overlays is None else overlays.applied(head.overlays),
        bounds=bounds,
        move_id=move.move_id,
        revert_of=None,
        committed_at=now,
    )


def answering_version(old: Version, later: Iterable[Version]) -> Version | None:
    """``w(v)``: the first version after *old* whose stream view holds all that *old* had buffered, in every column.

    ``None`` means that the buffer still answers for ``[stream_hi(old), buffer_hi(old))``. *later* is oldest first, and
    read no further than needed.
    """
    wanted = old.buffer_hi
    if covers(old.stream_hi, wanted):
        return old
    # Files written after a drop lack a column that *old* has: then the buffer answers as long as needed.
    fitting = (v for v in later if v.version > old.version and v.narrowed == old.narrowed)
    return next((v for v in fitting if covers(v.stream_hi, wanted)), None)


def unanswered(asked: Iterable[Version], among: Iterable[Version]) -> list[Version]:
    """Those of *asked* that none of *among* answers for (`answering_version`), in one walk over both.

    Each waits at one partition of which the stream view has too little, so a version that has no more of it need not be
    compared. Where the stream view only grows, a version waits at each partition once at most.
    """
    olds = sorted(asked, key=lambda v: v.version)
    waits: dict[tuple[int, int], list[tuple[int, int]]] = {}  # by partition: how far it must come, and for which
    left = set[int]()

    def wait(place: int, high: Vector) -> None:
        old = olds[place]
        short = next((p for p, wanted in old.buffer_hi.items() if high.get(p, -1) < wanted), None)
        if short is None:
            left.discard(place)
            return
        left.add(place)
        heappush(waits.setdefault((old.narrowed, short), []), (old.buffer_hi[short], place))

    following = 0
    for version in sorted(among, key=lambda v: v.version):
        while following < len(olds) and olds[following].version < version.version:
            wait(following, olds[following].stream_hi)
            following += 1
        high = version.stream_hi
        for partition, reached in high.items():
            waiting = waits.get((version.narrowed, partition), [])
            while waiting and waiting[0][0] <= reached:
                wait(heappop(waiting)[1], high)
    for place in range(following, len(olds)):
        wait(place, olds[place].stream_hi)
    return [olds[place] for place in sorted(left)]


def trim_floor(
    versions: Sequence[Version],
    leased: Sequence[Version],
    *,
    waiting: Sequence[Version],
    grace: timedelta,
    now: datetime,
) -> dict[int, int]:
    """Below this vector no reader, lease or revert needs the buffer.

    *versions* are all known versions, oldest first, or all from one on that was the head *grace* ago; *leased* those
    that live leases name; *waiting* those that can be read as old versions, among them those that snapshots pin, and
    that the stream view does not answer for yet (`unanswered`). The floor is the lowest stream position of the versions
    that were the head within *grace* (so that a revert to one of them finds its rows; a revert also lets the head
    itself be lower than older versions), lowered to the position of every lease and of every version that waits.
    """
    settled = [i for i, v in enumerate(versions) if v.committed_at <= now - grace]
    if not settled:
        return {p: b.start for v in versions[:1] for p, b in v.bounds.items()}
    # A version that does not know a partition yet was read with that partition's rows from the buffer.
    starts = {p: b.start for v in versions for p, b in v.bounds.items()}
    return lowest([starts | v.stream_hi for v in (*versions[settled[-1] :], *leased, *waiting)])


def kept_versions(versions: Sequence[Version], *, retention: timedelta, now: datetime) -> list[Version]:
    """The head, and every version that was the head less than *retention* ago; *versions* oldest first."""
    ends = [*(v.committed_at for v in versions[1:]), None]
    return [v for v, end in zip(versions, ends, strict=True) if end is None or end > now - retention]


def reached_versions(
    versions: Sequence[Version],
    *,
    retained_from: int,
    leased: Collection[int],
    bases: Collection[int],
    snapshots: Sequence[Version] = (),
) -> list[Version]:
    """The versions whose metadata and files must stay (S10, S11).

    Those that can be read, those that a lease or (as its base) an open move names, those that *snapshots* pin (with
    the bounds that they are read with), and for each of them ``w(v)``, which answers for what it had buffered.
    *versions* are all from the oldest of these on, oldest first.
    """
    named = [v for v in versions if v.version >= retained_from or v.version in leased or v.version in bases]
    named += snapshots
    numbers = {v.version for v in named}
    # What answers for a version is later than it, so of one that can be read it can be read too.
    asked = [v for v in named if v.version < retained_from]
    numbers |= {w.version for v in asked if (w := answering_version(v, versions)) is not None}
    return [v for v in versions if v.version in numbers]
