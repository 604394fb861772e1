"""The read plan: the files and segments that a read opens, in any engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.ranges import intersection
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.schema.schemas import Other
from harness_pipelines.protocol.versions import ViewName

PLAN_FORMAT = 5  #: since segments say which columns they have `packed`


class UnknownPlanFormat(HarnessError):
    """The read plan was made by a later harness."""

    way_on = "install the version of the harness that made the plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRef:
    """One buffer table, by its name in the schema ``harness_buffer``, and the schema its rows have."""

    name: str
    schema_version: int | None  #: that its rows were decoded with; None: of recalled rows, each of which says its own
    others: tuple[Other, ...] = ()  #: the plan's columns that its rows have otherwise
    #: Its columns, by their names there, that are no columns of the table but keys `f0`, `f1`, ... in `_harness_rest`.
    packed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePart:
    """Rows ``[low, high)`` per partition of the view that one metadata file pins."""

    metadata: str  #: location of the immutable Iceberg metadata JSON
    low: Mapping[int, int]
    high: Mapping[int, int]
    view: ViewName = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferPart:
    """Rows ``[low, high)`` per partition, all of them in the named segments."""

    segments: tuple[SegmentRef, ...]
    low: Mapping[int, int]
    high: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayPart:
    """Rows ``[low, high)`` per partition of the batch view that were recalled: all of them in the named segments."""

    segments: tuple[SegmentRef, ...]
    low: Mapping[int, int]
    high: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TailPart:
    """Records ``[low, high)`` per partition that only Kafka has."""

    topic: str
    schema_version: int  #: that they are decoded with
    low: Mapping[int, int]
    high: Mapping[int, int]


Part = TypeVar("Part", LakePart, BufferPart, OverlayPart, TailPart)


def ranges_of(part: LakePart | BufferPart | OverlayPart | TailPart) -> dict[int, tuple[int, int]]:
    """The offsets of a part of a plan."""
    return {p: (low, part.high[p]) for p, low in part.low.items()}


def part_within(part: Part | None, ranges: Ranges) -> Part | None:
    """*part* with its offsets in *ranges* alone; None: it has none of these."""
    both = {} if part is None else intersection(ranges_of(part), ranges)
    if part is None or not both:
        return None
    low, high = ({p: run[at] for p, run in both.items()} for at in (0, 1))
    return replace(part, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """A consistent cut of one table: disjoint parts, each with its own bounds.

    ``lake`` holds the batch view below ``batch_hi``, the stream view below ``stream_hi``, and for an old version the
    stream view that its buffered rows have moved to since, as far as there are any. ``overlay`` holds the rows of the
    batch view that were recalled to Postgres: with it the batch view is whole. A reader filters every part by its
    bounds; a missing file or segment is an error.
    """

    table: str
    table_id: int
    version: int
    schema_version: int
    fields: tuple[Mapping[str, Any], ...]  #: Iceberg's JSON form of the user's columns, with field ids
    bounds: Mapping[int, Bounds]
    lake: tuple[LakePart, ...]
    buffer: BufferPart | None
    tail: TailPart | None
    lease_id: str
    lease_until: datetime
    key: tuple[str, ...] = ()  #: of a keyed table: the newest row per value of these columns stands for all
    overlay: OverlayPart | None = None
    format: int = PLAN_FORMAT

    def to_json(self) -> dict[str, Any]:
        """The plan as ``explain --json`` prints it and other engines read it."""
        return {
            "format": self.format,
            "table": self.table,
            "table_id": self.table_id,
            "version": self.version,
            "schema_version": self.schema_version,
            "fields": [dict(field) for field in self.fields],
            "key": list(self.key),
            "bounds": {str(p): self.bounds[p].to_json() for p in sorted(self.bounds)},
            "lake": [{"view": s.view, "metadata": s.metadata, **_ranges(s.low, s.high)} for s in self.lake],
            "overlay": self.overlay and _segments(self.overlay),
            "buffer": self.buffer and _segments(self.buffer),
            "tail": self.tail and _tail(self.tail),
            "lease_id": self.lease_id,
            "lease_until": self.lease_until.isoformat(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ReadPlan:
        """Read a plan back. Raises: UnknownPlanFormat."""
        if value.get("format") != PLAN_FORMAT:
            raise UnknownPlanFormat(f"read plan of format {value.get('format')!r}; this harness reads {PLAN_FORMAT}")
        overlay, buffer, tail = value["overlay"], value["buffer"], value["tail"]
        return cls(
            table=value["table"],
            table_id=value["table_id"],
            version=value["version"],
            schema_version=value["schema_version"],
            fields=tuple(value["fields"]),
            key=tuple(value["key"]),
            bounds={int(p): Bounds(**b) for p, b in value["bounds"].items()},
            lake=tuple(LakePart(view=s["view"], metadata=s["metadata"], **_vectors(s)) for s in value["lake"]),
            overlay=overlay and OverlayPart(segments=_named(overlay), **_vectors(overlay)),
            buffer=buffer and BufferPart(segments=_named(buffer), **_vectors(buffer)),
            tail=tail and TailPart(topic=tail["topic"], schema_version=tail["schema_version"], **_vectors(tail)),
            lease_id=value["lease_id"],
            lease_until=datetime.fromisoformat(value["lease_until"]),
        )


def _segments(part: OverlayPart | BufferPart) -> dict[str, Any]:
    names = [asdict(s) for s in part.segments]
    return {"segments": names, **_ranges(part.low, part.high)}


def _tail(part: TailPart) -> dict[str, Any]:
    return {"topic": part.topic, "schema_version": part.schema_version, **_ranges(part.low, part.high)}


def _named(value: Mapping[str, Any]) -> tuple[SegmentRef, ...]:
    return tuple(
        SegmentRef(
            name=segment["name"],
            schema_version=segment["schema_version"],
            others=tuple(Other(**one) for one in segment["others"]),
            packed=tuple(segment["packed"]),
        )
        for segment in value["segments"]
    )


def _ranges(low: Mapping[int, int], high: Mapping[int, int]) -> dict[str, Any]:
    return {"ranges": {str(p): [low[p], high[p]] for p in sorted(low)}}


def _vectors(value: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    ranges = {int(p): r for p, r in value["ranges"].items()}
    return {"low": {p: r[0] for p, r in ranges.items()}, "high": {p: r[1] for p, r in ranges.items()}}
