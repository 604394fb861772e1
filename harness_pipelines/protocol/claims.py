"""The right to run a stage of a shard. The clock is the database's and is passed in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b

from harness_pipelines.errors import HarnessError, Recovery, TryAgain


class Stage(StrEnum):
    """The stages that work today; the others are added with their issue."""

    INGEST = "ingest"
    TIER = "tier"
    OTREE = "otree"
    COMPACT = "compact"
    EXPIRE = "expire"
    MIRROR = "mirror"
    REVERT = "revert"
    REPLAY = "replay"
    EVOLVE = "evolve"


#: What a worker runs; the others are asked for by a person.
CONTINUOUS_STAGES = frozenset({Stage.INGEST, Stage.TIER, Stage.OTREE, Stage.COMPACT, Stage.EXPIRE, Stage.MIRROR})


#: No claim is held for longer without a renewal: one that ends later was written by a clock that was put right since.
LEASE_MAX = timedelta(minutes=10)


class FencedOut(HarnessError):
    """Another holder took over the claim; files that this holder staged are never published."""

    way_on = "nothing: another worker continues"

    recovery = Recovery.NEVER


class StageHeld(TryAgain):
    """A worker holds the claim of the stage."""

    way_on = "stop the worker that the message names, or wait for its lease (30 s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A holder's right to run one stage of one shard until its lease ends."""

    table_id: int
    stage: Stage
    shard: int
    holder: str  #: uuid of the worker
    epoch: int  #: strictly larger with every claim
    lease_until: datetime


def may_take(current: Claim | None, *, now: datetime) -> bool:
    """A claim may be taken if it is free or its lease has ended."""
    return current is None or current.lease_until <= now


class ClaimAhead(TryAgain):
    """A claim ends later than any valid lease, so no worker renews it and waiting may take days."""

    way_on = "`harness reconcile TABLE --yes` ends it"


def is_ahead(lease_until: datetime, *, now: datetime) -> bool:
    """The lease was given by a clock that ran ahead of the one of *now*."""
    return lease_until > now + LEASE_MAX


def ahead(table: str, claim: Claim, *, now: datetime) -> ClaimAhead:
    """The message about a claim that `is_ahead`."""
    return ClaimAhead(
        f"{table}: {claim.stage} is claimed by {claim.holder} (epoch {claim.epoch}) until "
        f"{claim.lease_until:%Y-%m-%d %H:%M:%S %Z}, and it is {now:%Y-%m-%d %H:%M:%S %Z}: no lease is longer than "
        f"{LEASE_MAX.total_seconds() / 60:.0f} minutes, so the database's clock has run ahead and no worker renews "
        f"this one. `harness reconcile {table} --yes` ends it"
    )


def check_claim(claim: Claim, current: Claim | None, *, now: datetime) -> None:
    """The fence: *claim* must still be the current one, and alive (S5). The last check of every commit.

    Raises: FencedOut (NEVER).
    """
    what = f"{claim.stage} of table {claim.table_id}, shard {claim.shard}"
    if current is None or current.epoch != claim.epoch or current.holder != claim.holder:
        found = "nobody" if current is None else f"epoch {current.epoch}"
        raise FencedOut(f"{what}: claim epoch {claim.epoch} was taken over, current is {found}; nothing was written")
    if current.lease_until <= now:
        raise FencedOut(
            f"{what}: the lease of epoch {claim.epoch} ended at {current.lease_until:%Y-%m-%d %H:%M:%S.%f %Z}, "
            f"it is {now:%Y-%m-%d %H:%M:%S.%f %Z}; nothing was written"
        )


# -- sharing ------------------------------------------------------------------------------------------------------
#
# Which of the workers of a ledger asks first for the claims of a table. Rendezvous hashing: each pair of a worker and a
# table has a weight that anybody can work out, and the worker with the largest weight asks first. When a worker comes
# or goes, only the tables that it has or gets move. It decides who waits, and nothing else: a claim decides who works.

#: The share of a lease for which a worker that said so lives: the others know that it is gone when its claims end.
ALIVE_LEASES = 2 / 3


def rank(worker: str, workers: Collection[str], table_id: int) -> int:
    """The number of *workers* that ask for the claims of the table before *worker* does."""
    mine = (_weight(worker, table_id), worker)
    return sum((_weight(other, table_id), other) > mine for other in workers)


def share(worker: str, workers: Collection[str], tables: Collection[int]) -> frozenset[int]:
    """Those of *tables* for whose claims *worker* asks first.

    The shares of all *workers* are disjoint, and each table is in one of them.
    """
    return frozenset(table_id for table_id in tables if rank(worker, workers, table_id) == 0)


def patience_s(worker: str, workers: Collection[str], table_id: int, *, lease_s: float) -> float:
    """For how many seconds the claims of the table are free before *worker* asks for them.

    Each worker that comes before it has the time of a lease: one that died is not among *workers* by then, and one that
    hangs is not waited for any longer.
    """
    return rank(worker, workers, table_id) * lease_s


def _weight(worker: str, table_id: int) -> bytes:
    return blake2b(f"{worker}/{table_id}".encode(), digest_size=8).digest()
