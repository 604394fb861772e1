"""A row is replaced by two who decode its range again, beside tier, compaction, reverts and reads of old versions.

Version v pins the rows of the stream view, by offset; the record at `ODD` is the row `ODD` until `NEW` replaces it.
What a version shows was fixed when it was published, whatever answers for its buffered rows later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol.changes.corrections import Kind, change_of, restoring_waits, waiting
from harness_pipelines.protocol.lake.files import check_untouched
from harness_pipelines.protocol.versions import answering_version
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import Published
from harness_pipelines_tests.model.explorer import Step

ODD, NEW = 0, 100  #: the row that is replaced, and the one that it becomes, at the same offset
IDLE, LOOKED, BUILT = range(3)


class Replayer(NamedTuple):
    pc: int = IDLE
    base: int = 0  #: the version that its metadata is built on


class Compaction(NamedTuple):
    base: int = 0  #: 0: none is open


class State(NamedTuple):
    end: int  #: of the log
    buffer_hi: int
    versions: tuple[Published, ...]
    replaced: tuple[bool, ...]  #: of each version: the row is the new one
    files: tuple[int, ...]  #: of each version: which file has the row; negative: part of it is hidden
    replayers: tuple[Replayer, ...]
    compaction: Compaction
    reverts: int
    crashes: int


def _offset(row: int) -> int:
    return ODD if row == NEW else row


@cache
def _shown(rows: tuple[Published, ...], number: int) -> tuple[int, ...]:
    """The rows that a read of version *number* shows now."""
    known = build.versions(rows)
    own, low = rows[number - 1], rows[number - 1].stream_hi[0]
    found = [row for row in own.files if _offset(row) < low]
    later = answering_version(known[number - 1], known[number:])
    if later is None:
        return tuple(sorted([*found, *range(low, own.buffer_hi[0])]))
    of_later = rows[later.version - 1].files
    return tuple(sorted([*found, *(row for row in of_later if low <= _offset(row) < own.buffer_hi[0])]))


@dataclass(frozen=True, slots=True)
class Ranges:
    """*records* records in one partition; *bad* names what is left out or done wrong (see `mutants`)."""

    records: int = 3
    reverts: int = 1
    crashes: int = 1
    bad: frozenset[str] = frozenset()
    name: str = "ranges"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "the row is the new one": lambda s: s.replaced[-1],
            "a revert brought the old row back": lambda s: any(s.replaced) and not s.replaced[-1],
            "a revert brought the new row back": lambda s: bool(s.versions[-1].revert_of) and s.replaced[-1],
            "two want to replace it": lambda s: all(r.pc == BUILT for r in s.replayers),
            "a compaction meets a file with a hidden row": lambda s: (
                s.compaction.base > 0 and s.files[s.compaction.base - 1] > 0 > s.files[-1]
            ),
            "hidden rows are gone": lambda s: s.replaced[-1] and s.files[-1] > 0,
        }

    def first(self) -> State:
        return State(
            end=self.records,
            buffer_hi=0,
            versions=(Published((0,), (0,), 1),),
            replaced=(False,),
            files=(1,),
            replayers=(Replayer(), Replayer()),
            compaction=Compaction(),
            reverts=self.reverts,
            crashes=self.crashes,
        )

    def canonical(self, state: State) -> State:
        return state._replace(replayers=tuple(sorted(state.replayers)))

    def broken(self, s: State) -> str | None:
        head = s.versions[-1]
        offsets = [_offset(row) for row in head.files]
        if len(set(offsets)) < len(offsets):
            return f"S1: a row is there twice: {list(head.files)}"
        for number, is_new in enumerate(s.replaced, 1):
            taken = s.versions[number - 1].buffer_hi[0]
            wanted = sorted(NEW if is_new and o == ODD else o for o in range(taken))
            if (shown := list(_shown(s.versions, number))) != wanted:
                return f"S2: version {number} shows {shown}, it was published with {wanted}"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        if not step.what.startswith("compact.publish"):
            return None
        was, now = (sorted(s.versions[-1].files) for s in (before, step.then))
        return None if was == now else f"S20: a compaction made {now} of {was}"

    def is_goal(self, s: State) -> bool:
        idle = all(r.pc == IDLE for r in s.replayers) and not s.compaction.base
        return idle and s.versions[-1].stream_hi[0] == s.end and s.replaced[-1]

    def show(self, s: State) -> str:
        head = s.versions[-1]
        return (
            f"v{len(s.versions)} lake {list(head.files)} below {head.stream_hi[0]} buffer to {s.buffer_hi} "
            f"file {s.files[-1]} compaction on v{s.compaction.base} {[tuple(r) for r in s.replayers]}"
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        if s.buffer_hi < s.end:
            yield Step("ingest", f"ingest.commit {s.buffer_hi}", s._replace(buffer_hi=s.buffer_hi + 1))
        low = s.versions[-1].stream_hi[0]
        for high in range(low + 1, s.buffer_hi + 1):
            rows, is_new = (*s.versions[-1].files, *range(low, high)), s.replaced[-1] and low > ODD
            made = Published((high,), (s.buffer_hi,), len(s.versions) + 1, rows)
            yield Step("tier", f"tier.publish to {high}", _published(s, made, is_new, s.files[-1]))
        for target in range(1, len(s.versions) if s.reverts else 1):
            old = s.versions[target - 1]
            if s.replaced[target - 1] and "restored_unchecked" not in self.bad and self._waits(s):
                continue
            made = old._replace(snapshot=len(s.versions) + 1, buffer_hi=(s.buffer_hi,), revert_of=target)
            then = _published(s, made, s.replaced[target - 1], s.files[target - 1])
            closed = then._replace(reverts=s.reverts - 1, compaction=Compaction())
            yield Step("operator", f"revert.publish to v{target}", closed)
        yield from self._compact(s)
        for at, one in enumerate(s.replayers):
            yield from self._replay(s, at, one)

    @staticmethod
    def _waits(s: State) -> bool:
        """Would a version that may be read show the new row if it came back? All of them may be read."""
        known = build.versions(s.versions)
        return restoring_waits([(0, ODD)], table="t", readable=known, versions=known) is not None

    def _compact(self, s: State) -> Iterator[Step[State]]:
        """It writes the file of the row again, as its base has it, once."""
        head, base = s.versions[-1], s.compaction.base
        if not base and ODD in map(_offset, head.files) and abs(s.files[-1]) == 1:
            yield Step(
                "compact", f"compact.plan on v{len(s.versions)}", s._replace(compaction=Compaction(len(s.versions)))
            )
        if not base:
            return
        known, now = (_deletes(s.files[at - 1]) for at in (base, len(s.versions)))
        if "replace_unchecked" not in self.bad and build.verdict(lambda: check_untouched(known, now)) is not None:
            yield Step("compact", "compact.close", s._replace(compaction=Compaction()))
            return
        written = [row for row in s.versions[base - 1].files if _offset(row) == ODD]
        rows = tuple(sorted([*written, *(row for row in head.files if _offset(row) != ODD)]))
        made = head._replace(files=rows, snapshot=len(s.versions) + 1, buffer_hi=(s.buffer_hi,), revert_of=0)
        then = _published(s, made, s.replaced[-1], 2)._replace(compaction=Compaction())
        yield Step("compact", f"compact.publish v{len(s.versions) + 1}", then)

    def _replay(self, s: State, at: int, one: Replayer) -> Iterator[Step[State]]:
        who, head = f"person{at + 1}", s.versions[-1]
        if one.pc == IDLE and ODD in head.files:
            yield Step(who, "replay.look", _with(s, at, Replayer(LOOKED)))
        if one.pc != IDLE and s.crashes:
            yield Step(who, "replay.die", _with(s, at, Replayer())._replace(crashes=s.crashes - 1))
        if one.pc == LOOKED:
            was = "old" if ODD in head.files else "new" if NEW in head.files else None
            change = change_of(was, "new", refused=False)
            is_same = change is not None and change.kind is Kind.REPLACED
            if is_same or "was_unchecked" in self.bad:
                yield Step(who, f"replay.build on v{len(s.versions)}", _with(s, at, Replayer(BUILT, len(s.versions))))
            else:
                yield Step(who, "replay.refused", _with(s, at, Replayer()))
        if one.pc == BUILT:
            if one.base != len(s.versions) and "pointer_not_compared" not in self.bad:
                yield Step(who, "replay.rebuild", _with(s, at, Replayer(LOOKED)))
            elif not self._may(s):
                yield Step(who, "replay.wait", _with(s, at, Replayer()))
            else:
                rows = tuple(sorted([NEW, *(row for row in s.versions[one.base - 1].files if row != ODD)]))
                made = head._replace(files=rows, snapshot=len(s.versions) + 1, buffer_hi=(s.buffer_hi,), revert_of=0)
                then = _with(_published(s, made, True, -abs(s.files[-1])), at, Replayer())
                yield Step(who, f"replay.publish v{len(s.versions) + 1}", then)

    def _may(self, s: State) -> bool:
        """No version that may be read waits for one to come. All of them may be read."""
        known = build.versions(s.versions)
        readable = () if "old_reads_ignored" in self.bad else known[:-1]
        return not waiting([(0, ODD)], table="t", head=known[-1], readable=readable, versions=known)


def _deletes(file: int) -> dict[str, str | None]:
    """The file of the row and what hides rows of it."""
    return {f"file-{abs(file)}": "deletes" if file < 0 else None}


def _published(s: State, made: Published, is_new: bool, file: int) -> State:
    return s._replace(versions=(*s.versions, made), replaced=(*s.replaced, is_new), files=(*s.files, file))


def _with(s: State, at: int, one: Replayer) -> State:
    return s._replace(replayers=(*s.replayers[:at], one, *s.replayers[at + 1 :]))
