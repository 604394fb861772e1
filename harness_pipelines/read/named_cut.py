"""From a named snapshot to the cut of its state: made once, and given out again as long as it is alive.

See decision 0057. What a snapshot pins never changes, so a cut of it is that of a version and of bounds, whatever names
they have. It follows on no cut, and none follows on it: it is apart from the newest cuts of its table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.ports.ledger import TableRow, TableUnknown
from harness_pipelines.ports.serving.cuts import Cut, CutDamaged, CutDraft, CutOvertaken
from harness_pipelines.protocol.cuts import MAKING_MAX, NAMED_MAKER, Chunk, may_begin_with
from harness_pipelines.read.cut import (
    CHECKED_EVERY_S,
    SERVED_EVERY,
    TRIES,
    Making,
    Ports,
    Served,
    chunk_maker,
    cut_bounds,
    make_cut,
    maker_of,
    makers_of,
)
from harness_pipelines.read.cut_tail import Known
from harness_pipelines.read.keyed_cut import KeyedCuts, as_served
from harness_pipelines.read.plan import Looked, lease_of_block, look_plan

log = structlog.get_logger(__name__)


class SnapshotInLog(TryAgain):
    """A part of the rows of a named snapshot is in the log alone, where they may still become other rows."""

    way_on = "let a worker tier the table; then load it again. `Table.read(at=...)` reads it as it is now"


@dataclass(kw_only=True)
class _Begun:
    """What is there of a state that is being made."""

    state: tuple[object, ...]
    keyed: KeyedCuts
    unnamed: list[tuple[Chunk, datetime]] = field(default_factory=list)  #: as in `Cutter`


class NamedCutter:
    """Makes the cuts of the named snapshots of one table in this process; one thread at a time.

    It remembers the chunks that it wrote for a cut that it had no time to publish, as long as no other
    state is asked for.
    """

    def __init__(self, stores: Ports, *, holder: str, keep: timedelta) -> None:
        self._stores, self._holder, self._keep = stores, holder, keep
        self._checked: dict[int, float] = {}  #: by the sequence of a cut when its files were there
        self._begun = self._nothing()

    def _nothing(self, state: tuple[object, ...] = ()) -> _Begun:
        return _Begun(state=state, keyed=KeyedCuts(self._stores, keep=self._keep, check=self._stores.cut_files.check))

    def load(self, table: TableRow, name: str) -> Served:
        """The cut of the state that the snapshot *name* pins of *table*.

        Raises: TableUnknown where it pins none; SnapshotInLog, CutImpossible, CutTooSlow, CutOverLimits, CutsFull,
        CutDamaged, CutRejected; CutOvertaken when other servers were faster every time; as `look_plan`.
        """
        for _ in range(TRIES):
            with suppress(CutOvertaken):
                return self._load(table, name)
        raise CutOvertaken(f"{table.name} as of {name}: other servers were faster {TRIES} times; load it again")

    def _load(self, table: TableRow, name: str) -> Served:
        cut, clock = self._known(table, name)
        if not cut.is_over:
            return self._again(table, cut, clock)
        began = time.monotonic()
        with self._looking(table, name) as found:
            looked = as_served(found)
            _check_settled(looked, name)
            making = Making(
                looked=looked,
                bounds=cut_bounds(looked.plan),
                maker=maker_of(looked),
                newest=cut,
                known=Known(chunks=self._chunks_of(looked, clock)),
                goes_on=bool(self._begun.unnamed),
                began=began,
                clock=clock,
            )
            cut = self._made_or_forgotten(making)
        self._checked[cut.sequence] = began
        log.info(
            "cut.published_named",
            table=table.name,
            snapshot=name,
            cut=cut.snapshot_id,
            version=cut.version,
            ms=round((time.monotonic() - began) * 1000, 1),
        )
        return Served(table=looked.table, cut=cut, made=True)

    def _known(self, table: TableRow, name: str) -> tuple[Cut, datetime]:
        found = self._stores.cuts.named(table, name)
        if found is None:
            raise TableUnknown(
                f"{table.name} is in no snapshot {name}; `harness snapshot list` shows those that there are"
            )
        return found

    def _again(self, table: TableRow, cut: Cut, clock: datetime) -> Served:
        """*cut*, with files that are there and stay. Raises: CutOvertaken, CutDamaged where it may not be retired."""
        now = time.monotonic()
        self._checked = {i: at for i, at in self._checked.items() if now - at < CHECKED_EVERY_S}
        if cut.sequence not in self._checked:
            try:
                self._stores.cut_files.check(cut)
            except CutDamaged as damage:
                self._stores.cuts.retire(cut)
                log.warning("cut.retired", table=table.name, cut=cut.snapshot_id, why=str(damage))
                raise CutOvertaken(f"{table.name}: cut {cut.snapshot_id} is retired: {damage}") from damage
            self._checked[cut.sequence] = now
        if cut.until < clock + self._keep - SERVED_EVERY:
            self._stores.cuts.serve(cut, keep=self._keep)
        return Served(table=table, cut=cut, made=False)

    @contextmanager
    def _looking(self, table: TableRow, name: str) -> Iterator[Looked]:
        with lease_of_block(self._stores) as lease_id:
            try:
                found = look_plan(
                    self._stores, table, at=name, tail=False, holder=self._holder, lease=MAKING_MAX, lease_id=lease_id
                )
            except TryAgain:
                raise
            except HarnessError:
                self._known(table, name)  # it may have been dropped just now
                raise
            yield found

    def _chunks_of(self, looked: Looked, clock: datetime) -> tuple[Chunk, ...]:
        """The chunks that there are of this state, since the last load had no time to publish them."""
        bounds = cut_bounds(looked.plan)
        state = (looked.plan.version, tuple(sorted(bounds.items())))
        if self._begun.state != state:
            self._begun = self._nothing(state)
        self._begun.unnamed = [one for one in self._begun.unnamed if may_begin_with(one[1], now=clock)]
        return tuple(chunk for chunk, _ in self._begun.unnamed)

    def _made_or_forgotten(self, making: Making) -> Cut:
        """Make the cut; what was written for it is forgotten unless the next load may go on from it."""
        try:
            cut = self._made(making)
        except CutDamaged as damage:
            self._begun.unnamed = []
            raise CutOvertaken(f"{damage}; load the table again") from damage
        except TryAgain:
            raise
        except BaseException:
            self._begun.unnamed = []  # one of them may be to blame
            raise
        self._begun = self._nothing()
        return cut

    def _made(self, making: Making) -> Cut:
        looked, begun = making.looked, self._begun

        def publish(draft: CutDraft) -> Cut:
            lease_id, keep = looked.plan.lease_id, self._keep
            return self._stores.cuts.publish_named(looked.table, draft, lease_id=lease_id, keep=keep)

        folds = bool(looked.plan.key)
        maker = chunk_maker(self._stores, begun.keyed, making, unnamed=begun.unnamed, folds=folds)
        makers = (*makers_of(looked, making.maker), NAMED_MAKER)
        return make_cut(self._stores, making, maker, makers=makers, publish=publish)


def _check_settled(looked: Looked, name: str) -> None:
    """Raises: SnapshotInLog."""
    if looked.plan.tail is not None:
        low = min(sorted(looked.plan.tail.low.items()))
        raise SnapshotInLog(
            f"{looked.table.name}: what snapshot {name} has of partition {low[0]} from offset {low[1]} on is in the "
            "log alone, after a revert of a table without a buffer; no cut of it was made"
        )
