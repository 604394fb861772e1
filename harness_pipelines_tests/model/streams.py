"""A stream that is open while the spec is changed, ingest comes along behind it, and held records are put back.

One partition. The reader is ahead of ingest, by the spec that it knows; what ingest makes of a record is said by the
spec that ingest knows when it comes there. A consumer keeps the reader's position with what it was given.

That a row which the reader gave is refused by ingest later, since the spec got stricter between, no rule forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness_pipelines_tests.model.explorer import Step

EARLY = 1  #: the record that only the relaxed spec takes


class Reader(NamedTuple):
    """In Kafka if *live*, else about to read what the table has."""

    live: bool = False
    strict: bool = True  #: the spec that it knows
    at: int = 0
    waits: bool = False  #: at a record that makes no row by its spec
    given: tuple[int, ...] = ()
    told: frozenset[int] = frozenset()  #: corrections
    seen: frozenset[int] = frozenset()  #: corrections of the version that it is at


class State(NamedTuple):
    strict: bool  #: the spec in force
    applies: int  #: that may still come
    ingested: int
    knows_strict: bool  #: ingest
    held: frozenset[int]
    put_back: frozenset[int]
    reader: Reader


@dataclass(frozen=True, slots=True)
class Streams:
    """*bad* names what is left out or done wrong (see `mutants`)."""

    records: int = 3
    applies: int = 2
    bad: frozenset[str] = frozenset()
    name: str = "streams: two applied specs, a record that is held and put back"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "the reader is ahead of ingest": lambda s: s.reader.at > s.ingested,
            "the reader waits, and the spec in force takes the record": lambda s: s.reader.waits and not s.strict,
            "a record that the reader waits at became a row": lambda s: (
                s.reader.waits and s.ingested > s.reader.at and s.reader.at not in s.held
            ),
            "a record that the reader waits at was refused": lambda s: s.reader.waits and s.reader.at in s.held,
            "a record behind the reader was put back": lambda s: bool(s.put_back - s.reader.seen) and s.reader.at > 1,
            "a correction was told": lambda s: bool(s.reader.told),
        }

    def first(self) -> State:
        return State(True, self.applies, 0, True, frozenset(), frozenset(), Reader())

    def canonical(self, state: State) -> State:
        return state

    def broken(self, s: State) -> str | None:
        r = s.reader
        if list(r.given) != sorted(set(r.given)):
            return f"S18: given out of order, or twice: {list(r.given)}"
        for at in range(min(r.at, s.ingested)):
            is_row, has_it = at not in s.held, at in r.given or at in r.told
            if is_row and not has_it and at not in s.put_back - r.seen:
                return f"S18: record {at} is a row, the reader is at {r.at} and never gave it"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        if step.then.reader.at < before.reader.at:
            return f"S4: the reader went back from {before.reader.at} to {step.then.reader.at}"
        return None

    def is_goal(self, s: State) -> bool:
        return s.reader.at == s.ingested == self.records and s.reader.seen == s.put_back

    def show(self, s: State) -> str:
        spec = "strict" if s.strict else "relaxed"
        return f"{spec} ingested {s.ingested} held {sorted(s.held)} put back {sorted(s.put_back)} {s.reader}"

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        if s.applies:
            yield Step("person", "apply", s._replace(strict=not s.strict, applies=s.applies - 1))
        for at in sorted(s.held) if not s.strict else ():
            back = s._replace(held=s.held - {at}, put_back=s.put_back | {at})
            yield Step("person", "replay", back)
        if s.knows_strict != s.strict:
            yield Step("w1", "ingest.refresh", s._replace(knows_strict=s.strict))
        if s.ingested < self.records:
            refused = {s.ingested} if self._makes_no_row(s.ingested, s.knows_strict) else set()
            yield Step("w1", "ingest.commit", s._replace(ingested=s.ingested + 1, held=s.held | refused))
        for what, then in self._read(s, s.reader):
            yield Step("reader", what, s._replace(reader=then))

    def _makes_no_row(self, at: int, strict: bool) -> bool:
        return at == EARLY and strict

    def _read(self, s: State, r: Reader) -> Iterator[tuple[str, Reader]]:
        passed = r.at + (r.waits and "token_passes_what_waits" in self.bad)
        if r.live:  # it ends, or its lease does, and another one begins at its token
            yield "stream.resume", r._replace(live=False, waits=False, at=passed)
        if not r.live:
            yield "stream.leg", self._leg(s, r)
            return
        if r.strict != s.strict or s.put_back - r.seen:
            yield "stream.look", r._replace(live=False, waits=False)
        if r.waits:
            if s.ingested > r.at:
                yield "stream.judged", self._judged(s, r)
        elif r.at < self.records:
            yield "stream.poll", self._poll(r)

    def _leg(self, s: State, r: Reader) -> Reader:
        """What the newest version and its buffer have: corrections of what went before, then rows in order."""
        told = frozenset(at for at in s.put_back - r.seen if at < r.at)
        low = 0 if "leg_from_the_start" in self.bad else r.at
        rows = tuple(at for at in range(low, s.ingested) if at not in s.held)
        end = self.records if "leg_to_the_end_of_the_log" in self.bad else max(r.at, s.ingested)
        return Reader(
            live=True,
            strict=s.strict,
            at=end,
            given=r.given + rows,
            told=r.told if "corrections_not_told" in self.bad else r.told | told,
            seen=s.put_back,
        )

    def _judged(self, s: State, r: Reader) -> Reader:
        if "goes_on_behind_what_waited" in self.bad:
            return r._replace(waits=False, at=r.at + 1)
        return self._leg(s, r)

    def _poll(self, r: Reader) -> Reader:
        if not self._makes_no_row(r.at, r.strict):
            return r._replace(at=r.at + 1, given=(*r.given, r.at))
        if "leaves_out_what_does_not_fit" in self.bad:
            return r._replace(at=r.at + 1)
        return r._replace(waits=True)
