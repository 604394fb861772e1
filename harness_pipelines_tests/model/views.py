"""Two views of the lake under one ledger: the stream view in offset order, the batch view clustered by value.

Tier appends to the stream view, otree merges what it appended into the batch view or relays the batch view's files,
compact replaces files of the stream view; a revert, a reader and expire beside them. One partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import ABANDONED, COMMITTED, NO_RANGE, PLANNED, ClaimRow, Published
from harness_pipelines_tests.model.explorer import Step
from harness_pipelines_tests.model.views_moves import Publishers, foreign_commit
from harness_pipelines_tests.model.views_state import (
    BATCH,
    BUILT,
    COMPACT,
    FOREIGN,
    IDLE,
    NOBODY,
    NONE,
    OTREE,
    READING,
    STREAM,
    TIER,
    Contents,
    Left,
    Names,
    Pointer,
    Reader,
    State,
    Worker,
    delete_files,
    folded,
    forgotten,
    names_of,
    place_of,
    reached,
    reading,
    rows_in,
)
from harness_pipelines_tests.model.views_upkeep import Upkeep

__all__ = ["Left", "Views"]


_OF_THE_PAST = frozenset({"merge_from_stale_bound", "version_from_stale_copy"})  #: mutants that look back anywhere


@dataclass(frozen=True, slots=True)
class Views:
    """*records* records; from the start the stream view has *tiered* of them and the batch view *merged*, a file each.

    *stages* has the stage of each worker. *bad* names what is left out or done wrong (see `mutants`).
    """

    left: Left
    records: int = 2
    tiered: int = 0
    merged: int = 0
    stages: tuple[str, ...] = (OTREE, OTREE)
    expires: bool = False
    keys: int = 0  #: of a keyed table, whose offset o is of key o modulo keys; 0: an append table
    hides: bool = False  #: its merges may hide rows where they are; files that are merged from the start have two
    bad: frozenset[str] = frozenset()
    name: str = "views"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a relayout was published": lambda s: any(_is_relayout(m) and m.state == COMMITTED for m in s.moves),
            "rows wait to be merged while a relayout is open": lambda s: (
                s.head.batch_hi < s.head.stream_hi and any(_is_relayout(m) and m.state == PLANNED for m in s.moves)
            ),
            "the stream view was compacted": lambda s: any(
                m.stage == COMPACT and m.state == COMMITTED for m in s.moves
            ),
            "tier published while a compaction was staged": lambda s: any(
                w.stage == COMPACT and w.pc == BUILT and w.built != s.pointers[STREAM] for w in s.workers
            ),
            "a compaction and a merge are open at once": lambda s: (
                {OTREE, COMPACT} <= {m.stage for m in s.moves if m.state == PLANNED}
            ),
            "a merge reads files that compaction has replaced": lambda s: any(
                _is_merge(m) and m.state == PLANNED and not {*s.versions[m.base - 1].files} <= {*s.head.files}
                for m in s.moves
            ),
            "a second attempt is published": lambda s: any(
                m.attempt > 1 and m.state == COMMITTED and m.stage == OTREE for m in s.moves
            ),
            "a late attempt built on what its successor published": lambda s: any(
                w.pc == BUILT and w.move >= 0 and s.moves[w.move].state == COMMITTED for w in s.workers
            ),
            "the files of a late attempt were replaced meanwhile": lambda s: any(
                not {*w.removed} <= {*s.pointers[place_of(w.stage)].files} for w in s.workers
            ),
            "a revert lowered both bounds": lambda s: (
                len(s.versions) > 1
                and s.head.batch_hi < s.versions[-2].batch_hi
                and s.head.stream_hi < s.versions[-2].stream_hi
            ),
            "a revert lowered the batch view alone": lambda s: (
                len(s.versions) > 1
                and s.head.batch_hi < s.versions[-2].batch_hi
                and s.head.stream_hi == s.versions[-2].stream_hi
            ),
            "another writer committed to the batch view": lambda s: s.pointers[BATCH].snapshot == FOREIGN,
            "a read takes rows of all three tiers": lambda s: (
                s.reader.alive and 0 < _batch_hi(s, s.reader.version) < _stream_hi(s, s.reader.version) < self.records
            ),
            "a relayout has replaced files under a reader": lambda s: (
                s.reader.alive and not {*s.versions[s.reader.version - 1].batch_files} <= {*s.head.batch_files}
            ),
            "a file is live of which rows are hidden": lambda s: bool(delete_files(s.head.batch_files, s.contents)),
            "a newer delete file takes an older one over": lambda s: any(
                w.pc == BUILT and any(d != NONE and n not in w.removed for n, d in w.saw) for w in s.workers
            ),
            "a relayout leaves hidden rows out": lambda s: any(
                w.pc == BUILT and w.mine[0] == NO_RANGE and any(d != NONE for _, d in w.saw) for w in s.workers
            ),
            "a late relayout did not see the newest delete file": lambda s: any(
                w.mine and w.mine[0] == NO_RANGE and _hidden_since(s, w) for w in s.workers
            ),
            "a snapshot alone keeps a delete file": lambda s: any(
                number < s.retained_from and d not in s.head.batch_files
                for number in s.named
                for _, d in delete_files(s.versions[number - 1].batch_files, s.contents)
            ),
            "a file of the batch view is deleted under an open move": lambda s: (
                any(m.state == PLANNED for m in s.moves)
                and any(n not in s.stored for v in s.versions for n in v.batch_files)
            ),
        }

    def first(self) -> State:
        stream = tuple(range(self.tiered))
        each = 2 if self.hides else 1
        merged = tuple(tuple(range(at, min(at + each, self.merged))) for at in range(0, self.merged, each))
        batch = tuple(range(self.tiered, self.tiered + len(merged)))
        version = Published(
            stream_hi=(self.tiered,),
            buffer_hi=(self.records,),
            snapshot=1,
            files=stream,
            batch_hi=(self.merged,),
            batch_snapshot=1,
            batch_files=batch,
        )
        return State(
            dropped=0,
            versions=(version,),
            retained_from=1,
            contents=(*((offset,) for offset in range(self.tiered)), *merged),
            stored=tuple(sorted(names_of(version))),
            pointers=(Pointer(1, stream), Pointer(1, batch)),
            moves=(),
            claims=(ClaimRow(NOBODY, 0, False),) * len(self.stages),
            tiering=(),
            workers=tuple(Worker(stage) for stage in self.stages),
            reader=Reader(),
            stopped=False,
            left=self.left,
        )

    def canonical(self, state: State) -> State:
        """Without the past, and two workers of one stage in their natural order: a claim that one holds moves along."""
        if not self.bad & _OF_THE_PAST:
            goes_back = self.expires or state.left.reverts or state.left.reads
            state = forgotten(state, files=not self.expires, versions=not goes_back)
        if len(state.workers) != 2 or len(set(self.stages)) > 1:
            return state
        one, two = state.workers
        if one < two:
            return state
        claim, swap = state.claims[0], {0: 1, 1: 0}
        moved = claim._replace(holder=swap.get(claim.holder, claim.holder))
        swapped = state._replace(workers=(two, one), claims=(moved, *state.claims[1:]))
        return min(state, swapped) if one == two else swapped

    # -- safety ---------------------------------------------------------------------------------------------

    def broken(self, s: State) -> str | None:
        return self._broken_views(s) or self._broken_moves(s) or (self._broken_files(s) if self.expires else None)

    def _broken_views(self, s: State) -> str | None:
        head = s.head
        batch_hi, stream_hi = head.batch_hi[0], head.stream_hi[0]
        stream, batch = rows_in(head.files, s.contents), rows_in(head.batch_files, s.contents)
        if any(o >= stream_hi for o in stream):
            return f"S37: a live file of the stream view holds an offset at or above {stream_hi}: {stream}"
        if stream != tuple(range(stream_hi)):
            return f"S1: the stream view has {stream} of [0, {stream_hi})"
        if self.keys and batch != (state := folded(range(batch_hi), self.keys)):
            return f"S16/S17: the batch view has {batch}, the records below {batch_hi} fold to {state}"
        if not self.keys and batch != stream[:batch_hi]:
            return f"S19: the batch view has {batch} of [0, {batch_hi})"
        if self.hides and (wrong := _broken_deletes(head.batch_files, s.contents)):
            return wrong
        if s.dropped > stream_hi:
            return f"S13: the buffer's rows below {s.dropped} are gone, the stream view ends at {stream_hi}"
        if s.reader.alive and folded(s.reader.seen, self.keys) != folded(range(self.records), self.keys):
            return f"S2: a reader of version {s.reader.version} gets {s.reader.seen} of [0, {self.records})"
        return None

    def _broken_moves(self, s: State) -> str | None:
        for stage in (TIER, OTREE, COMPACT):
            opened = [m for m in s.moves if m.stage == stage and m.state == PLANNED]
            if len(opened) > 1:
                where = "on the batch view" if stage == OTREE else f"of {stage}"
                return f"S8: two open moves {where}"
            bound = s.head.batch_hi[0] if stage == OTREE else s.head.stream_hi[0]
            if opened and opened[0].lo not in (NO_RANGE, bound):
                return f"S6: an open move of {stage} starts at {opened[0].lo}, its view ends at {bound}"
        return "S9: a move took effect twice" if any(m.effects > 1 for m in s.moves) else None

    def _broken_files(self, s: State) -> str | None:
        there = {*s.stored}
        for number in range(s.retained_from, len(s.versions) + 1):
            plan = reading(s.versions, number, self.records, s.contents)
            if gone := sorted({*plan.names} - there):
                return f"S10: file {gone[0]} is gone, version {number} is retained and needs it"
            if 0 <= plan.needs_buffer_from < s.dropped:
                return f"S13: version {number} is retained, its buffered rows are gone"
        if s.reader.alive:
            if gone := sorted({*s.reader.names} - there):
                return f"S10: file {gone[0]} is gone, a live lease of version {s.reader.version} names it"
            if 0 <= s.reader.needs_buffer_from < s.dropped:
                return f"S10: the buffered rows of version {s.reader.version} are gone under a live lease"
        for number in s.named:
            if gone := sorted({*reading(s.versions, number, self.records, s.contents).names} - there):
                return f"S10: file {gone[0]} is gone, the snapshot of version {number} needs it"
        for w in s.workers:
            if w.move < 0 or s.moves[w.move][3:6] != (PLANNED, *w.mine[4:6]):
                continue  # a late attempt: it may fail, and is never published
            base = int(w.mine[2])
            if w.pc == READING and (gone := sorted({*names_of(s.versions[base - 1])} - there)):
                return f"S10: file {gone[0]} of version {base} is gone, an open move reads it"
            if gone := sorted({n for n in (w.staged, *w.hides) if n >= 0} - there):
                return f"S27: file {gone[0]} of an open move was removed"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        then, action = step.then, step.what.partition(" ")[0]
        if len(then.versions) > len(before.versions) and (wrong := self._broke_version(before, step)):
            return wrong
        for old, new in zip(before.moves, then.moves, strict=False):
            if old[:3] != new[:3]:
                return "S25: a later attempt has another range or base than the first"
            if new.effects > old.effects and old.state != PLANNED:
                return f"S9: a move that is {old.state} took effect"
        if len(then.moves) > len(before.moves) and self._starves(before, then):
            return "L8: a relayout was planned after a relayout while rows wait to be merged"
        if then.moves != before.moves and action.startswith((OTREE, COMPACT)):
            worker = before.workers[int(step.who[1:]) - 1]
            claim = before.claims[self.stages.index(worker.stage)]
            if worker.epoch != claim.epoch or not claim.alive:
                return f"S5: the holder of epoch {worker.epoch} changed the ledger, the claim is at epoch {claim.epoch}"
        return None

    @staticmethod
    def _starves(before: State, then: State) -> bool:
        made, base = then.moves[-1], then.versions[then.moves[-1].base - 1]
        earlier = [m for m in before.moves if m.stage == OTREE]
        waited = base.stream_hi > base.batch_hi
        return waited and _is_relayout(made) and bool(earlier) and _is_relayout(earlier[-1])

    def _broke_version(self, before: State, step: Step[State]) -> str | None:
        old, new = before.head, step.then.head
        if new.buffer_hi < old.buffer_hi:
            return f"S3: buffer_hi fell from {old.buffer_hi[0]} to {new.buffer_hi[0]}"
        if not new.revert_of and (new.stream_hi < old.stream_hi or new.batch_hi < old.batch_hi):
            return f"S3: the bounds fell from {_bounds(old)} to {_bounds(new)} without a revert"
        if not step.who.startswith("w"):
            return None
        worker = before.workers[int(step.who[1:]) - 1]
        place = place_of(worker.stage)
        if worker.built != before.pointers[place]:
            return "S7: published what was built on an older head"
        if worker.built.snapshot == FOREIGN:
            return "S7: built on rows that another writer committed"
        if worker.removed and not (self.keys and worker.mine[0] != NO_RANGE):
            views = [(v.files, v.batch_files)[place] for v in (old, new)]
            rows = [Counter(rows_in(files, step.then.contents)) for files in views]
            if rows[0] != rows[1]:
                return f"S20: a replace made {sorted(rows[1].elements())} of {sorted(rows[0].elements())}"
            if _bounds(old) != _bounds(new):
                return f"S20: a replace moved the bounds from {_bounds(old)} to {_bounds(new)}"
        return None

    # -- liveness -------------------------------------------------------------------------------------------

    def is_goal(self, s: State) -> bool:
        """Both views have all records, nothing is open, due or loose, and nobody works."""
        merged = s.head.batch_hi == s.head.stream_hi or OTREE not in self.stages
        if not merged or s.head.stream_hi[0] < self.records or s.stopped or s.reader.alive:
            return False
        if any(m.state == PLANNED for m in s.moves) or any(w.pc != IDLE for w in s.workers):
            return False
        publishers = self._publishers
        due = any(publishers.chosen(s, stage) for stage in set(self.stages))
        return not due and (not self.expires or self._clean(s))

    def _clean(self, s: State) -> bool:
        needed = reached(s.versions, s.retained_from, (), (), batch=True)
        return not s.named and s.stored == needed and s.retained_from == len(s.versions) and s.dropped == self.records

    def show(self, s: State) -> str:
        views = [[_content(s.contents[n]) for n in files] for files in (s.head.batch_files, s.head.files)]
        moves = " ".join(
            f"m{i}:{m.stage}{'' if m.lo == NO_RANGE else f'[{m.lo},{m.hi})'}#{m.attempt}{m.state[0]}"
            for i, m in enumerate(s.moves)
            if m.state != ABANDONED
        )
        claims = " ".join(f"e{c.epoch}{'' if c.alive else ' ended'}" for c in s.claims[: len(set(self.stages))])
        lease = f" lease v{s.reader.version}" if s.reader.alive else ""
        lease += f" snapshot of v{s.named[0]}" if s.named else ""
        return f"v{len(s.versions)} {_bounds(s.head)} batch {views[0]} stream {views[1]} claims {claims} {moves}{lease}"

    # -- steps ----------------------------------------------------------------------------------------------

    @property
    def _publishers(self) -> Publishers:
        return Publishers(self.records, self.stages, self.keys, self.hides, self.bad)

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from self._publishers.steps(state)
        yield from Upkeep(self.records, self.expires, self.bad).steps(state)
        yield from self._clock(state)

    def _clock(self, s: State) -> Iterator[Step[State]]:
        for i, claim in enumerate(s.claims):
            gone = claim.holder == NOBODY
            if claim.alive and (gone or s.left.ends):
                left = s.left if gone else s.left._replace(ends=s.left.ends - 1)
                claims = (*s.claims[:i], claim._replace(alive=False), *s.claims[i + 1 :])
                yield Step("clock", "lease_ends" + ("" if gone else " early"), s._replace(claims=claims, left=left))
        if s.left.foreign and s.left.reverts and s.head.batch_hi[0]:
            yield Step("foreign", "append", foreign_commit(s)._replace(left=s.left._replace(foreign=0)))


def _content(content: Names) -> list[int] | str:
    """A data file's rows, or what a delete file hides."""
    return f"hides {list(content[1:])} of file {-1 - content[0]}" if content and content[0] < 0 else list(content)


def _broken_deletes(files: Names, contents: Contents) -> str | None:
    """Delete files hide rows of live data files, one file each."""
    found = delete_files(files, contents)
    if dangling := [(d, n) for n, d in found if n not in files]:
        return f"S26: delete file {dangling[0][0]} hides rows of file {dangling[0][1]}, which is not live"
    if len({n for n, _ in found}) < len(found):
        return f"S26: a data file has two delete files: {found}"
    return None


def _hidden_since(s: State, w: Worker) -> bool:
    """Whether a file that a worker touches is live with another delete file than it saw."""
    now = dict(delete_files(s.pointers[BATCH].files, s.contents))
    return any(n in s.pointers[BATCH].files and now.get(n, NONE) != d for n, d in w.saw)


def _is_relayout(move: build.MoveRow) -> bool:
    return move.stage == OTREE and move.lo == NO_RANGE


def _is_merge(move: build.MoveRow) -> bool:
    return move.stage == OTREE and move.lo != NO_RANGE


def _bounds(row: Published) -> str:
    return f"batch_hi {row.batch_hi[0]} stream_hi {row.stream_hi[0]}"


def _batch_hi(s: State, number: int) -> int:
    return s.versions[number - 1].batch_hi[0]


def _stream_hi(s: State, number: int) -> int:
    return s.versions[number - 1].stream_hi[0]
