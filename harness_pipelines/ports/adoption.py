"""What a ledger adopts from the lake: moves, bounds and the batch view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.versions import View


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedMove:
    """A move to insert as committed; with *move_id* ``None`` the ledger assigns a number."""

    move_id: int | None
    stage: str
    lo: Vector
    hi: Vector
    rows: int
    bytes: int = 0
    attempt: int = 1
    nonce: str = ""  #: as the lake names it; "": the ledger gives it one


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """The batch view of the next version: a state in the lake, or an empty one. It has no recalled rows."""

    pointer: str  #: what the catalog names now
    view: View
    batch_hi: Vector  #: of the partitions that it has rows of; the others end at their start
    keeps_layout: bool  #: it is the view that the ledger's region tree is of


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """All changes when the ledger adopts the newest metadata of the lake."""

    pointer: str  #: what the catalog names now
    head: View  #: what it names then
    starts: Vector
    stream_hi: Vector
    buffer_hi: Vector
    moves: Sequence[AdoptedMove] = field(default_factory=tuple)
