"""The changelog between two versions: every record a row, puts and deletes, in offset order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from harness_pipelines.errors import UsageError
from harness_pipelines.protocol.reading.plan import BufferPart, LakePart, ReadPlan, TailPart
from harness_pipelines.protocol.versions import Version, VersionGone

Part = TypeVar("Part", LakePart, BufferPart, TailPart)


def changes_plan(plan: ReadPlan, versions: Sequence[Version], *, since: int) -> ReadPlan:
    """*plan*, of a version or of this instant, with what it has and version *since* had not.

    Per partition that is ``[buffer_hi(since), buffer_hi(plan))``, all of it in the stream view and the buffer, so that
    the changes from 1 to 2 and from 2 to 3 are those from 1 to 3. *versions* are those that can be read, listed after
    *plan* was made. Read it with `Selection.changelog`.
    Raises: VersionGone, UsageError when *plan* is of an older version than *since*.
    """
    had = version_of(plan, versions, since).buffer_hi
    if plan.version < since:
        raise UsageError(
            f"{plan.table}: changes from version {since} to {plan.version}: the first must be the older one"
        )
    low = {p: had.get(p, b.start) for p, b in plan.bounds.items()}
    high = {p: b.buffer_hi for p, b in plan.bounds.items()}
    return log_plan(plan, version_of(plan, versions, plan.version), low=low, high=high)


def version_of(plan: ReadPlan, versions: Sequence[Version], number: int) -> Version:
    """Of *versions*, listed after *plan* was made, the one of this number. Raises: VersionGone."""
    known = {version.version: version for version in versions}
    if number not in known:
        held = f"{min(known)} to {max(known)}" if known else "none"
        raise VersionGone(
            f"{plan.table}: version {number} is no longer retained, so what it had cannot be read ({held} are)"
        )
    return known[number]


def log_plan(plan: ReadPlan, read: Version, *, low: Mapping[int, int], high: Mapping[int, int]) -> ReadPlan:
    """The records ``[low, high)`` of *plan*, which is of version *read*: all of them from stream view and buffer.

    Read it with `Selection.changelog`.
    """
    streamed = {p: b.stream_hi for p, b in plan.bounds.items()}
    stream = LakePart(view=read.tiered, metadata=read.stream.metadata, low=low, high=streamed)
    later = {p: max(low[p], streamed[p]) for p in low}  # what an old version had buffered is in a later stream view
    lake = [_cut(stream, low, high), *(_cut(part, later, high) for part in plan.lake)]
    return replace(
        plan,
        lake=tuple(part for part in lake if part.low),
        overlay=None,  # the changes of recalled rows are in the stream view, as all are
        buffer=plan.buffer and _cut(plan.buffer, low, high),
        tail=plan.tail and _cut(plan.tail, low, high),
    )


def _cut(part: Part, low: Mapping[int, int], high: Mapping[int, int]) -> Part:
    """*part* without what is below *low* or not below *high*."""
    runs = {p: (max(low.get(p, o), o), min(high.get(p, 0), part.high[p])) for p, o in part.low.items()}
    runs = {p: run for p, run in runs.items() if run[0] < run[1]}
    return replace(part, low={p: run[0] for p, run in runs.items()}, high={p: run[1] for p, run in runs.items()})
