"""A column is dropped by two at once, beside ingest, tier, expire and reads of every version.

Of each record it is known which schema decoded it; of each row in a tier, whether it has the column. Version v was
published with a schema, and shows the column of all its rows for as long as it is read, whatever answers for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.schema.schemas import check_schema
from harness_pipelines.protocol.segments import check_unit
from harness_pipelines.protocol.versions import Version, View, answering_version
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.explorer import Step

IDLE, PLANNED, BUILT = range(3)
HAS, LACKS = 1, 2  #: the schemas: with the column, and without it
_THEN = datetime(2026, 1, 1, tzinfo=UTC)


class Published(NamedTuple):
    """A version: its bounds, its schema, and of each row of its lake whether it has the column."""

    stream_hi: int = 0
    buffer_hi: int = 0
    schema: int = HAS
    narrowed: int = 0
    lake: tuple[bool, ...] = ()


class Doing(NamedTuple):
    """What somebody has in hand: a unit, a move or a change; *schema* is that it was begun with."""

    pc: int = IDLE
    schema: int = 0
    base: int = 0  #: version that was built on
    hi: int = 0


class State(NamedTuple):
    end: int  #: of the log
    decoded: tuple[int, ...]  #: by offset the schema of what is buffered
    position: int  #: the schema that the ingest position is at
    floor: int  #: the buffer has nothing below
    versions: tuple[Published, ...]
    unit: Doing
    move: Doing
    changers: tuple[Doing, ...]
    lost: bool  #: a change was published over another one
    mixed: bool  #: a move was published on another schema than it was staged with
    crashes: int


@cache
def _known(rows: tuple[Published, ...], counts: bool) -> tuple[Version, ...]:
    return tuple(
        Version(
            table_id=1,
            version=number,
            stream=View(metadata=str(number), snapshot=number),
            schema_version=one.schema,
            bounds={0: Bounds(start=0, batch_hi=0, stream_hi=one.stream_hi, buffer_hi=one.buffer_hi)},
            move_id=None,
            committed_at=_THEN,
            narrowed=one.narrowed if counts else 0,
        )
        for number, one in enumerate(rows, 1)
    )


@dataclass(frozen=True, slots=True)
class Schemas:
    """*records* records in one partition; *bad* names what is left out or done wrong (see `mutants`)."""

    records: int = 3
    crashes: int = 1
    bad: frozenset[str] = frozenset()
    name: str = "schemas"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "an old version is read from the buffer after the drop": lambda s: self._waits(s) and len(s.versions) > 2,
            "a unit was decoded with the schema before": lambda s: 0 < s.unit.schema < s.position,
            "a move was staged with the schema before": lambda s: 0 < s.move.schema < s.versions[-1].schema,
            "two want to drop it": lambda s: all(one.pc == BUILT for one in s.changers),
        }

    def first(self) -> State:
        return State(
            end=self.records,
            decoded=(),
            position=HAS,
            floor=0,
            versions=(Published(),),
            unit=Doing(),
            move=Doing(),
            changers=(Doing(), Doing()),
            lost=False,
            mixed=False,
            crashes=self.crashes,
        )

    def canonical(self, state: State) -> State:
        return state._replace(changers=tuple(sorted(state.changers)))

    def broken(self, s: State) -> str | None:
        for number, one in enumerate(s.versions, 1):
            if any(schema > one.schema for schema in s.decoded[: one.buffer_hi]):
                return f"S21: version {number} of schema {one.schema} has rows of a later one"
            shown = self._shown(s, number)
            if one.schema == HAS and shown != [True] * one.buffer_hi:
                return f"S2: version {number} shows {shown} of the column, it has {one.buffer_hi} rows"
        cut = next((v.buffer_hi for v in s.versions if v.schema == LACKS), len(s.decoded))
        if any(schema != LACKS for schema in s.decoded[cut:]):
            return f"S22: a record above {cut} was decoded with the schema before"
        if s.lost:
            return "S22: a change was published over another one that it did not know"
        return "S21: a move was published on another schema than it was staged with" if s.mixed else None

    def broke(self, before: State, step: Step[State]) -> str | None:
        del before, step
        return None

    def is_goal(self, s: State) -> bool:
        head = s.versions[-1]
        return head.schema == LACKS and head.stream_hi == s.end == len(s.decoded) and s.changers == (Doing(), Doing())

    def show(self, s: State) -> str:
        head = s.versions[-1]
        return (
            f"v{len(s.versions)} schema {head.schema} lake {[int(x) for x in head.lake]} decoded {list(s.decoded)} "
            f"position {s.position} floor {s.floor} {s.unit} {s.move} {s.changers}"
        )

    def _shown(self, s: State, number: int) -> list[bool | None]:
        """Of each row of version *number* whether a read of now gets the column; None: it does not get the row."""
        own, known = s.versions[number - 1], _known(s.versions, "drops_uncounted" not in self.bad)
        later = answering_version(known[number - 1], known[number:])
        found: list[bool | None] = [*own.lake[: own.stream_hi]]
        for offset in range(own.stream_hi, own.buffer_hi):
            if later is not None:
                found.append(s.versions[later.version - 1].lake[offset])
            else:
                found.append(None if offset < s.floor else s.decoded[offset] == HAS)
        return found

    def _waits(self, s: State) -> bool:
        """Some version of the schema before is answered for by nothing but the buffer."""
        known = _known(s.versions, True)
        old = [v for v in known[:-1] if v.schema_version == HAS]
        return s.versions[-1].stream_hi == self.records and any(
            answering_version(v, known[v.version :]) is None for v in old
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        yield from self._ingest(s)
        yield from self._tier(s)
        yield from self._expire(s)
        if s.position < s.versions[-1].schema:  # only where the publish is torn
            yield Step("evolve", "evolve.set_positions", s._replace(position=s.versions[-1].schema))
        for at, one in enumerate(s.changers):
            for what, then in self._evolve(s, at, one):
                yield Step(f"person{at + 1}", what, then)

    def _ingest(self, s: State) -> Iterator[Step[State]]:
        if s.unit.pc == IDLE and len(s.decoded) < s.end:
            yield Step("ingest", "ingest.poll", s._replace(unit=Doing(PLANNED, s.position, hi=len(s.decoded) + 1)))
        if s.unit.pc == PLANNED:
            key = {"partition": 0, "low": s.unit.hi - 1, "decoded_with": s.unit.schema}
            at = {"buffer_hi": len(s.decoded), "schema_version": s.position}
            refused = build.verdict(lambda: check_unit("t", **key, **at))
            then = s._replace(unit=Doing())
            if refused is None:
                then = then._replace(decoded=(*s.decoded, s.unit.schema))
            yield Step("ingest", f"ingest.commit {refused or ''}".strip(), then)

    def _tier(self, s: State) -> Iterator[Step[State]]:
        head = s.versions[-1]
        if s.move.pc == IDLE:
            for hi in range(head.stream_hi + 1, len(s.decoded) + 1):
                yield Step("tier", f"tier.stage to {hi}", s._replace(move=Doing(BUILT, head.schema, hi=hi)))
        if s.move.pc == BUILT:
            moved = self._moved(s.move.schema, head.schema)
            then = s._replace(move=Doing())
            if moved is None or "move_schema_unchecked" in self.bad:
                rows = tuple(s.decoded[o] == HAS and s.move.schema == HAS for o in range(head.stream_hi, s.move.hi))
                made = head._replace(stream_hi=s.move.hi, buffer_hi=len(s.decoded), lake=(*head.lake, *rows))
                then = then._replace(versions=(*s.versions, made), mixed=s.mixed or moved is not None)
            yield Step("tier", f"tier.publish {moved or ''}".strip(), then)

    def _expire(self, s: State) -> Iterator[Step[State]]:
        known = _known(s.versions, "drops_uncounted" not in self.bad)
        waiting = [v for v in known if answering_version(v, known[v.version :]) is None]
        if "floor_without_old" in self.bad:
            waiting = waiting[-1:]
        floor = min([s.versions[-1].stream_hi, *(v.stream_hi[0] for v in waiting)])
        if floor > s.floor:
            yield Step("expire", f"expire.retire below {floor}", s._replace(floor=floor))

    def _evolve(self, s: State, at: int, one: Doing) -> Iterator[tuple[str, State]]:
        head = s.versions[-1]
        if one.pc == IDLE and head.schema == HAS:
            yield "evolve.plan", _with(s, at, Doing(PLANNED, head.schema))
        if one.pc != IDLE and s.crashes:
            yield "evolve.die", _with(s, at, Doing())._replace(crashes=s.crashes - 1)
        if one.pc == PLANNED:
            yield f"evolve.build on v{len(s.versions)}", _with(s, at, one._replace(pc=BUILT, base=len(s.versions)))
        if one.pc == BUILT:
            moved = self._moved(one.schema, head.schema)
            if moved is not None and "planned_unchecked" not in self.bad:
                yield f"evolve.refused {moved}", _with(s, at, Doing())
            elif one.base != len(s.versions) and "pointer_not_compared" not in self.bad:
                yield "evolve.rebuild", _with(s, at, one._replace(pc=PLANNED))
            else:
                yield "evolve.publish", self._dropped(s, at, one, over=moved is not None)

    def _dropped(self, s: State, at: int, one: Doing, *, over: bool) -> State:
        """One transaction: positions at the new schema, the version; its rows are those of what was built on."""
        head, base = s.versions[-1], s.versions[one.base - 1]
        made = head._replace(schema=LACKS, narrowed=head.narrowed + 1, buffer_hi=len(s.decoded), lake=base.lake)
        position = s.position if "positions_later" in self.bad else LACKS
        lost = s.lost or over or len(base.lake) < made.stream_hi
        return _with(s, at, Doing())._replace(versions=(*s.versions, made), position=position, lost=lost)

    @staticmethod
    def _moved(planned: int, found: int) -> str | None:
        return build.verdict(lambda: check_schema("t", planned=planned, found=found, what="it was planned"))


def _with(s: State, at: int, one: Doing) -> State:
    return s._replace(changers=(*s.changers[:at], one, *s.changers[at + 1 :]))
