"""What the words `buffer` and `views` of a spec mean for stages and reads: one object for each word.

Code that differs for a table without a buffer, or without one of the views, asks these objects. The words
themselves are compared where a spec is checked, and nowhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import EFFECTS, ONE_VIEW, Effect, ViewName
from harness_pipelines.spec.table import TableSpec

Hot = Literal["buffer", "tail"]  #: the tier above the lake


class Intake(ABC):
    """How records get from the log into the table."""

    buffered: ClassVar[bool]  #: whether Postgres has the rows that the lake does not have yet
    reader: ClassVar[Stage]  #: the stage that takes records from the log
    hot: ClassVar[Hot]

    @abstractmethod
    def end(self, bounds: Bounds) -> int:
        """The offset from which on the log is read next: the table has everything below it."""

    @abstractmethod
    def waiting(self, *, buffered: int, unread: int) -> Mapping[Stage, int]:
        """Offsets that wait for each stage, of those in the buffer and those that only the log has."""

    def ends(self, bounds: Mapping[int, Bounds]) -> dict[int, int]:
        """`end` of each partition."""
        return {partition: self.end(of) for partition, of in bounds.items()}


class ByBuffer(Intake):
    """`buffer: postgres`: ingest takes records into Postgres, tier moves them into the lake."""

    buffered = True
    reader = Stage.INGEST
    hot: ClassVar[Hot] = "buffer"

    def end(self, bounds: Bounds) -> int:
        return bounds.buffer_hi

    def waiting(self, *, buffered: int, unread: int) -> Mapping[Stage, int]:
        return {Stage.INGEST: unread, Stage.TIER: buffered}


class ByLog(Intake):
    """`buffer: none`: tier takes records into the lake; a revert sets back from where on the log is read."""

    buffered = False
    reader = Stage.TIER
    hot: ClassVar[Hot] = "tail"

    def end(self, bounds: Bounds) -> int:
        return bounds.stream_hi

    def waiting(self, *, buffered: int, unread: int) -> Mapping[Stage, int]:
        return {Stage.INGEST: 0, Stage.TIER: buffered + unread}


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSet:
    """The views of a table, and what its stages do to them."""

    word: str  #: of the spec
    effects: Mapping[Stage, Effect]  #: of the stages that the table has

    @property
    def names(self) -> tuple[ViewName, ...]:
        return tuple(dict.fromkeys(effect.view for effect in self.effects.values()))

    @property
    def tiered(self) -> ViewName:
        """The view that tier writes."""
        return self.effects[Stage.TIER].view

    @property
    def clustered(self) -> bool:
        """Whether rows are found by the columns that the batch view is clustered by."""
        return "batch" in self.names

    @property
    def mixed(self) -> bool:
        """Whether tier writes the batch view, so that a file has rows of several partitions."""
        return self.tiered == "batch"

    @property
    def merged(self) -> bool:
        """Whether otree copies the rows of the stream view into a batch view beside it."""
        return len(self.names) > 1


_INTAKES: Mapping[str, Intake] = {"postgres": ByBuffer(), "none": ByLog()}
VIEW_SETS: Mapping[str, ViewSet] = {
    "both": ViewSet(word="both", effects=EFFECTS),
    "stream": ViewSet(word="stream", effects={s: effect for s, effect in EFFECTS.items() if effect.view == "stream"}),
    "batch": ViewSet(word="batch", effects=ONE_VIEW),
}


def intake_of(spec: TableSpec) -> Intake:
    """By its word `buffer`."""
    return _INTAKES[spec.buffer_kind]


def view_set_of(spec: TableSpec) -> ViewSet:
    """By its word `views`."""
    return VIEW_SETS[spec.views]
