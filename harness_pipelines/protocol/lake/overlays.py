"""Overlays: rows of a keyed table's batch view that are recalled to Postgres before a burst of updates.

A version names the tables of its recalled rows. Such a table is immutable, as all segments are: a merge that changes
recalled keys makes the next *generation* of it, and older versions continue naming the one before. A row is live in the
lake or in an overlay, never in both: position deletes hide in the lake what was recalled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from harness_pipelines.errors import HarnessError, Recovery, UsageError

Key = TypeVar("Key")


class OverlayRequest(StrEnum):
    """Requests of an operator for rows of a keyed table."""

    RECALL = "recall"  #: from the lake to Postgres
    RELEASE = "release"  #: everything that was recalled back to the lake


class OverlaysMoved(HarnessError):
    """The table's recalled rows changed since the move was planned: plan it again."""

    recovery = Recovery.REFRESH


class OverlayMissing(HarnessError):
    """A table of recalled rows is missing."""

    way_on = "`harness fsck TABLE`; `harness recall` again what was recalled"


class OverlayWrong(HarnessError):
    """Recalled or released rows differ from the original rows; they are never published."""

    recovery = Recovery.REFRESH


class NotRecallable(UsageError):
    """Rows of this kind of table cannot be recalled."""


class RecallTooLarge(UsageError):
    """The request exceeds the spec's limit of recalled rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """One table of recalled rows, as a version names it."""

    segment: str  #: its name in the schema ``harness_buffer``
    rows: int
    bytes: int
    schema_version: int
    digest: str  #: of the rows in any order
    move: int  #: that made it
    packed: tuple[str, ...] = ()  #: columns that share one value

    def to_json(self) -> dict[str, Any]:
        return {
            "segment": self.segment,
            "rows": self.rows,
            "bytes": self.bytes,
            "schema_version": self.schema_version,
            "digest": self.digest,
            "move": self.move,
        } | ({"packed": list(self.packed)} if self.packed else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayChange:
    """The change that a move makes to the overlays: from those that it was built on to those of the next version."""

    on: tuple[Overlay, ...]
    then: tuple[Overlay, ...]

    @property
    def made(self) -> tuple[Overlay, ...]:
        """Those that the move itself made."""
        return tuple(one for one in self.then if one not in self.on)

    def applied(self, held: tuple[Overlay, ...]) -> tuple[Overlay, ...]:
        """The overlays of the version after one that has *held*. Raises: OverlaysMoved (REFRESH)."""
        if held != self.on:
            raise OverlaysMoved(
                f"the table has {named(held)}, the move was built on {named(self.on)}; nothing was written, plan the "
                "move again"
            )
        return self.then


def recalled(held: Sequence[Overlay], made: Overlay) -> OverlayChange:
    """*made* beside those that there are: recalled rows are live in the lake, so no key of them is in *held*."""
    return OverlayChange(on=tuple(held), then=(*held, made))


def next_generation(held: Sequence[Overlay], made: Overlay | None) -> OverlayChange:
    """*made* for all that there are; ``None``: none of their rows is left, or all went back to the lake."""
    return OverlayChange(on=tuple(held), then=() if made is None else (made,))


def told(overlays: Iterable[Overlay]) -> str:
    """A snapshot's record of the rows that it lacks: table and number; empty if it lacks none."""
    return ",".join(f"{one.segment}:{one.rows}" for one in overlays)


def named(overlays: Iterable[Overlay]) -> str:
    """The same for people."""
    return told(overlays) or "no recalled rows"


def overlay_name(table_id: int, move_id: int, attempt: int) -> str:
    """The table that this attempt alone writes to: a late attempt never adds to what a later one made."""
    return f"ovl_{table_id}_{move_id}_{attempt}"


def split(changes: Mapping[Key, int], held: Collection[Key]) -> tuple[dict[Key, int], dict[Key, int]]:
    """What of a merge's *changes* (the newest version per key) goes to the overlays, and what to the lake.

    A recalled key stays where it is until it is deleted or released; a new key goes to the lake.
    """
    mine = {key: change for key, change in changes.items() if key in held}
    return mine, {key: change for key, change in changes.items() if key not in held}


def check_size(table: str, *, rows: int, held: int, rows_max: int) -> None:
    """Postgres holds no more recalled rows of a table than its spec says. Raises: RecallTooLarge."""
    if held + rows > rows_max:
        there = f" beside the {held:,} that are recalled already" if held else ""
        raise RecallTooLarge(
            f"{table}: {rows:,} rows match{there}, and `recall: max_rows` of its spec is {rows_max:,}; nothing was "
            "moved. Recall fewer, release what is recalled, or raise the setting and apply the spec"
        )


def check_same(table: str, what: str, *, rows: tuple[int, int], digests: tuple[str, str]) -> None:
    """Compare the overlay's count and digest, as (expected, found) (S32). Raises: OverlayWrong."""
    if rows[0] != rows[1] or digests[0] != digests[1]:
        raise OverlayWrong(
            f"{table}: {what}: expected {rows[0]:,} rows with digest {digests[0]}, found {rows[1]:,} with {digests[1]}"
            f"; nothing was published. `harness fsck {table}` compares all that is recalled"
        )


def needless(
    made: Mapping[str, int], *, in_reach: Iterable[Sequence[Overlay]], open_moves: Collection[int]
) -> list[str]:
    """Return those of the overlays *made* (by name, with their move) that nothing needs (S10, S11).

    *in_reach* are the overlays of every version that can be read or gone back to, that a lease, a snapshot, or (as its
    base) an open move names. An overlay of an open move may still be published.
    """
    kept = {one.segment for overlays in in_reach for one in overlays}
    return sorted(name for name, move in made.items() if name not in kept and move not in open_moves)


def overlays_from_json(value: Iterable[Mapping[str, Any]]) -> tuple[Overlay, ...]:
    """Read the column `overlays` of a version."""
    return tuple(Overlay(**{**one, "packed": tuple(one.get("packed", ()))}) for one in value)
