"""Pending work of a table's stages, from one query of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """Lags between a table's tiers, and its claims. Offsets are sums over its partitions."""

    name: str
    stopped: str | None
    unread: int | None  #: offsets of the log above the buffer, as last seen; None: nobody has looked yet
    unseen_s: float | None  #: since the oldest of these looks
    buffered: int  #: offsets above the stream view
    unmerged: int  #: offsets of the stream view above the batch view
    buffered_bytes: int
    since_tier_s: float
    since_expire_s: float | None  #: since somebody held expire; None: nobody has yet
    buffer_at: int  #: sum of `buffer_hi`
    stream_at: int  #: sum of `stream_hi`
    busy: frozenset[str]  #: stages that somebody holds
    open: Mapping[str, Mapping[str, Any]]  #: stage -> attempt and state of its open or stuck move
    last: Mapping[str, Mapping[str, Any]]  #: stage -> move, rows and `by_a_run` (of Dagster) of its newest commit


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEnds:
    """The last known ends of a table's log."""

    table: str
    ends: Mapping[int, int]
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimState:
    """The claim of one stage."""

    lease_s: float  #: until its lease ends; 0: nobody holds it
    own: bool  #: it is held by whoever asks


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMove:
    """An open move."""

    attempt: int
    failures: int
    stuck: bool
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The number of records that broke a check of the contract."""

    check: str
    severity: str
    records: int
