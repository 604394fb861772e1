"""What happens beside the publishers of two views: reverts, a reader, retention, files that are removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import ABANDONED, PLANNED
from harness_pipelines_tests.model.explorer import Step
from harness_pipelines_tests.model.views_state import (
    BATCH,
    FOREIGN,
    STREAM,
    Names,
    Pointer,
    Reader,
    State,
    data_files,
    delete_files,
    pointed,
    published,
    reached,
    reading,
)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The steps of an operator, a reader, time and expire; *bad* names what is left out or done wrong."""

    records: int
    expires: bool  #: retention ends and expire removes files
    bad: frozenset[str]

    def steps(self, s: State) -> Iterator[Step[State]]:
        yield from self._reverts(s)
        yield from self._reads(s)
        yield from self._names(s)
        if self.expires:
            yield from self._expire(s)

    # -- revert ---------------------------------------------------------------------------------------------

    def _reverts(self, s: State) -> Iterator[Step[State]]:
        """To any older version, and to the head itself after a foreign commit."""
        if not s.left.reverts:
            return
        is_foreign = s.pointers[BATCH].snapshot == FOREIGN
        for target in range(1, len(s.versions) + is_foreign):
            plan = build.revert(s.versions, target, s.dropped, s.moves, s.claims, s.retained_from)
            if plan.refused is None:
                then = self._reverted(s, target, plan)
                left = s.left._replace(reverts=s.left.reverts - 1)
                yield Step("operator", f"revert.publish to v{target}", then._replace(left=left))

    def _reverted(self, s: State, target: int, plan: build.Revert) -> State:
        made = build.restoring(s.versions, target, self.records)
        if "revert_one_pointer" in self.bad:
            made = made._replace(batch_snapshot=s.head.batch_snapshot, batch_files=s.head.batch_files)
        if "revert_one_bound" in self.bad:
            made = made._replace(batch_hi=s.head.batch_hi)
        if "revert_without_deletes" in self.bad:
            made = made._replace(batch_files=data_files(made.batch_files, s.contents))
        moves = tuple(m._replace(state=ABANDONED) if i in plan.closes else m for i, m in enumerate(s.moves))
        then = published(s, made)._replace(claims=plan.claims, stopped=False)
        # The catalog follows in any case: a foreign commit is undone though the ledger's snapshot stays what it was.
        then = pointed(then, STREAM, Pointer(made.snapshot, made.files))
        then = pointed(then, BATCH, Pointer(made.batch_snapshot, made.batch_files))
        return then if "revert_leaves_moves" in self.bad else then._replace(moves=moves, tiering=())

    # -- the reader -----------------------------------------------------------------------------------------

    def _reads(self, s: State) -> Iterator[Step[State]]:
        reader, left = s.reader, s.left
        if reader.version and not reader.alive and not reader.done:
            mixed = reading(s.versions, reader.version, self.records, s.contents, len(s.versions))
            yield Step("reader", "read.bounds", s._replace(reader=mixed))
        elif left.reads and not reader.alive:
            for number in sorted({*range(s.retained_from, len(s.versions) + 1), *s.named}):
                plan = reading(s.versions, number, self.records, s.contents)
                if "bounds_read_apart" in self.bad:
                    plan = Reader(version=number)
                then = s._replace(reader=plan, left=left._replace(reads=left.reads - 1))
                yield Step("reader", f"read.look at v{number}", then)
        elif reader.alive:
            # A lease that ends early is one that ends: what it named may go from then on.
            yield Step("reader", "read.finish", s._replace(reader=Reader(done=True)))

    # -- named snapshots, each transaction in one step: `snapshots` takes them apart --------------------------

    def _names(self, s: State) -> Iterator[Step[State]]:
        if s.left.names and not s.named:
            left = s.left._replace(names=s.left.names - 1)
            yield Step(
                "person", f"snapshot.create of v{len(s.versions)}", s._replace(named=(len(s.versions),), left=left)
            )
        if s.named and not (s.reader.alive and s.reader.version in s.named):
            yield Step("person", "snapshot.drop", s._replace(named=()))

    # -- expire ---------------------------------------------------------------------------------------------

    def _expire(self, s: State) -> Iterator[Step[State]]:
        """Retention may have ended for all but the head, and every file may be old: `files` takes the times apart."""
        known, aged = s.versions, len(s.versions)
        leased = (s.reader.version,) if s.reader.alive else ()
        kept = build.kept_from(known, aged)
        named = tuple((number, known[number - 1].buffer_hi) for number in s.named)
        floor = build.floor(known, aged, leased, aged, first=min(s.retained_from, *s.named, aged), named=named)[0]
        if kept > s.retained_from or floor > s.dropped:
            trimmed = s._replace(retained_from=max(kept, s.retained_from), dropped=max(floor, s.dropped))
            yield Step("expire", f"expire.trim below {floor}, retained from v{trimmed.retained_from}", trimmed)
        if going := self._loose(s):
            left = tuple(n for n in s.stored if n not in going)
            yield Step("expire", f"expire.delete {list(going)}", s._replace(stored=left))

    def _loose(self, s: State) -> Names:
        """Files that nothing reaches; an open move can still be writing to its own, however old they are."""
        leased = (s.reader.version,) if s.reader.alive else ()
        bases = tuple(sorted({m.base for m in s.moves if m.state == PLANNED}))
        if "bases_not_reached" in self.bad:
            bases = ()
        both = "stream_view_only" not in self.bad
        kept = {*reached(s.versions, s.retained_from, leased, bases, s.named, batch=both)}
        if "delete_files_not_reached" in self.bad:
            kept -= _deletes_in(kept, s)
        if "deletes_of_names_not_reached" in self.bad:
            kept -= _deletes_in(kept - {*reached(s.versions, s.retained_from, leased, bases, batch=both)}, s)
        kept |= {*s.pointers[STREAM].files, *(s.pointers[BATCH].files if both else ())}
        staged = self._staged(s)
        return tuple(n for n in s.stored if n not in kept and build.may_condemn(True, n in staged, n in staged))

    def _staged(self, s: State) -> Names:
        """Files of attempts that are still open."""
        if "open_moves_ignored" in self.bad:
            return ()
        tiering = (s.tiering[1],) if s.tiering else ()
        working = [w for w in s.workers if w.staged >= 0 and s.moves[w.move].state == PLANNED]
        return (*tiering, *(n for w in working for n in (w.staged, *w.hides)))


def _deletes_in(names: set[int], s: State) -> set[int]:
    """The delete files among *names*."""
    return {name for _, name in delete_files(tuple(n for n in names if n >= 0), s.contents)}
