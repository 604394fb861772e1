"""From the state of a table to a cut that any engine reads: look, write what no file has yet, publish.

See decision 0057. A load that finds nothing new writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from harness_pipelines import faults
from harness_pipelines.errors import TryAgain
from harness_pipelines.formats.records import decoder_name
from harness_pipelines.ports.access import (
    HasBatchKeys,
    HasBufferReader,
    HasCutFiles,
    HasCuts,
    HasLakeReads,
    HasLeases,
    HasLog,
    HasSchemas,
    HasTables,
)
from harness_pipelines.ports.errors import LogRewritten
from harness_pipelines.ports.ledger import ReadState, TableRow, TableUnknown
from harness_pipelines.ports.serving.cuts import (
    Cut,
    CutDamaged,
    CutDraft,
    CutImpossible,
    CutOvertaken,
    CutsFull,
    Found,
    Newest,
)
from harness_pipelines.ports.serving.keys import CutOverLimits
from harness_pipelines.protocol.cuts import (
    MAKING_MAX,
    Chunk,
    CutBounds,
    is_young,
    may_begin_with,
    shows_all_of,
    snapshot_id,
    too_large,
    was_within,
)
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.read.cut_chunks import RECALLED, ChunkMaker, Chunks, recalled_maker
from harness_pipelines.read.cut_tail import Known, check_log_reaches, still_right
from harness_pipelines.read.keyed_cut import (
    KeyedCuts,
    as_served,
    as_written,
    check_buffered,
    merged_bounds,
    shows_as_much,
)
from harness_pipelines.read.plan import Looked, glanced, lease_of_block, look_plan

log = structlog.get_logger(__name__)
MAKING_S_MAX = MAKING_MAX.total_seconds()
TRIES = 5  #: how often other servers may be faster
CHUNKS_MAX = 900  #: the ledger takes a thousand files of a cut
COMPARED_EVERY_S = 10.0  #: how often the log is asked whether it is still the one that chunks of a tail are of
CHECKED_EVERY_S = 10.0  #: a cut is given out again for so long before its files are looked for once more
SERVED_EVERY = timedelta(seconds=1)  #: the ledger notes no smaller difference
FULL_MAX = timedelta(minutes=1)  #: how old the newest cut of a table may be that has as many as the ledger takes


class Ports(
    HasBatchKeys,
    HasBufferReader,
    HasCutFiles,
    HasCuts,
    HasLakeReads,
    HasLeases,
    HasLog,
    HasSchemas,
    HasTables,
    Protocol,
):
    """The ports that it uses."""


class CutTooSlow(TryAgain):
    """Making the cut took longer than a lease of its maker lasts; the next load goes on from what was written."""

    way_on = "load it again, at the same server; let a worker tier the table, so that less is above the lake"


class MergedBehind(TryAgain):
    """The merged state of a keyed table shows less than it did, or none of its rows: its batch view is made again."""

    way_on = "let a worker merge the table; then load it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a load answers with."""

    table: TableRow
    cut: Cut
    made: bool  #: by this load
    behind: int = 0  #: how many offsets the cut leaves out that the look has found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shown:
    """A state that a cut was found to show."""

    sequence: int  #: of the cut
    state: ReadState
    table: TableRow  #: with the columns of the state


class Cutter:
    """Makes the cuts of one table in this process; one thread at a time.

    It remembers the chunks that it wrote for a cut that was not published, as time ran out or another server was
    faster: its next cut goes on from them. So a buffer of any size is served after some loads.
    """

    def __init__(self, stores: Ports, *, holder: str, keep: timedelta, every: timedelta) -> None:
        self._stores, self._holder = stores, holder
        self._keep, self._every = keep, every
        self._keyed = KeyedCuts(stores, keep=keep, check=self._check)
        #: Sequence of the newest cut, when the state was that of it, and how many offsets it left out.
        self._looked: tuple[int, float, int] | None = None
        self._shown: Shown | None = None  #: by the newest cut
        self._checked: dict[int, float] = {}  #: when the files of a cut were there, by its sequence
        self._unnamed: list[tuple[Chunk, datetime]] = []  #: with a moment of the ledger's clock before it was written
        self._replaced: frozenset[str] = frozenset()  #: paths of chunks whose records the log has no more
        self._published = ""  #: the lease of the last cut
        self._compared_at: float | None = None  #: when the log was found to be the one that the chunks are of

    def load(self, table: TableRow, found: Found | None = None) -> Served:
        """The newest cut, which is that of the state as it is now or was within `every`.

        *found*: what the ledger was asked for just now, by the caller; else it is asked.
        Raises: CutImpossible, CutTooSlow, CutsFull, CutDamaged, LogEndsBelowCut; CutOvertaken when other servers were
        faster every time; as `look_plan` and, of a decoded tail, as `tail_batches`.
        """
        for _ in range(TRIES):
            with suppress(CutOvertaken):
                return self._load(table, found)
            found = None
        raise CutOvertaken(f"{table.name}: other servers published a newer cut {TRIES} times; load it again")

    def again(self, table: TableRow, cut: Cut) -> Served:
        """*cut*, which another load was given, if it is alive. Raises: CutDamaged, CutOvertaken."""
        self._check(cut)
        self._stores.cuts.serve(cut, keep=self._keep)
        return Served(table=table, cut=cut, made=False)

    def _load(self, table: TableRow, found: Found | None) -> Served:
        asked = time.monotonic() if found is None else found.asked
        seen = self._stores.cuts.newest(table) if found is None else found.newest
        newest = seen.cut
        try:
            return self._of_now(table, seen, asked) or self._looked_for(table, seen)
        except CutDamaged as damage:
            if newest is None or newest.is_over:
                raise
            self._stores.cuts.retire(newest)
            log.warning("cut.retired", table=table.name, cut=newest.snapshot_id, why=str(damage))
            raise CutOvertaken(f"{table.name}: cut {newest.snapshot_id} is retired: {damage}") from damage
        except CutsFull:
            newest, clock, _ = self._stores.cuts.newest(table)
            if newest is None or newest.is_over or not was_within(FULL_MAX, newest.looked_at, now=clock):
                raise
            return self._again(table, newest, clock)

    def _of_now(self, table: TableRow, seen: Newest, asked: float) -> Served | None:
        """The newest cut, if it is young or shows the state that the ledger had at this instant: its files are there.

        Rows that only the log has are not compared: the ledger does not know where it ends.
        """
        newest, clock, state = seen
        if newest is None or newest.is_over:
            return None
        if self._is_young(newest, clock):
            return replace(self._again(table, newest, clock), behind=self._behind_of(newest))
        if state is None or not table.intake.buffered:
            return None
        shown = self._shown
        if shown is None or shown.state is not state or shown.sequence != newest.sequence:
            looked = as_served(glanced(self._stores, table, state))
            if not shows(newest, looked, cut_bounds(looked.plan), maker_of(looked)):
                return None
            shown = self._shown = Shown(sequence=newest.sequence, state=state, table=looked.table)
        served = self._again(shown.table, newest, clock)
        self._looked = (newest.sequence, asked, 0)
        return served

    def _looked_for(self, table: TableRow, seen: Newest) -> Served:
        """The cut of the state that a look finds, which keeps its rows meanwhile."""
        newest, clock, _ = seen
        began = time.monotonic()
        with self._looking(table) as found:
            looked = as_served(found)
            bounds, maker = cut_bounds(looked.plan), maker_of(looked)
            check_log_reaches(looked, newest, bounds)
            known = self._known(looked, newest, maker, clock=clock, now=began)
            making = Making(
                looked=looked,
                bounds=bounds,
                maker=maker,
                newest=newest,
                known=known,
                goes_on=bool(self._unnamed),
                began=began,
                clock=clock,
            )
            try:
                served = self._again_or_made(making)
            except CutOverLimits as over:
                served = self._within_limits(making, over)
        self._looked = (served.cut.sequence, began, served.behind)
        return served

    def _behind_of(self, newest: Cut) -> int:
        """How many offsets it left out when this server looked last."""
        sequence, _, behind = self._looked or (0, 0.0, 0)
        return behind if sequence == newest.sequence else 0

    def _again_or_made(self, making: Making) -> Served:
        newest, looked = making.newest, making.looked
        if newest is None or not shows(newest, looked, making.bounds, making.maker):
            return self._made_or_overtaken(making)
        if not making.known.has(newest.chunks):
            return self._made_or_overtaken(making)
        return self._again(looked.table, newest, making.clock)

    def _within_limits(self, making: Making, over: CutOverLimits) -> Served:
        """The state of the last merge, if it shows all that the last cut does; else that cut.

        Raises: CutOverLimits where the table's spec wants that; MergedBehind where there is neither.
        """
        looked, newest = making.looked, making.newest
        if looked.table.spec.serve.over == "refuse":
            raise over
        bounds = merged_bounds(looked.plan)
        if shows_as_much(bounds, newest) and not _shows_nothing(bounds, looked.plan):
            served = self._again_or_made(replace(making, bounds=bounds))
        elif newest is not None and not newest.is_over:
            served = self._again(looked.table, newest, making.clock)
        else:
            what = "its merged state shows less than it did, or none of its rows yet"
            raise MergedBehind(f"{looked.table.name}: {what}") from over
        behind = _behind(looked, served.cut)
        log.info("cut.over_limits", table=looked.table.name, cut=served.cut.snapshot_id, behind=behind, why=str(over))
        return replace(served, behind=behind)

    def _made_or_overtaken(self, making: Making) -> Served:
        looked, newest = making.looked, making.newest
        if newest is not None and not newest.is_over:
            self._check(newest)  # what is made may name its files again
        try:
            cut = self._made(making)
        except CutOvertaken:
            newer, clock, _ = self._stores.cuts.newest(looked.table)
            if newer is None or not answers(newer, looked, making.bounds, making.maker):
                raise
            with suppress(CutDamaged):  # the next try retires it
                return self._again(looked.table, newer, clock)
            raise
        except CutDamaged as damage:
            self._unnamed = []
            if making.goes_on:  # what is damaged may be one of these, and not the newest cut
                raise CutOvertaken(f"{damage}; load the table again") from damage
            raise
        except TryAgain:
            raise
        except LogRewritten as error:  # the log is another one since the chunks were compared with it
            self._compared_at = None
            raise CutOvertaken(f"{error}; load the table again") from error
        except BaseException:
            self._unnamed = []  # one of them may be to blame
            raise
        self._checked[cut.sequence] = min([making.began, *self._checked.values()])  # of files that it names again
        return Served(table=looked.table, cut=cut, made=True)

    def _again(self, table: TableRow, cut: Cut, clock: datetime) -> Served:
        """*cut*, with files that are there and stay. Raises: CutDamaged, CutOvertaken."""
        self._check(cut)
        if cut.until < clock + self._keep - SERVED_EVERY:
            self._stores.cuts.serve(cut, keep=self._keep)
        return Served(table=table, cut=cut, made=False)

    def _check(self, cut: Cut) -> None:
        """Its files were there some seconds ago. Raises: CutDamaged."""
        now = time.monotonic()
        self._checked = {one: at for one, at in self._checked.items() if now - at < CHECKED_EVERY_S}
        if cut.sequence not in self._checked:
            self._stores.cut_files.check(cut)
            self._checked[cut.sequence] = now

    def _is_young(self, newest: Cut, clock: datetime) -> bool:
        """Whether it is, or this process has just seen that nothing is newer: an engine loads several times."""
        is_seen = self._looked is not None and self._looked[0] == newest.sequence
        return is_young(newest.looked_at, newest.until, now=clock, every=self._every, keep=self._keep) or (
            is_seen and self._looked is not None and time.monotonic() - self._looked[1] < self._every.total_seconds()
        )

    def _known(self, looked: Looked, newest: Cut | None, maker: str, *, clock: datetime, now: float) -> Known:
        """The chunks of the last cut, and those that this server wrote since, as far as they are still right."""
        self._unnamed = [(chunk, born) for chunk, born in self._unnamed if may_begin_with(born, now=clock)]
        there = [*(newest.chunks if newest else ()), *(chunk for chunk, _ in self._unnamed)]
        chunks = [chunk for chunk in there if chunk.path not in self._replaced]
        due = self._compared_at is None or now - self._compared_at >= COMPARED_EVERY_S
        known = still_right(self._stores, looked, chunks, maker=maker, compare=due)
        self._replaced |= known.replaced
        if due:
            self._compared_at = now
        return known

    @contextmanager
    def _looking(self, table: TableRow) -> Iterator[Looked]:
        with lease_of_block(self._stores, is_over=lambda lease_id: lease_id == self._published) as lease_id:
            yield look_plan(
                self._stores,
                table,
                at=None,
                tail=not table.intake.buffered and not table.spec.key,  # the merged state has none
                holder=self._holder,
                lease=MAKING_MAX,
                lease_id=lease_id,
            )

    def _made(self, making: Making) -> Cut:
        looked, previous = making.looked, making.newest.sequence if making.newest else None

        def publish(draft: CutDraft) -> Cut:
            lease_id, keep = looked.plan.lease_id, self._keep
            return self._stores.cuts.publish(looked.table, draft, previous=previous, lease_id=lease_id, keep=keep)

        folds = bool(looked.plan.key) and making.bounds != merged_bounds(looked.plan)
        if folds:
            check_buffered(looked)
        maker = chunk_maker(self._stores, self._keyed, making, unnamed=self._unnamed, folds=folds)
        cut = make_cut(self._stores, making, maker, makers=makers_of(looked, making.maker), publish=publish)
        self._unnamed, self._replaced, self._published = [], frozenset(), looked.plan.lease_id
        maker.published(cut)
        log.info(
            "cut.published",
            table=looked.table.name,
            cut=cut.snapshot_id,
            version=cut.version,
            chunks=len(cut.chunks),
            written=maker.written,
            rows=maker.rows,
            ms=round((time.monotonic() - making.began) * 1000, 1),
        )
        return cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """A cut that is being made."""

    looked: Looked
    bounds: CutBounds
    maker: str  #: see `maker_of`
    newest: Cut | None
    known: Known
    goes_on: bool  #: chunks that no cut names are among these
    began: float  #: by this process's clock
    clock: datetime  #: the ledger's, then

    def check(self) -> None:
        """Raises: CutTooSlow."""
        if time.monotonic() - self.began > MAKING_S_MAX:
            raise CutTooSlow(
                f"{self.looked.table.name}: making a cut took longer than {MAKING_S_MAX:g} s; nothing was published. "
                "The next load of this server goes on from what was written"
            )


def chunk_maker(
    stores: Ports, keyed: KeyedCuts, making: Making, *, unnamed: list[tuple[Chunk, datetime]], folds: bool
) -> ChunkMaker:
    """What makes the chunks of a cut: one row for each key if it *folds* what is above the batch view.

    The chunks that another cut may go on from if this one is not published go to *unnamed*.
    """
    chunks = Chunks(
        stores,
        making.looked,
        making.bounds,
        making.known,
        maker=making.maker,
        sequence=making.newest.sequence + 1 if making.newest else 0,
        check=making.check,
        wrote=lambda chunk: unnamed.append((chunk, making.clock)),
    )
    if not folds:
        return chunks
    return keyed.maker(
        making.looked,
        making.bounds,
        making.newest,
        maker=making.maker,
        recalled=chunks.recalled(),
        check=making.check,
    )


def make_cut(
    stores: Ports, making: Making, maker: ChunkMaker, *, makers: tuple[str, ...], publish: Callable[[CutDraft], Cut]
) -> Cut:
    """Write the chunks and the metadata of a cut and *publish* it. *makers* are as in `protocol.cuts.snapshot_id`.

    Its times are by the ledger's clock. Raises: CutImpossible, CutTooSlow, TableUnknown; as *maker* and *publish*.
    """
    looked = making.looked
    if why := too_large(making.bounds):
        raise CutImpossible(f"{looked.table.name}: {why}; nothing was written")
    chunks: list[Chunk] = []
    for chunk in maker.chunks():
        chunks.append(chunk)
        if len(chunks) > CHUNKS_MAX:
            raise CutImpossible(
                f"{looked.table.name}: the rows above the lake are more than {CHUNKS_MAX} files, and a cut may not "
                "name more; let a worker tier the table"
            )
    making.check()
    faults.point("serve.after_chunks")
    _check_there(stores, looked.table)
    draft = stores.cut_files.write_cut(
        looked.table,
        looked.state.version,
        as_written(looked.plan),
        chunks=chunks,
        previous=making.newest,
        bounds=making.bounds,
        makers=makers,
        now_ms=int((making.clock.timestamp() + time.monotonic() - making.began) * 1000),
    )
    faults.point("serve.after_files")
    making.check()
    cut = publish(draft)
    faults.point("serve.after_commit")
    return cut


def _check_there(stores: Ports, table: TableRow) -> None:
    """Files of a table that was dropped meanwhile would stay. Raises: TableUnknown."""
    if not stores.cuts.is_there(table):
        raise TableUnknown(f"{table.name} was dropped while a cut of it was made; what was written of it is left")


def _shows_nothing(bounds: CutBounds, plan: ReadPlan) -> bool:
    """Whether *bounds* have no offset though the state has: no rows would be taken for an empty table."""
    is_empty = all(start == high for start, _, _, high in bounds.values())
    return is_empty and any(b.buffer_hi > b.start for b in plan.bounds.values())


def cut_bounds(plan: ReadPlan) -> CutBounds:
    """Up to which offset each part of the cut of *plan* reaches."""
    tail = plan.tail.high if plan.tail else {}
    return {p: (b.start, b.batch_hi, b.stream_hi, tail.get(p, b.buffer_hi)) for p, b in plan.bounds.items()}


def _behind(looked: Looked, cut: Cut) -> int:
    """Offsets that the state has and the cut has not."""
    ends = cut_bounds(looked.plan)
    return sum(max(0, ends[p][3] - high) for p, (_, _, _, high) in cut.bounds.items() if p in ends)


def makers_of(looked: Looked, maker: str) -> tuple[str, ...]:
    """What decides the rows of a cut besides its version and bounds; *maker* is `maker_of`."""
    return (maker, *([recalled_maker(looked.plan)] if looked.plan.overlay else ()))


def maker_of(looked: Looked) -> str:
    """What the rows above the lake are made with: their columns, and where they are decoded here, the decoder."""
    columns = f"schema {looked.plan.schema_version}"
    return columns if looked.table.intake.buffered else f"{columns}, decoder {decoder_name(looked.table.spec)}"


def shows(cut: Cut, looked: Looked, bounds: CutBounds, maker: str) -> bool:
    """Whether *cut* is one of the state that was looked at, as its id says, and its files are there."""
    plan, makers = looked.plan, makers_of(looked, maker)
    wanted = snapshot_id(plan.table_id, plan.version, bounds, sequence=cut.sequence, makers=makers)
    return not cut.is_over and cut.snapshot_id == wanted


def answers(cut: Cut | None, looked: Looked, bounds: CutBounds, maker: str) -> bool:
    """Whether *cut*, of a server that was faster, shows all that was found here, decoded in the same way."""
    if cut is None or cut.is_over or not shows_all_of(cut, version=looked.plan.version, bounds=bounds):
        return False
    others = {chunk.maker for chunk in cut.chunks if not chunk.maker.startswith(RECALLED)} - {maker}
    return looked.table.intake.buffered or not others
