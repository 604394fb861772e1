"""Publishers of two views: tier appends to the stream view, otree merges and relays the batch view, compact replaces.

The boundary commit is one step here, with everything that it checks under its locks: `moves` takes it apart. What is
read before it (the head at plan, the base at stage, the pointer at build) may be old by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from harness_pipelines.protocol.bounds import Bounds, unmerged
from harness_pipelines.protocol.lake.compaction import StreamFile, plan_runs
from harness_pipelines.protocol.moves import may_relayout, next_attempt, plan_ranges
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import ABANDONED, COMMITTED, NO_RANGE, PLANNED, ClaimRow, MoveRow, Published
from harness_pipelines_tests.model.explorer import Step
from harness_pipelines_tests.model.views_state import (
    BATCH,
    BUILT,
    COMPACT,
    FOREIGN,
    HELD,
    HOPELESS,
    IDLE,
    NOBODY,
    NONE,
    OTREE,
    PLANNING,
    READING,
    READY,
    STAGED,
    STREAM,
    UNKNOWN,
    Contents,
    Deletes,
    Names,
    Pointer,
    State,
    Worker,
    data_files,
    delete_files,
    deletes,
    folded,
    open_move,
    place_of,
    pointed,
    published,
    rows_in,
    view_of,
    with_files,
    with_move,
    with_worker,
    written,
)

ATTEMPTS_MAX, MOVES_MAX = 7, 24  #: more than sound models ever take; keeps those of mutants finite
RELAID = 2  #: files that one relayout rewrites: the oldest; the others stay
_TARGET = 1_000  #: larger than any file: all are small


@dataclass(frozen=True, slots=True)
class Publishers:
    """The steps of tier and of the workers of otree and compact; *bad* names what is left out or done wrong."""

    records: int
    stages: tuple[str, ...]  #: of the workers; those of one stage share its claim
    keys: int  #: see `Views`
    hides: bool
    bad: frozenset[str]

    def steps(self, s: State) -> Iterator[Step[State]]:
        yield from self._tier(s)
        for i, worker in enumerate(s.workers):
            for what, then in self._worker(s, i, worker):
                yield Step(f"w{i + 1}", what, then)

    # -- tier: one worker whose claim never ends, an offset per move ----------------------------------------

    def _tier(self, s: State) -> Iterator[Step[State]]:
        """In two steps only beside compaction, which could take a file that is staged but not published."""
        low = s.head.stream_hi[0]
        if s.tiering:
            yield from self._tiered(s)
        elif low < self.records and not s.stopped:
            planned = s._replace(moves=(*s.moves, MoveRow(low, low + 1, len(s.versions), PLANNED, 1, 1)))
            staged = written(planned, (low,))._replace(tiering=(len(s.moves), len(s.contents)))
            if COMPACT in self.stages:
                yield Step("tier", f"tier.stage [{low},{low + 1})", staged)
            else:
                yield from self._tiered(staged)

    def _tiered(self, s: State) -> Iterator[Step[State]]:
        assert s.tiering
        number, file = s.tiering
        files = (*s.pointers[STREAM].files, file)
        for head in s.versions if "version_from_stale_copy" in self.bad else (s.head,):
            made = self._following(s, s.moves[number], files=files, head=head)
            if isinstance(made, Published):
                done = with_move(published(s, made), number, _done(s.moves[number]))
                yield Step("tier", f"tier.publish v{len(s.versions) + 1}", done._replace(tiering=()))

    # -- one worker -----------------------------------------------------------------------------------------

    def _worker(self, s: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        if w.pc != IDLE and s.left.crashes:
            yield "crash", self._crashed(s, i, w)
        match w.pc:
            case "idle" if not s.stopped and build.free(self._claim(s, w)) and self._work(s, w):
                claim = ClaimRow(i, self._claim(s, w).epoch + 1, True)
                taken = with_worker(s, i, Worker(w.stage, HELD, claim.epoch))
                yield f"{w.stage}.take_claim", self._with_claim(taken, w, claim)
            case "held":
                yield self._look(s, i, w)
            case "planning":
                yield self._plan(s, i, w)
            case "ready":
                yield self._branch(s, i, w)
            case "reading":
                yield from self._stage(s, i, w)
            case "staged":
                yield self._build(s, i, w)
            case "built":
                yield from self._publish(s, i, w)
            case "hopeless":
                yield self._close(s, i, w)
            case "unknown":
                yield self._resolve(s, i, w)

    def _claim(self, s: State, w: Worker) -> ClaimRow:
        return s.claims[self.stages.index(w.stage)]

    def _with_claim(self, s: State, w: Worker, claim: ClaimRow) -> State:
        at = self.stages.index(w.stage)
        return s._replace(claims=(*s.claims[:at], claim, *s.claims[at + 1 :]))

    def _refused(self, s: State, i: int, w: Worker, *, unless: str) -> str | None:
        return None if unless in self.bad else build.fenced_out(i, w.epoch, self._claim(s, w))

    def _crashed(self, s: State, i: int, w: Worker) -> State:
        """The process is gone; its lease lasts on, its files stay."""
        claim = self._claim(s, w)
        kept = claim._replace(holder=NOBODY) if claim.holder == i and claim.alive else claim
        left = s.left._replace(crashes=s.left.crashes - 1)
        return self._with_claim(with_worker(s, i, Worker(w.stage)), w, kept)._replace(left=left)

    def _work(self, s: State, w: Worker) -> bool:
        return open_move(s, w.stage) is not None or self.chosen(s, w.stage) is not None

    # -- plan -----------------------------------------------------------------------------------------------

    def chosen(self, s: State, stage: str) -> tuple[int, int] | None:
        """The range that a move planned now would take, `NO_RANGE` twice for one without; ``None``: nothing to do."""
        if len(s.moves) >= MOVES_MAX:
            return None
        if stage == COMPACT:
            return (NO_RANGE, NO_RANGE) if self._small(s, s.head) else None
        source = s.versions[-3:][0] if "merge_from_stale_bound" in self.bad else s.head
        bounds = Bounds(start=0, batch_hi=source.batch_hi[0], stream_hi=s.head.stream_hi[0], buffer_hi=self.records)
        # One record each where merges hide rows, so that several of them meet the same file.
        lo, hi = plan_ranges(unmerged({0: bounds}), offsets_max=1 if self.hides else self.records)
        if len(data_files(s.head.batch_files, s.contents)) >= RELAID and self._relayout_next(s, rows_wait=bool(lo)):
            return NO_RANGE, NO_RANGE
        return (lo[0], hi[0]) if lo else None

    def _relayout_next(self, s: State, *, rows_wait: bool) -> bool:
        last = next((m for m in reversed(s.moves) if m.stage == OTREE), None)
        last_merged = last is not None and last.lo != NO_RANGE
        return "relayouts_first" in self.bad or may_relayout(rows_wait=rows_wait, last_merged=last_merged)

    def _small(self, s: State, row: Published) -> Names:
        """The small files of the stream view that one compaction writes again."""
        names = row.files
        if "branches_listed" in self.bad and s.tiering:
            names = (*names, s.tiering[1])
        files = [
            StreamFile(path=str(n), partition=0, low=min(o), high=max(o) + 1, rows=len(o), bytes=len(o))
            for n in names
            if (o := s.contents[n])
        ]
        high = self.records if "stream_hi_ignored" in self.bad else row.stream_hi[0]
        runs = plan_runs(files, stream_hi={0: high}, target_bytes=_TARGET, budget_bytes=_TARGET)
        return tuple(int(file.path) for run in runs for file in run.files)

    def _look(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        """Take the next attempt of the open move, or read the head and choose what to plan."""
        held = Worker(w.stage, HELD, w.epoch)
        found = None if s.stopped else open_move(s, w.stage)
        if found is not None:
            if self._refused(s, i, w, unless="unfenced"):
                return f"{w.stage}.take_attempt FencedOut", with_worker(s, i, Worker(w.stage))
            row = s.moves[found]
            if row.attempt >= ATTEMPTS_MAX:
                return f"{w.stage}.take_attempt never", with_worker(s, i, Worker(w.stage))
            following = next_attempt(build.move(found, row), epoch=w.epoch)
            taken = row._replace(attempt=following.attempt, epoch=following.epoch)
            if "retry_recomputes" in self.bad:
                taken = taken._replace(base=len(s.versions))
            ready = held._replace(pc=READY, move=found, mine=tuple(taken))
            then = with_move(with_worker(s, i, ready), found, taken)
            return f"{w.stage}.take_attempt m{found}#{taken.attempt}", then
        chosen = None if s.stopped else self.chosen(s, w.stage)
        if chosen is None:
            claim = self._claim(s, w)
            released = claim._replace(alive=False) if claim[:2] == (i, w.epoch) else claim
            return f"{w.stage}.release", self._with_claim(with_worker(s, i, Worker(w.stage)), w, released)
        planning = held._replace(pc=PLANNING, plan=(*chosen, len(s.versions)))
        return f"{w.stage}.choose {_shown(*chosen)}", with_worker(s, i, planning)

    def _plan(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        lo, hi, base = w.plan
        if open_move(s, w.stage) is not None and "two_open_moves" not in self.bad:
            return f"{w.stage}.plan MoveClosed", with_worker(s, i, Worker(w.stage, HELD, w.epoch))
        if self._refused(s, i, w, unless="plan_unfenced"):
            return f"{w.stage}.plan FencedOut", with_worker(s, i, Worker(w.stage))
        row = MoveRow(lo, hi, base, PLANNED, 1, w.epoch, stage=w.stage)
        ready = Worker(w.stage, READY, w.epoch, move=len(s.moves), mine=tuple(row))
        then = with_worker(s, i, ready)._replace(moves=(*s.moves, row))
        return f"{w.stage}.plan m{len(s.moves)} {_shown(lo, hi)}", then

    # -- stage ----------------------------------------------------------------------------------------------

    def _branch(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        """Only a base that is retained is read; from then on the open move keeps it."""
        if _row(w).base < s.retained_from:
            return f"{w.stage}.branch BaseGone", with_worker(s, i, w._replace(pc=HOPELESS))
        return f"{w.stage}.branch from v{_row(w).base}", with_worker(s, i, w._replace(pc=READING))

    def _stage(self, s: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        """Spark reads the move's base and writes one file, which only the attempt's branch names."""
        mine = _row(w)
        base = s.versions[mine.base - 1]
        if w.stage == COMPACT:
            removed = self._small(s, base)
            rows = rows_in(removed, s.contents)
        elif mine.lo == NO_RANGE:
            removed, rows = self._relaid(s, base)
            if s.left.pointless:
                left = s.left._replace(pointless=s.left.pointless - 1)
                yield f"{w.stage}.stage Pointless", with_worker(s, i, w._replace(pc=HOPELESS))._replace(left=left)
        else:
            low = 0 if "merge_without_low" in self.bad else mine.lo
            rows = tuple(o for o in rows_in(base.files, s.contents) if low <= o < mine.hi)
            if self.keys and self.hides:
                yield from Hiding(self.keys, self.bad).staged(s, i, w, rows)
                return
            removed, rows = self._folded(s, base, rows) if self.keys else ((), rows)
        saw = saw_of(removed, base.batch_files if self.hides else (), s.contents)
        staged = w._replace(pc=STAGED, staged=len(s.contents), removed=removed, saw=saw)
        yield f"{w.stage}.stage file {len(s.contents)} {list(rows)}", with_worker(written(s, rows), i, staged)

    def _relaid(self, s: State, base: Published) -> tuple[Names, Names]:
        """The oldest files of the batch view, and the rows of them that are not hidden."""
        removed = data_files(base.batch_files, s.contents)[:RELAID]
        live = removed if "hidden_rows_written" in self.bad else (*removed, *_beside(base, removed, s))
        return removed, rows_in(live, s.contents)

    def _folded(self, s: State, base: Published, new: Names) -> tuple[Names, Names]:
        """Of a keyed merge: files that hold older versions of the keys of *new*, and what is written in their place."""
        touched = {offset % self.keys for offset in new}
        if "deletes_ignored" in self.bad:
            touched -= {offset % self.keys for offset in new if deletes(offset)}
        removed = tuple(n for n in base.batch_files if any(o % self.keys in touched for o in s.contents[n]))
        if "merge_appends" in self.bad:
            removed = ()
        kept = [o for o in rows_in(removed, s.contents) if o % self.keys not in touched]
        return removed, tuple(sorted([*kept, *folded(new, self.keys)]))

    # -- publish --------------------------------------------------------------------------------------------

    def _build(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        """New metadata on the view as the catalog names it now: an append, or a replace of files that are live."""
        at = s.pointers[place_of(w.stage)]
        if self._gone(s, w, at) or self._moved_on(s, w, at):
            if build.closed(w.move, _row(w), s.moves[w.move]):
                return f"{w.stage}.build MoveClosed", with_worker(s, i, Worker(w.stage, HELD, w.epoch))
            return f"{w.stage}.build FilesGone", with_worker(s, i, w._replace(pc=HOPELESS))
        live = s.versions[_row(w).base - 1] if "replace_on_the_base" in self.bad and w.removed else None
        kept = (live.files if w.stage == COMPACT else live.batch_files) if live else at.files
        gone = {*w.removed, *self._taken_over(s, w, kept)}
        made = (*(n for n in kept if n not in gone), w.staged, *w.hides)
        copy = len(s.versions) if "version_from_stale_copy" in self.bad else 0
        built = w._replace(pc=BUILT, built=at, made=made, copy=copy)
        return f"{w.stage}.build on v{len(s.versions)}", with_worker(s, i, built)

    def _gone(self, s: State, w: Worker, at: Pointer) -> bool:
        """Is a file that it touches not live any more, or deleted from since?"""
        data = data_files(at.files, s.contents)
        live, saw = saw_of(data, at.files if self.hides else (), s.contents), w.saw
        if "replace_unchecked" in self.bad:
            saw = ()
        if "deletes_unchecked" in self.bad:
            live, saw = (tuple((n, NONE) for n, _ in files) for files in (live, saw))
        return build.touched(saw, live) is not None

    def _moved_on(self, s: State, w: Worker, at: Pointer) -> bool:
        """Is a keyed merge built on another snapshot than the one that it was merged into?"""
        mine = _row(w)
        if not self.keys or mine.lo == NO_RANGE or "merged_anywhere" in self.bad:
            return False
        return build.merged_elsewhere(s.versions[mine.base - 1].batch_snapshot, at.snapshot) is not None

    def _taken_over(self, s: State, w: Worker, files: Names) -> Names:
        """The delete files that go: of files that are replaced, or of which a newer one hides more."""
        known = dict(delete_files(files, s.contents))
        touched = [n for n, _ in w.saw]
        if "dangling_deletes" in self.bad:
            touched = [n for n in touched if n not in w.removed]
        if "deletes_added" in self.bad:
            touched = [n for n in touched if n in w.removed]
        return tuple(known[n] for n in touched if n in known)

    def _publish(self, s: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        """The boundary commit: all its checks under its locks, and all its changes, or none."""
        mine, place = _row(w), place_of(w.stage)
        held = with_worker(s, i, Worker(w.stage, HELD, w.epoch))
        if build.closed(w.move, mine, s.moves[w.move]) and "closed_move_published" not in self.bad:
            yield f"{w.stage}.publish MoveClosed", held
        elif s.pointers[place].snapshot != w.built.snapshot and "pointer_not_compared" not in self.bad:
            yield (
                f"{w.stage}.publish PointerMoved",
                with_worker(s, i, w._replace(pc=STAGED, built=Pointer(0, ()), made=())),
            )
        elif self._foreign(s, w) and "foreign_taken_over" not in self.bad:
            yield f"{w.stage}.publish ForeignCommit", held._replace(stopped=True)
        else:
            head = s.versions[w.copy - 1] if w.copy else s.head
            made = self._following(s, mine, files=w.made, head=head)
            if isinstance(made, str):
                yield f"{w.stage}.publish {made}", held
            elif "publish_unfenced" not in self.bad and self._refused(s, i, w, unless="unfenced"):
                yield f"{w.stage}.publish FencedOut", with_worker(s, i, Worker(w.stage))
            else:
                yield from self._committed(s, i, w, made)

    def _foreign(self, s: State, w: Worker) -> str | None:
        if "base_of_stream_view" in self.bad:
            return build.foreign(s.head, len(s.versions), s.pointers[STREAM].snapshot, "stream")
        return build.foreign(s.head, len(s.versions), w.built.snapshot, view_of(w.stage))

    def _following(self, s: State, mine: MoveRow, *, files: Names, head: Published) -> Published | str:
        """The version that the move makes: *head* with only its own columns changed."""
        number, snapshot = len(s.versions), len(s.versions) + 1
        if "relayout_moves_bound" in self.bad and mine.stage == OTREE and mine.lo == NO_RANGE:
            mine = mine._replace(lo=head.batch_hi[0], hi=head.stream_hi[0])
        made = build.following(number, head, mine, self.records)
        if isinstance(made, str) and "range_unchecked" in self.bad:
            made = head._replace(batch_hi=(mine.hi,), batch_snapshot=snapshot, revert_of=0)
        return made if isinstance(made, str) else with_files(made, head, snapshot=snapshot, files=files)

    def _committed(self, s: State, i: int, w: Worker, made: Published) -> Iterator[tuple[str, State]]:
        done = with_move(published(s, made), w.move, _done(s.moves[w.move]))
        yield f"{w.stage}.publish v{len(done.versions)}", with_worker(done, i, Worker(w.stage, HELD, w.epoch))
        if s.left.lost:
            left = s.left._replace(lost=s.left.lost - 1)
            unknown = w._replace(pc=UNKNOWN)
            yield "lose_answer of a commit", with_worker(done, i, unknown)._replace(left=left)
            yield "lose_answer of a rollback", with_worker(s, i, unknown)._replace(left=left)

    def _resolve(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        """After a lost answer: the move is read under the publish's own locks."""
        if "blind_retry" in self.bad:
            again = w._replace(pc=STAGED, built=Pointer(0, ()), made=())
            return f"{w.stage}.resolve blindly", with_worker(s, i, again)
        effect = build.took(w.move, _row(w), s.moves[w.move])
        what = f"{w.stage}.resolve {'took' if effect else 'no'} effect"
        return what, with_worker(s, i, Worker(w.stage, HELD, w.epoch))

    def _close(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        """The base or the files to be replaced are gone: the move is abandoned, and planned again on the head."""
        if self._refused(s, i, w, unless="close_unfenced"):
            return f"{w.stage}.close FencedOut", with_worker(s, i, Worker(w.stage))
        row = s.moves[w.move]
        closed = row._replace(state=ABANDONED) if row.state == PLANNED else row
        held = with_worker(s, i, Worker(w.stage, HELD, w.epoch))
        return f"{w.stage}.close m{w.move} abandoned", with_move(held, w.move, closed)


@dataclass(frozen=True, slots=True)
class Hiding:
    """How a keyed merge hides older rows where they are. Any of the files may be rewritten instead: how many rows
    are too many is left open."""

    keys: int
    bad: frozenset[str]

    def staged(self, s: State, i: int, w: Worker, new: Names) -> Iterator[tuple[str, State]]:
        """The rows *new* staged in each way: all that is met hidden, or some of the files rewritten."""
        base = s.versions[_row(w).base - 1]
        met = self._met(s, base, new)
        for count in range(len(met) + 1):
            for removed in combinations(met, count):
                yield self._staged(s, i, w, new, {n: met[n] for n in met if n not in removed}, removed)

    def _met(self, s: State, base: Published, new: Names) -> dict[int, Names]:
        """Of the files of the base that hold older versions of the keys of *new*: these rows."""
        keys = {offset % self.keys for offset in new}
        found = {}
        for name in data_files(base.batch_files, s.contents):
            live = rows_in((name, *_beside(base, (name,), s)), s.contents)
            if met := tuple(o for o in live if o % self.keys in keys):
                found[name] = met
        return found

    def _staged(
        self, s: State, i: int, w: Worker, new: Names, hidden: Mapping[int, Names], removed: Names
    ) -> tuple[str, State]:
        base = s.versions[_row(w).base - 1]
        changed = {offset % self.keys for offset in new}
        anew = rows_in((*removed, *_beside(base, removed, s)), s.contents)
        rows = tuple(sorted([*(o for o in anew if o % self.keys not in changed), *folded(new, self.keys)]))
        then, known = written(s, rows), dict(delete_files(base.batch_files, s.contents))
        for name, more in hidden.items():
            older = s.contents[known[name]][1:] if name in known and "older_rows_forgotten" not in self.bad else ()
            then = written(then, (-1 - name, *sorted({*older, *more})))
        first = len(s.contents)
        staged = w._replace(
            pc=STAGED,
            staged=first,
            removed=removed,
            saw=saw_of((*hidden, *removed), base.batch_files, s.contents),
            hides=tuple(range(first + 1, len(then.contents))),
        )
        told = "".join(f", hides {list(rows)} in file {name}" for name, rows in hidden.items())
        told += f", for files {list(removed)}" if removed else ""
        return f"{w.stage}.stage file {first} {list(rows)}{told}", with_worker(then, i, staged)


def saw_of(data: Names, files: Names, contents: Contents) -> Deletes:
    """The data files *data*, each with its delete file among *files*."""
    known = dict(delete_files(files, contents))
    return tuple((n, known.get(n, NONE)) for n in data)


def _beside(row: Published, data: Names, s: State) -> Names:
    """The delete files of *data* in the batch view of a version."""
    return tuple(d for n, d in delete_files(row.batch_files, s.contents) if n in data)


def foreign_commit(s: State) -> State:
    """Another engine appends to the batch view: a row that is there already."""
    appended = written(s, (0,))
    files = (*s.pointers[BATCH].files, len(s.contents))
    return pointed(appended, BATCH, Pointer(FOREIGN, files))


def _done(row: MoveRow) -> MoveRow:
    return row._replace(state=COMMITTED, effects=row.effects + 1)


def _row(w: Worker) -> MoveRow:
    return MoveRow(*w.mine)  # type: ignore[arg-type]


def _shown(lo: int, hi: int) -> str:
    return "without ranges" if lo == NO_RANGE else f"[{lo},{hi})"
