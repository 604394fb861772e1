"""Which of the workers of a ledger asks first for the claims of a table.

Rendezvous hashing: each pair of a worker and a table has a weight that anybody can work out, and the worker with the
largest weight asks first. When a worker comes or goes, only the tables that it has or gets move. It decides who waits,
and nothing else: a claim decides who works.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b

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
