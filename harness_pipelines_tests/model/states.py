"""States of consumers: each commit pins the version of a keyed table that shows its rows as of offsets per partition.

Offsets may be ahead of the lake in one partition, and behind what is merged in another one. A commit is one step, as it
holds the trim lock. Every version is older than the grace, retention may have ended for all but the head. What a
version shows is asked as its readers ask it; what a commit compares is what `harness.shows_cut` says in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

from harness_pipelines.protocol.reading.reads import Cut, cut_of_version
from harness_pipelines.protocol.segments import HasMaxHi
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import Published, Vec
from harness_pipelines_tests.model.explorer import Step


class Pin(NamedTuple):
    """What the last commit of the state pins."""

    version: int
    high: Vec  #: its offsets


class State(NamedTuple):
    buffer_hi: Vec
    dropped: Vec  #: the buffer has nothing below
    versions: tuple[Published, ...]
    retained_from: int
    pin: Pin | None
    commits: int


@cache
def _missing(rows: tuple[Published, ...], pin: Pin, dropped: Vec) -> Vec:
    """The partitions of which a reader of the state does not find all that it had buffered."""
    old = build.pinned(rows, (pin,))[0]
    cut: Cut[HasMaxHi] = cut_of_version(old, build.versions(rows)[pin.version :], ())
    if cut.answered_by is not None:
        return ()
    return tuple(p for p, b in sorted(cut.bounds.items()) if b.stream_hi < b.buffer_hi and dropped[p] > b.stream_hi)


def _reaches(row: Published, high: Vec) -> bool:
    return all(has >= wanted for has, wanted in zip(row.stream_hi, high, strict=True))


@dataclass(frozen=True, slots=True)
class States:
    """*records* by partition; *bad* names what is left out or done wrong (see `mutants`)."""

    records: Vec = (2, 1)
    commits: int = 1
    bad: frozenset[str] = frozenset()
    name: str = "states: uneven offsets"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a state is ahead of the lake in one partition and behind what is merged in another": lambda s: (
                s.pin is not None
                and s.pin.high[0] > s.versions[-1].stream_hi[0]
                and s.pin.high[1] < s.versions[-1].batch_hi[1]
            ),
            "a later version answers for what a state had buffered": lambda s: (
                s.pin is not None
                and not _reaches(s.versions[s.pin.version - 1], s.pin.high)
                and s.dropped[0] > s.versions[s.pin.version - 1].stream_hi[0]
            ),
            "a state outlives the retention of its version": lambda s: (
                s.pin is not None and s.pin.version < s.retained_from
            ),
            "the newest version that is merged no further does not show the cut": lambda s: any(
                (found := self._merged_no_further(s, high)) is not None and not self._shows(s, Pin(found, high))
                for high in self._offsets(s)
            ),
        }

    def first(self) -> State:
        """The last partition is in the lake; nothing is merged."""
        none = tuple(0 for _ in self.records)
        moved = (*none[:-1], self.records[-1])
        return State(moved, none, (Published(moved, moved, 1, batch_hi=none, batch_snapshot=1),), 1, None, self.commits)

    def canonical(self, state: State) -> State:
        """All versions that no step reads again count as the same one."""
        below = min(state.retained_from, state.pin.version if state.pin else state.retained_from) - 1
        return state._replace(versions=(self.first().versions * below + state.versions[below:]))

    # -- safety and liveness --------------------------------------------------------------------------------

    def broken(self, s: State) -> str | None:
        if any(low > hi for low, hi in zip(s.dropped, s.versions[-1].stream_hi, strict=True)):
            return f"S13: the buffer's rows below {s.dropped} are gone, the lake does not have them"
        if s.pin is None:
            return None
        row = s.versions[s.pin.version - 1]
        for p, high in enumerate(s.pin.high):
            if high > s.buffer_hi[p]:
                return f"S2: the state has partition {p} below {high}, ingest is at {s.buffer_hi[p]}"
            if row.batch_hi[p] > high:
                return f"S2: version {s.pin.version} has merged partition {p} beyond {high}, where the state ends"
        if gone := _missing(s.versions, s.pin, s.dropped):
            return f"S10: buffered rows of partition {gone[0]} are gone, the state below {s.pin.high} needs them"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        del before, step
        return None

    def is_goal(self, s: State) -> bool:
        """All is merged, no state is left, and the buffer keeps nothing for one."""
        head = s.versions[-1]
        return s.pin is None and head.batch_hi == self.records == s.dropped

    def show(self, s: State) -> str:
        head = s.versions[-1]
        at = f"v{len(s.versions)} batch_hi {head.batch_hi} stream_hi {head.stream_hi} buffer_hi {s.buffer_hi}"
        pinned = f" state v{s.pin.version} below {s.pin.high}" if s.pin else ""
        return f"{at} retained from v{s.retained_from}, buffered from {s.dropped}{pinned}"

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        head, number = s.versions[-1], len(s.versions) + 1
        for p, records in enumerate(self.records):
            if s.buffer_hi[p] < records:
                yield Step("ingest", f"ingest.commit p{p}", s._replace(buffer_hi=_one_more(s.buffer_hi, p)))
            if head.stream_hi[p] < s.buffer_hi[p]:
                made = head._replace(stream_hi=_one_more(head.stream_hi, p), buffer_hi=s.buffer_hi)
                yield Step("tier", f"tier.publish p{p} v{number}", s._replace(versions=(*s.versions, made)))
        if head.batch_hi != head.stream_hi:
            made = head._replace(batch_hi=head.stream_hi, buffer_hi=s.buffer_hi)
            yield Step("otree", f"otree.publish v{number}", s._replace(versions=(*s.versions, made)))
        yield from self._trim(s)
        if s.pin is not None:
            yield Step("person", "state.drop", s._replace(pin=None))
        for high in self._offsets(s) if s.commits else ():
            if (version := self._merged_no_further(s, high)) is None:
                continue  # the commit is refused
            pin = Pin(version, high)
            if self._shows(s, pin) or "cut_unshown" in self.bad:
                then = s._replace(pin=pin, commits=s.commits - 1)
                yield Step("consumer", f"state.commit below {high} v{version}", then)

    def _trim(self, s: State) -> Iterator[Step[State]]:
        pins = (s.pin,) if s.pin is not None and "floor_ignores_states" not in self.bad else ()
        for aged in (0, len(s.versions)):
            kept = max(build.kept_from(s.versions, aged), s.retained_from)
            first = min(kept, *(pin.version for pin in pins), len(s.versions))
            floor = build.floor(s.versions, len(s.versions), (), aged, first=first, named=pins)
            dropped = tuple(map(max, floor, s.dropped))
            trimmed = s._replace(retained_from=kept, dropped=dropped)
            if trimmed != s:
                yield Step("expire", f"expire.trim below {dropped}, retained from v{kept}", trimmed)

    # -- what a commit of a state compares ------------------------------------------------------------------

    def _offsets(self, s: State) -> Iterator[Vec]:
        ends = self.records if "ahead_of_ingest" in self.bad else s.buffer_hi
        return product(*(range(hi + 1) for hi in ends))

    def _merged_no_further(self, s: State, high: Vec) -> int | None:
        """The newest retained version of which nothing is merged beyond *high*."""
        for number in range(len(s.versions), s.retained_from - 1, -1):
            merged = s.versions[number - 1].batch_hi
            if "merged_beyond" in self.bad or all(hi <= end for hi, end in zip(merged, high, strict=True)):
                return number
        return None

    @staticmethod
    def _shows(s: State, pin: Pin) -> bool:
        """By a later version that reaches the offsets, or by the buffer until there is one."""
        if any(_reaches(row, pin.high) for row in s.versions[pin.version :]):
            return True
        ends = zip(s.versions[pin.version - 1].stream_hi, pin.high, s.dropped, strict=True)
        return all(low >= high or floor <= low for low, high, floor in ends)


def _one_more(values: Vec, p: int) -> Vec:
    return (*values[:p], values[p] + 1, *values[p + 1 :])
