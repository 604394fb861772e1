"""Reverts: a new version with the lake of an old one. What goes back to the hot tier must still be held there.

Nothing is taken away by a revert: offsets between the old ``stream_hi`` and the present one are answered by the buffer
(with ``buffer: none`` by Kafka) again, and tier moves them a second time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.protocol.bounds import Bounds, OffsetRange, Vector
from harness_pipelines.protocol.changes.corrections import Waiting
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.moves import Move, MoveState
from harness_pipelines.protocol.versions import Version, View, ViewName, tiered_of

Tier = Literal["lake", "buffer", "tail"]


class RevertRefused(HarnessError):
    """The version cannot be restored: a tier no longer holds records that would return to it."""

    way_on = "the message names the oldest version in reach"


class RevertWaits(TryAgain):
    """The version cannot be restored yet: an old readable version would change."""

    way_on = "run `harness run TABLE --until-idle`, then the same command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """What the tiers still hold, as read under the trim lock."""

    retained_from: int  #: files of versions below it may be gone
    hot: Literal["buffer", "tail"]  #: the tier that answers above ``stream_hi``
    hot_from: Vector  #: per partition: from here on that tier has every record (`trim_floor`, or Kafka's log start)
    overlays: Collection[str] = ()  #: tables of recalled rows that are there


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Why a version is out of reach, and the tier that it needs."""

    tier: Tier
    detail: str


def limit_of(head: Version, target: Version, held: Retained, *, starts: Vector) -> Limit | None:
    """What keeps *head* from going back to *target*; ``None`` when nothing does.

    *starts* has every partition of the table; one that joined after *target* goes back to its start.
    """
    if target.version < held.retained_from:
        return Limit(tier="lake", detail=f"its files are kept only from version {held.retained_from} on")
    if target.schema_version != head.schema_version:
        return Limit(
            tier="lake", detail=f"it has schema {target.schema_version}, the table is at schema {head.schema_version}"
        )
    if gone := sorted(one.segment for one in target.overlays if one.segment not in held.overlays):
        return Limit(tier="buffer", detail=f"its recalled rows were in {', '.join(gone)}, which is gone")
    for taken in going_back(head, target, starts=starts):
        held_from = held.hot_from.get(taken.partition)
        if held_from is None or held_from > taken.low:
            where = "nothing" if held_from is None else f"only from offset {held_from} on"
            return Limit(
                tier=held.hot,
                detail=f"[{taken.low}, {taken.high}) of partition {taken.partition} would go back to the "
                f"{held.hot}, which has {where}",
            )
    return None


def going_back(head: Version, target: Version, *, starts: Vector) -> tuple[OffsetRange, ...]:
    """The offsets that the hot tier has to answer for again, by partition."""
    before, after = _stream_hi(head, starts), _stream_hi(target, starts)
    return tuple(OffsetRange(partition=p, low=after[p], high=before[p]) for p in sorted(starts) if after[p] < before[p])


def rollback_floor(head: Version, versions: Iterable[Version], held: Retained, *, starts: Vector) -> int:
    """The oldest version that a revert can reach now; the head itself always can be."""
    reachable = [v.version for v in versions if limit_of(head, v, held, starts=starts) is None]
    return min(reachable, default=head.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertPlan:
    """Return what a revert of *head* to *target* does, or why it is refused."""

    head: Version
    target: Version
    limit: Limit | None  #: why *target* is out of reach
    waits: Waiting | None  #: why it is not in reach yet
    floor: int  #: the oldest version in reach
    back: tuple[OffsetRange, ...]  #: offsets that the hot tier answers for again
    open_moves: tuple[Move, ...]  #: closed as ABANDONED
    claims: tuple[Claim, ...]  #: fenced: its holder has to take it again


def plan_revert(
    head: Version,
    target: Version,
    versions: Iterable[Version],
    held: Retained,
    *,
    starts: Vector,
    moves: Iterable[Move],
    claims: Iterable[Claim],
    waits: Waiting | None = None,
) -> RevertPlan:
    """Put the plan together from what was read under the locks; *versions* are those that are retained.

    *waits* is what `corrections.restoring_waits` says of *target*.
    """
    return RevertPlan(
        head=head,
        target=target,
        limit=limit_of(head, target, held, starts=starts),
        waits=waits,
        floor=rollback_floor(head, versions, held, starts=starts),
        back=going_back(head, target, starts=starts),
        open_moves=tuple(m for m in moves if m.state in (MoveState.PLANNED, MoveState.QUARANTINED)),
        claims=tuple(c for c in claims if c.stage is not Stage.INGEST),
    )


def check_revert(plan: RevertPlan) -> None:
    """Only what every tier still holds may be restored.

    Raises: RevertRefused (NEVER), naming the tier that limits it and the rollback floor; RevertWaits (REFRESH).
    """
    if (limit := plan.limit) is not None:
        raise RevertRefused(
            f"version {plan.target.version} cannot be restored, the {limit.tier} limits it: {limit.detail}; nothing "
            f"was changed. The oldest version that a revert can reach now is {plan.floor}"
        )
    if (waits := plan.waits) is not None:
        raise RevertWaits(
            f"version {plan.target.version} cannot be restored yet: {waits.why}; nothing was changed. "
            f"`{waits.way_on}`, then repeat this"
        )


def reverted(
    head: Version,
    target: Version,
    *,
    views: Mapping[ViewName, View],
    buffer_hi: Vector,
    starts: Vector,
    move_id: int,
    now: datetime,
) -> Version:
    """The version after *head*: the lake's bounds of *target* and the buffer's of this instant (S3: it never falls).

    *views* are new metadata files with the content of *target*'s.
    """
    bounds = {}
    for partition, high in buffer_hi.items():
        old = target.bounds.get(partition, Bounds.at(starts[partition]))
        bounds[partition] = Bounds(start=old.start, batch_hi=old.batch_hi, stream_hi=old.stream_hi, buffer_hi=high)
    return replace(
        head,
        version=head.version + 1,
        stream=tiered_of(views),
        batch=views.get("batch"),
        layout=target.layout,
        overlays=target.overlays,
        bounds=bounds,
        move_id=move_id,
        revert_of=target.version,
        committed_at=now,
    )


def fenced(claim: Claim, *, now: datetime) -> Claim:
    """Return *claim* as a revert leaves it: free, with its former holder fenced for good (S5).

    Ingest continues: a revert does not touch ``buffer_hi``.
    """
    if claim.stage is Stage.INGEST:
        return claim
    return replace(claim, epoch=claim.epoch + 1, lease_until=min(claim.lease_until, now))


def in_effect(revert_of: Mapping[int, int | None], head: int) -> frozenset[int]:
    """The versions whose moves make up *head*: backwards, and from a revert to what it restored.

    *revert_of* has the versions of the table, ``None`` for those that are no revert. Folded ones may be missing, which
    are no reverts.
    """
    numbers = sorted(revert_of)
    found: set[int] = set()
    at = bisect_right(numbers, head)
    while at:
        number = numbers[at - 1]  # not one less: behind a lost history numbers continue from a larger one
        found.add(number)
        restored = revert_of[number]
        at = at - 1 if restored is None else bisect_right(numbers, restored)
    return frozenset(found)


def _stream_hi(version: Version, starts: Vector) -> dict[int, int]:
    return {**starts, **version.stream_hi}
