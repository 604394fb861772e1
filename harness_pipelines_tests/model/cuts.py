"""Cuts (decision 0057): two servers make, publish and answer them, while everything else moves the table.

A load asks the ledger for the newest cut, looks at the state, writes files, publishes and answers; each is a step, and
a server may die between any two. The life of the files is in `cut_files`. One partition; a row is an offset and a
value. A file of the stream view is ``(low, high, sequence, rows)``. The rows of a cut are counted as an engine does it:
all rows of the files that it names, less those that its deletes hide.

**Can rows of the buffer in ``[stream_hi, buffer_hi)`` change under a chunk?** No, as the code says:

- The tables of the buffer are written by COPY alone (`buffers/postgres/writer.py`). No statement in its SQL updates or
  deletes a row of one; they go as whole tables. So a row at an offset is there from its ingest commit on, or never.
- A record in quarantine is put back by a boundary commit of the lake (`ledgers/postgres/acts/corrections.py`), which
  adds the row to the views and to no segment. `waiting` refuses each record at or above `settled_below(head)`, that is
  `batch_hi`, or `stream_hi` without a batch view. `look` and `_commit` ask it under the locks of all boundary commits.
- A replayed range ends at or below the same bound (`stages/replay/ranges.py`: `check_range`), and its commit is the
  same one, so each of its records waits in the same way.
- A revert lowers `stream_hi` below corrected offsets. The buffer then answers with the rows that ingest wrote; the
  corrections are undone with their version. A chunk of these offsets is read from the buffer, never from the lake.

So what a chunk holds is fixed by its offsets and its maker, as long as chunks are made of the buffer alone. Without a
buffer the same holds of a log and its decoder: a correction is a row of the lake below `stream_hi` there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from harness_pipelines.protocol.cut_checks import FRESH, MERGED, check_deletes, check_freshness, check_rows
from harness_pipelines.protocol.cuts import check_newest, follows, next_sequence, part_key
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.cuts_state import (
    ASKED,
    IDLE,
    LOOKED,
    ODD,
    PUBLISHED,
    WRITTEN,
    Cut,
    File,
    Lake,
    Left,
    Load,
    Piece,
    Plan,
    Rows,
    State,
    between,
    id_of,
    listed_of,
    planned,
    rows_of,
    settled_of,
)
from harness_pipelines_tests.model.explorer import Step


@dataclass(frozen=True, slots=True)
class Cuts:
    """*records* records; *kind* of table: append, tail (without a buffer) or keyed; *bad*: see `mutants`."""

    left: Left = Left()  # noqa: RUF009  # a tuple, which nothing changes
    records: int = 2
    servers: int = 1
    kind: str = "append"
    keys: int = 1
    odd: bool = False  #: ingest refuses the first record, and a replay puts it back
    bad: frozenset[str] = frozenset()
    name: str = "cuts"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a maker is overtaken": lambda s: any(
                one.pc == WRITTEN and bool(s.newest) and one.last < s.last for one in s.loads
            ),
            "a file of the stream view straddles batch_hi in a cut": lambda s: bool(s.newest and s.newest.hidden),
            "a chunk is kept": lambda s: (
                bool(s.newest) and any(c.sequence < s.newest.sequence for c in s.newest.chunks)
            ),
            "a cut follows a revert": lambda s: bool(s.newest) and any(
                v.revert_of for v in s.versions[: s.newest.version]
            ),
            "a cut has a record that was put back": lambda s: bool(s.newest) and (ODD, 1) in rows_of(s.newest),
            "a chunk of the schema before is gone": lambda s: (
                bool(s.newest) and s.versions[s.newest.version - 1].schema > 1 and bool(s.newest.chunks)
            ),
            "a cut has what another decoder makes of the tail": lambda s: (
                bool(s.newest) and any(value == 2 for c in s.newest.chunks for _, value in c.rows)
            ),
            "a cut has recalled rows": lambda s: bool(s.newest and s.newest.recalled),
            "the newest cut is forgotten while one is made": lambda s: (
                not s.newest and s.last > 0 and any(one.late and one.pc == WRITTEN for one in s.loads)
            ),
            "a published cut is not answered with": lambda s: (
                bool(s.newest) and s.answered < (s.newest.version, s.newest.bound[3]) and _idle(s)
            ),
        }  # fmt: skip

    def first(self) -> State:
        return State(
            buffer_hi=0,
            decoder=1,
            versions=(Lake(),),
            held=False,
            slipped=False,
            newest=(),
            last=0,
            seen=(),
            answered=(0, 0),
            loads=(Load(),) * self.servers,
            left=self.left,
        )

    def canonical(self, state: State) -> State:
        return state._replace(loads=tuple(sorted(state.loads)))

    # -- safety ---------------------------------------------------------------------------------------------

    def broken(self, s: State) -> str | None:
        del s
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        what, then = step.what.partition(" ")[0], step.then
        if not step.who.startswith("server"):
            return None
        at = int(step.who.removeprefix("server")) - 1
        was, now = before.loads[at], then.loads[at]
        if what == "load.write":
            return self._broke_write(then, now)
        if what == "load.publish" and then.newest:
            return self._broke_publish(before, then.newest)
        if what in ("load.answer", "load.reuse", "load.same"):
            cut = was.draft or was.base or was.known
            wrong = self._broke_same(before, cut) if what == "load.same" else None
            return wrong or self._broke_answer(was.since if was.pc else before.answered, cut)
        return None

    def _broke_write(self, s: State, load: Load) -> str | None:
        cut, plan = load.draft, load.plan
        assert cut and plan
        lake = s.versions[plan.version - 1]
        wanted, found = self._read(s, plan), rows_of(cut)
        listed, buffer_hi = listed_of(cut), {0: max(lake.buffer_hi, plan.bound[3])}
        for finding in (
            *check_deletes(listed),
            *check_rows(listed, rows=len(wanted)),
            *check_freshness(listed, buffer_hi=buffer_hi if self.kind != "tail" else {}),
        ):
            return f"{finding.invariant}: {finding.detail}"
        for piece in cut.chunks:
            if piece.maker != self._maker(lake, plan):
                return f"S21: a chunk has the columns of {piece.maker}, the cut those of schema {lake.schema}"
        return None if found == wanted else f"S2: the cut has {list(found)}, a read of its plan {list(wanted)}"

    def _broke_publish(self, before: State, cut: Cut) -> str | None:
        rows = rows_of(cut)
        for sequence, number, had in before.seen:
            if sequence >= cut.sequence:
                return f"F2: a cut has sequence {cut.sequence}, one before it {sequence}"
            if number == cut.id:  # the one before may be alive
                return f"F2: one snapshot id for two cuts, of the rows {list(had)} and {list(rows)}"
        return None

    def _broke_same(self, s: State, cut: Cut | tuple[()]) -> str | None:
        """The state is that of the newest cut, as its id says."""
        assert cut
        plans = [p for p in self._looks(s) if self._identity(s.versions[p.version - 1], p, cut.sequence) == cut.id]
        for plan in plans:
            if rows_of(cut) != (wanted := self._read(s, plan)):
                return f"S2: the answer has {list(rows_of(cut))}, a read has {list(wanted)}"
        plan = plans[-1]
        return None if cut.bound == plan.bound else f"F2: one snapshot id for the bounds {cut.bound} and {plan.bound}"

    def _broke_answer(self, since: tuple[int, int], cut: Cut | tuple[()]) -> str | None:
        assert cut
        version, high = cut.version, cut.bound[3]
        fell = high < since[1] and (self.kind != "keyed" or version == since[0])
        if version < since[0] or fell:
            return f"S4: an answer of version {version} below {high}, after one of {since[0]} below {since[1]}"
        return None

    # -- liveness -------------------------------------------------------------------------------------------

    def is_goal(self, s: State) -> bool:
        return _idle(s)

    def show(self, s: State) -> str:
        head = s.head
        newest = f"cut {s.newest.sequence} of v{s.newest.version} {s.newest.bound}" if s.newest else "no cut"
        loads = ", ".join(f"{one.pc}{' late' if one.late else ''}" for one in s.loads)
        return (
            f"v{len(s.versions)} batch_hi {head.batch_hi} stream_hi {head.stream_hi} buffer_hi {s.buffer_hi} {newest} "
            f"loads {loads}"
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        if s.buffer_hi < self.records:
            held = s.held or (self.odd and s.buffer_hi == ODD)
            yield Step("ingest", "ingest.commit", s._replace(buffer_hi=s.buffer_hi + 1, held=held))
        yield from self._tier(s)
        yield from self._merge(s)
        yield from self._others(s)
        yield from self._replay(s)
        yield from self._recall(s)
        if s.left.forgets and s.newest:
            loads = tuple(one if one.pc == IDLE else one._replace(late=True) for one in s.loads)
            last = 0 if "numbers_begin_again" in self.bad else s.last
            left = s.left._replace(forgets=s.left.forgets - 1)
            then = s._replace(newest=(), last=last, loads=loads, left=left)
            yield Step("expire", "expire.forget", then)
        for at, one in enumerate(s.loads):
            yield from self._load(s, at, one)

    def _hot(self, s: State, low: int, high: int, decoder: int) -> Rows:
        """The rows of the buffer, or what *decoder* makes of the log."""
        value = decoder if self.kind == "tail" else 0
        hidden = self.odd and not s.slipped
        return tuple((o, value) for o in range(low, high) if o != ODD or not hidden)

    def _tier(self, s: State) -> Iterator[Step[State]]:
        head = s.head
        low = head.stream_hi
        for high in range(low + 1, s.buffer_hi + 1):
            rows = tuple(row for row in self._hot(s, low, high, s.decoder) if not (self.odd and row[0] == ODD))
            file = File(low, high, head.sequence + 1, rows)
            made = head._replace(stream_hi=high, stream=(*head.stream, file), sequence=head.sequence + 1)
            yield Step("tier", f"tier.publish to {high}", self._published(s, made, wrote=True))

    def _merge(self, s: State) -> Iterator[Step[State]]:
        head, left = s.head, s.left
        if not left.merges or head.batch_hi == head.stream_hi:
            return
        low, high = head.batch_hi, head.batch_hi + 1
        rows = tuple(row for file in head.stream for row in between(file.rows, low, high))
        made = head._replace(batch_hi=high, batch=(*head.batch, *rows), sequence=head.sequence + 1)
        if self.kind == "keyed":
            made = self._folded(s, made, rows[0])
        then = self._published(s, made)._replace(left=left._replace(merges=left.merges - 1))
        yield Step("otree", f"otree.publish to {high}", then)

    def _folded(self, s: State, made: Lake, row: tuple[int, int]) -> Lake:
        """The newest row of a key takes the place of the older one, in the lake or in the next generation."""
        key, old = row[0] % self.keys, s.head
        if any(offset % self.keys == key for offset, _ in old.recalled):
            rows = (*(one for one in old.recalled if one[0] % self.keys != key), row)
            return made._replace(batch=old.batch, generation=len(s.versions) + 1, recalled=tuple(sorted(rows)))
        batch = (*(one for one in old.batch if one[0] % self.keys != key), row)
        return made._replace(batch=tuple(sorted(batch)))

    def _others(self, s: State) -> Iterator[Step[State]]:
        head, left = s.head, s.left
        if left.compactions and len(head.stream) > 1:  # it may meet files on both sides of batch_hi
            rows = tuple(sorted(row for file in head.stream for row in file.rows))
            sequence = head.sequence + 1
            made = head._replace(stream=(File(head.stream[0].low, head.stream_hi, sequence, rows),), sequence=sequence)
            then = self._published(s, made, wrote=True)
            yield Step(
                "compact", "compact.publish", then._replace(left=left._replace(compactions=left.compactions - 1))
            )
        for target in range(1, len(s.versions) if left.reverts else 1):
            old = s.versions[target - 1]
            if old.schema == head.schema:
                made = old._replace(revert_of=target, sequence=head.sequence + 1)
                held = s.held or (self.odd and s.buffer_hi > ODD and (ODD, 1) not in old.batch)
                then = self._published(s, made, wrote=True)._replace(held=held and (ODD, 1) not in old.batch)
                left_then = left._replace(reverts=left.reverts - 1)
                yield Step("operator", f"revert.publish to v{target}", then._replace(left=left_then))
        if left.evolutions:
            then = self._published(s, head._replace(schema=head.schema + 1), wrote=True)
            yield Step("operator", "evolve.publish", then._replace(left=left._replace(evolutions=left.evolutions - 1)))
        if left.decoders and self.kind == "tail":
            left_then = left._replace(decoders=left.decoders - 1)
            yield Step("operator", "apply another decoder", s._replace(decoder=3 - s.decoder, left=left_then))

    def _replay(self, s: State) -> Iterator[Step[State]]:
        """The record that was refused becomes a row of both views."""
        if s.held and "replayed_into_the_buffer" in self.bad and not s.slipped and s.head.stream_hi <= ODD:
            yield Step("person", "replay.publish into the buffer", s._replace(slipped=True))
        if not s.held or settled_of(s.head) <= ODD:
            return  # it waits
        head = s.head
        row = (ODD, 1)
        file = File(ODD, ODD + 1, head.sequence + 1, (row,))
        made = head._replace(
            stream=(*head.stream, file), batch=tuple(sorted((*head.batch, row))), sequence=head.sequence + 1
        )
        yield Step("person", "replay.publish", self._published(s, made, wrote=True)._replace(held=False))

    def _recall(self, s: State) -> Iterator[Step[State]]:
        head, left = s.head, s.left
        if self.kind != "keyed" or not left.recalls:
            return
        left = left._replace(recalls=left.recalls - 1)
        number = len(s.versions) + 1
        if head.recalled:
            made = head._replace(batch=tuple(sorted((*head.batch, *head.recalled))), recalled=(), generation=0)
            yield Step("person", "release.publish", self._published(s, made)._replace(left=left))
        else:
            for row in head.batch:
                rest = tuple(one for one in head.batch if one != row)
                made = head._replace(batch=rest, recalled=(row,), generation=number)
                yield Step("person", f"recall.publish {row[0]}", self._published(s, made)._replace(left=left))

    @staticmethod
    def _published(s: State, made: Lake, *, wrote: bool = False) -> State:
        made = made._replace(buffer_hi=s.buffer_hi, wrote=len(s.versions) + 1 if wrote else made.wrote)
        if not made.revert_of or made.revert_of == s.head.revert_of:
            made = made._replace(revert_of=0)
        return s._replace(versions=(*s.versions, made))

    # -- a load ---------------------------------------------------------------------------------------------

    def _load(self, s: State, at: int, one: Load) -> Iterator[Step[State]]:
        who = f"server{at + 1}"
        if one.pc == IDLE and s.left.loads:
            then = s._replace(left=s.left._replace(loads=s.left.loads - 1))
            if "reuse_per_server" in self.bad and one.known:
                yield Step(who, "load.reuse its own", self._answered(then, at, one.known))
            begun = Load(ASKED, s.answered, s.newest, s.last, known=one.known)
            if "looks_first" in self.bad:
                for plan in self._looks(s):
                    yield Step(who, "load.look", _with(then, at, begun._replace(base=(), last=-1, plan=plan)))
            else:
                yield Step(who, "load.ask", _with(then, at, begun))
        if one.pc != IDLE and s.left.crashes:
            dead = s._replace(left=s.left._replace(crashes=s.left.crashes - 1))
            yield Step(who, "load.die", _with(dead, at, Load()))
        if one.pc == ASKED:
            yield from self._look(s, at, one)
        if one.pc == LOOKED:
            yield Step(who, "load.write", _with(s, at, one._replace(pc=WRITTEN, draft=self._draft(s, one))))
        if one.pc == WRITTEN:
            yield from self._publish(s, at, one)
        if one.pc == PUBLISHED:
            assert one.draft
            yield Step(who, "load.answer", self._answered(s, at, one.draft))

    def _look(self, s: State, at: int, one: Load) -> Iterator[Step[State]]:
        who = f"server{at + 1}"
        if one.plan:  # a mutant has looked already
            asked = one._replace(base=s.newest, last=s.last, pc=LOOKED)
            yield Step(who, "load.ask", _with(s, at, asked))
            return
        if one.base:
            yield Step(who, "load.reuse", self._answered(s, at, one.base))
        for plan in self._looks(s):
            if one.base and one.base.id == self._identity(s.versions[plan.version - 1], plan, one.base.sequence):
                yield Step(who, "load.same", self._answered(s, at, one.base))
            else:
                yield Step(who, f"load.look {plan.bound}", _with(s, at, one._replace(pc=LOOKED, plan=plan, late=False)))

    def _looks(self, s: State) -> Iterator[Plan]:
        head, number = s.head, len(s.versions)
        if self.kind == "keyed":
            yield Plan(number, (0, head.batch_hi, head.batch_hi, head.batch_hi), 0)
            return
        decoder = s.decoder if self.kind == "tail" else 0
        yield Plan(number, (0, head.batch_hi, head.stream_hi, s.buffer_hi), decoder)
        if s.left.lags and s.buffer_hi > head.stream_hi:
            yield Plan(number, (0, head.batch_hi, head.stream_hi, s.buffer_hi - 1), decoder)

    def _read(self, s: State, plan: Plan) -> Rows:
        """What a read of the plan gives: each tier within its bounds."""
        lake, (_, batch_hi, stream_hi, high) = s.versions[plan.version - 1], plan.bound
        stream = [row for file in lake.stream for row in between(file.rows, batch_hi, stream_hi)]
        hot = self._hot(s, stream_hi, high, plan.decoder)
        if self.odd and any(o == ODD for o, _ in hot):
            hot = tuple((o, 1 if o == ODD else value) for o, value in hot)
        batch = between(lake.batch, 0, batch_hi)
        return tuple(sorted([*batch, *between(lake.recalled, 0, batch_hi), *stream, *hot]))

    def _maker(self, lake: Lake, plan: Plan) -> str:
        return f"schema {lake.schema}, decoder {plan.decoder}"

    @staticmethod
    def _recalled_maker(lake: Lake) -> str:
        return f"recalled {lake.generation}, schema {lake.schema}"

    def _identity(self, lake: Lake, plan: Plan, sequence: int) -> int:
        """The id that a cut with this number has, if it is that of the plan."""
        makers = [self._maker(lake, plan), *([self._recalled_maker(lake)] if lake.recalled else ())]
        if "id_without_makers" in self.bad:
            makers = []
        version = 0 if "id_without_version" in self.bad else plan.version
        start, batch_hi, stream_hi, high = plan.bound
        if "id_without_batch_hi" in self.bad:
            batch_hi = 0
        if "id_without_sequence" in self.bad:
            sequence = 0
        return id_of(version, (start, batch_hi, stream_hi, high), tuple(makers), sequence)

    # -- the files of a cut ---------------------------------------------------------------------------------

    def _draft(self, s: State, one: Load) -> Cut:
        plan, base = one.plan, one.base
        assert plan
        lake, (_, batch_hi, stream_hi, high) = s.versions[plan.version - 1], plan.bound
        views = () if "sequence_ignores_views" in self.bad else (lake.sequence,)
        sequence = next_sequence(one.last, views)
        key, files, hidden = self._stream_part(lake, plan, base, sequence)
        freshness = MERGED if self.kind == "keyed" and "merged_is_fresh" not in self.bad else FRESH
        return Cut(
            sequence=sequence,
            id=self._identity(lake, plan, sequence),
            version=plan.version,
            bound=plan.bound,
            freshness=freshness,
            chunks=self._chunks(s, plan, base.chunks if base else (), stream_hi, high, sequence),
            recalled=self._recalled_part(lake, batch_hi, base, sequence),
            key=key,
            files=files,
            hidden=hidden,
            batch=lake.batch,
        )

    def _stream_part(
        self, lake: Lake, plan: Plan, base: Cut | tuple[()], sequence: int
    ) -> tuple[str, tuple[File, ...], tuple[tuple[int, File, int], ...]]:
        """Files that reach above `batch_hi`, and deletes of rows below; those of the last cut, if they still fit."""
        if self.kind == "keyed":
            return "", (), ()
        batch_hi = plan.bound[1]
        low = {} if "part_without_batch_hi" in self.bad else {0: batch_hi}
        key = part_key(f"{lake.wrote}.json", low)
        if base and base.key == key:
            return key, base.files, base.hidden
        files = tuple(file for file in lake.stream if file.high > batch_hi)
        if "straddle_unhidden" in self.bad:
            return key, files, ()
        hidden = tuple((sequence, file, row[0]) for file in files for row in file.rows if row[0] < batch_hi)
        return key, files, hidden

    def _chunks(
        self, s: State, plan: Plan, known: tuple[Piece, ...], low: int, high: int, sequence: int
    ) -> tuple[Piece, ...]:
        maker = self._maker(s.versions[plan.version - 1], plan)
        if "chunk_over_makers" in self.bad and known:
            maker = known[0].maker
        if "chunk_off_by_one" in self.bad:
            low = max(0, low - 1)
        wanted = low
        if "revert_ends_no_chunk" in self.bad and known:  # what the chunks had is taken for what there is
            wanted = max(low, min(high, *(piece.low for piece in known)))
        kept, written = planned(known, wanted, high, maker)
        if "straddling_chunk_kept" in self.bad and any(p.low < low < p.high for p in known) and not kept:
            return known
        chunks = [known[at] for at in kept]
        for (first, end), sources, read in written:
            rows = [row for at in sources for row in between(known[at].rows, first, end)]
            rows += self._hot(s, *read, plan.decoder) if read else ()
            rows = [(o, 1 if self.odd and o == ODD else value) for o, value in rows]
            chunks.append(Piece(first, end, tuple(sorted(rows)), maker, sequence))
        return tuple(chunks)

    def _recalled_part(self, lake: Lake, batch_hi: int, base: Cut | tuple[()], sequence: int) -> tuple[Piece, ...]:
        if not lake.recalled:
            return base.recalled if base and "recalled_kept_after_revert" in self.bad else ()
        maker = self._recalled_maker(lake)
        known = base.recalled if base else ()
        if kept := tuple(p for p in known if p.maker == maker or "recalled_without_generation" in self.bad):
            return kept
        return (Piece(0, batch_hi, lake.recalled, maker, sequence),)

    # -- and its publication --------------------------------------------------------------------------------

    def _answered(self, s: State, at: int, cut: Cut) -> State:
        known = cut if "reuse_per_server" in self.bad else ()
        return _with(s._replace(answered=max(s.answered, (cut.version, cut.bound[3]))), at, Load(known=known))

    def _publish(self, s: State, at: int, one: Load) -> Iterator[Step[State]]:
        who, draft = f"server{at + 1}", one.draft
        assert draft
        if self._may(s, one, draft):
            seen = (*s.seen, (draft.sequence, draft.id, rows_of(draft)))
            then = s._replace(newest=draft, last=draft.sequence, seen=seen)
            yield Step(who, f"load.publish {draft.sequence}", _with(then, at, Load(PUBLISHED, one.since, draft=draft)))
        else:
            again = Load(ASKED, one.since, s.newest, s.last, known=one.known)
            yield Step(who, "load.overtaken", _with(s, at, again))

    def _may(self, s: State, one: Load, draft: Cut) -> bool:
        if one.late and "lease_unchecked" not in self.bad:
            return False
        newest, last = s.newest, s.last
        previous = one.base.sequence if one.base else None
        is_newest = build.verdict(
            lambda: check_newest("t", newest=newest.sequence if newest else None, previous=previous)
        )
        if is_newest is not None and "previous_unchecked" not in self.bad:
            return False
        if draft.sequence <= last and "follows_unchecked" not in self.bad:
            return False
        if not newest or "follows_unchecked" in self.bad:
            return True
        return build.verdict(lambda: follows("t", newest, draft)) is None


# -- changes of state --------------------------------------------------------------------------------------


def _idle(s: State) -> bool:
    return all(one.pc == IDLE for one in s.loads)


def _with(s: State, at: int, one: Load) -> State:
    return s._replace(loads=(*s.loads[:at], one, *s.loads[at + 1 :]))
