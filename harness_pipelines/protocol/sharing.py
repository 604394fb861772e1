"""Which of the workers of a ledger asks first for the claims of a table.

Rendezvous hashing: each pair of a worker and a table has a weight that anybody can work out, and the worker with the
largest weight asks first. When a worker comes or goes, only the tables that it has or gets move. It decides who waits,
and nothing else: a claim decides who works.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b


def rank(worker: str, workers: Collection[str], table_id: int) -> int:
    """How many of *workers* ask for the claims of the table before *worker* does."""
    mine = (_weight(worker, table_id), worker)
    return sum((_weight(other, table_id), other) > mine for other in workers)


def _weight(worker: str, table_id: int) -> bytes:
    return blake2b(f"{worker}/{table_id}".encode(), digest_size=8).digest()
