"""A quarantined record is put back by two at once, beside tier, reverts and reads of old versions.

The record at `ODD` is refused by ingest. Version v pins the rows of the stream view, offsets; one that is there twice
is there twice. What a version shows was fixed when it was published, whatever answers for its buffered rows later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol.changes.corrections import restoring_waits, waiting
from harness_pipelines.protocol.versions import answering_version
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import Published
from harness_pipelines_tests.model.explorer import Step

ODD = 0  #: the offset of the record that is refused
IDLE, LOOKED, BUILT = range(3)


class Replayer(NamedTuple):
    pc: int = IDLE
    base: int = 0  #: the version that its metadata is built on


class State(NamedTuple):
    end: int  #: of the log
    buffer_hi: int
    versions: tuple[Published, ...]
    put_back: tuple[bool, ...]  #: of each version: the record is a row of it
    held: bool  #: the record is in quarantine
    replayers: tuple[Replayer, ...]
    reverts: int
    crashes: int


@cache
def _shown(rows: tuple[Published, ...], number: int) -> tuple[int, ...]:
    """The offsets that a read of version *number* shows now."""
    known = build.versions(rows)
    own, low = rows[number - 1], rows[number - 1].stream_hi[0]
    found = [o for o in own.files if o < low]
    later = answering_version(known[number - 1], known[number:])
    if later is None:
        return tuple(sorted([*found, *(o for o in range(low, own.buffer_hi[0]) if o != ODD)]))
    of_later = rows[later.version - 1].files
    return tuple(sorted([*found, *(o for o in of_later if low <= o < own.buffer_hi[0])]))


@dataclass(frozen=True, slots=True)
class Corrections:
    """*records* records in one partition; *bad* names what is left out or done wrong (see `mutants`)."""

    records: int = 3
    reverts: int = 1
    crashes: int = 1
    bad: frozenset[str] = frozenset()
    name: str = "corrections"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "the record is a row again": lambda s: s.put_back[-1],
            "a version from before is read by way of one from after": lambda s: any(
                s.put_back) and _answered_across(s),
            "a revert took the record back to quarantine": lambda s: s.held and any(s.put_back),
            "two want to put it back": lambda s: all(r.pc == BUILT for r in s.replayers),
            "a revert brought the record back": lambda s: bool(s.versions[-1].revert_of) and s.put_back[-1],
        }  # fmt: skip

    def first(self) -> State:
        return State(
            end=self.records,
            buffer_hi=0,
            versions=(Published((0,), (0,), 1),),
            put_back=(False,),
            held=False,
            replayers=(Replayer(), Replayer()),
            reverts=self.reverts,
            crashes=self.crashes,
        )

    def canonical(self, state: State) -> State:
        return state._replace(replayers=tuple(sorted(state.replayers)))

    def broken(self, s: State) -> str | None:
        head = s.versions[-1]
        if len(set(head.files)) < len(head.files):
            return f"S1: a row is there twice: {list(head.files)}"
        for number, with_record in enumerate(s.put_back, 1):
            bounds = s.versions[number - 1]
            wanted = [o for o in range(bounds.buffer_hi[0]) if o != ODD or with_record]
            if (shown := list(_shown(s.versions, number))) != wanted:
                return f"S2: version {number} shows {shown}, it was published with {wanted}"
        if s.buffer_hi > ODD and s.held == (ODD in head.files):
            return f"S31: the record is {'in quarantine and a row' if s.held else 'neither in quarantine nor a row'}"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        del before, step
        return None

    def is_goal(self, s: State) -> bool:
        idle = all(r.pc == IDLE for r in s.replayers)
        return idle and s.versions[-1].stream_hi[0] == s.end and s.put_back[-1]

    def show(self, s: State) -> str:
        head = s.versions[-1]
        return (
            f"v{len(s.versions)} lake {list(head.files)} below {head.stream_hi[0]} buffer to {s.buffer_hi} "
            f"{'held' if s.held else ''} {[tuple(r) for r in s.replayers]}"
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        if s.buffer_hi < s.end:
            then = s._replace(buffer_hi=s.buffer_hi + 1, held=s.held or s.buffer_hi == ODD)
            yield Step("ingest", f"ingest.commit {s.buffer_hi}", then)
        low = s.versions[-1].stream_hi[0]
        for high in range(low + 1, s.buffer_hi + 1):
            moved = (*s.versions[-1].files, *(o for o in range(low, high) if o != ODD))
            made = Published((high,), (s.buffer_hi,), len(s.versions) + 1, moved)
            yield Step("tier", f"tier.publish to {high}", _published(s, made, s.put_back[-1] and low > ODD))
        for target in range(1, len(s.versions) if s.reverts else 1):
            yield from self._revert(s, target)
        for at, one in enumerate(s.replayers):
            yield from self._replay(s, at, one)

    def _revert(self, s: State, target: int) -> Iterator[Step[State]]:
        old = s.versions[target - 1]
        if s.put_back[target - 1] and "restored_unchecked" not in self.bad and self._waits(s):
            return
        made = old._replace(snapshot=len(s.versions) + 1, buffer_hi=(s.buffer_hi,), revert_of=target)
        then = _published(s, made, s.put_back[target - 1])._replace(reverts=s.reverts - 1)
        if s.buffer_hi > ODD and "revert_keeps_records" not in self.bad:
            then = then._replace(held=ODD not in made.files)
        yield Step("operator", f"revert.publish to v{target}", then)

    @staticmethod
    def _waits(s: State) -> bool:
        """Would a version that may be read show the record if it were a row again? All of them may be read."""
        known = build.versions(s.versions)
        return restoring_waits([(0, ODD)], table="t", readable=known, versions=known) is not None

    def _replay(self, s: State, at: int, one: Replayer) -> Iterator[Step[State]]:
        who = f"person{at + 1}"
        if one.pc == IDLE and s.held:
            yield Step(who, "replay.look", _with(s, at, Replayer(LOOKED)))
        if one.pc != IDLE and s.crashes:
            yield Step(who, "replay.die", _with(s, at, Replayer())._replace(crashes=s.crashes - 1))
        if one.pc == LOOKED:
            if ODD in s.versions[-1].files and "free_unchecked" not in self.bad:
                yield Step(who, "replay.refused", _with(s, at, Replayer()))
            else:
                yield Step(who, f"replay.build on v{len(s.versions)}", _with(s, at, Replayer(BUILT, len(s.versions))))
        if one.pc == BUILT:
            if one.base != len(s.versions) and "pointer_not_compared" not in self.bad:
                yield Step(who, "replay.rebuild", _with(s, at, Replayer(LOOKED)))
            elif not self._may(s):
                yield Step(who, "replay.wait", _with(s, at, Replayer()))
            else:
                base = s.versions[one.base - 1]
                head = s.versions[-1]
                rows = tuple(sorted((ODD, *base.files)))
                made = head._replace(files=rows, snapshot=len(s.versions) + 1, buffer_hi=(s.buffer_hi,), revert_of=0)
                then = _with(_published(s, made, True), at, Replayer())
                yield Step(who, f"replay.publish v{len(s.versions) + 1}", then._replace(held=False))

    def _may(self, s: State) -> bool:
        """The record is held, and no version that may be read waits for one to come. All of them may be read."""
        if not s.held and "held_unchecked" not in self.bad:
            return False
        known = build.versions(s.versions)
        readable = () if "old_reads_ignored" in self.bad else known[:-1]
        return not waiting([(0, ODD)], table="t", head=known[-1], readable=readable, versions=known)


def _published(s: State, made: Published, with_record: bool) -> State:
    return s._replace(versions=(*s.versions, made), put_back=(*s.put_back, with_record))


def _with(s: State, at: int, one: Replayer) -> State:
    return s._replace(replayers=(*s.replayers[:at], one, *s.replayers[at + 1 :]))


def _answered_across(s: State) -> bool:
    """Some version without the record is answered for by one that has it."""
    known = build.versions(s.versions)
    for number, with_record in enumerate(s.put_back, 1):
        later = answering_version(known[number - 1], known[number:])
        if not with_record and later is not None and later.version != number and s.put_back[later.version - 1]:
            return True
    return False
