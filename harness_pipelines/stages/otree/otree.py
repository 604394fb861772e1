"""OTree: move rows of the stream view into the batch view, clustered by value.

Two kinds of moves alternate. A *merge* takes ``[batch_hi, stream_hi)`` and stages its rows by region; a *relayout*
rewrites the regions to which much was added, cuts those that grew large, and moves no bound. In a keyed table a merge
stages the newest put of each key; older ones of these keys it hides where they are, by position deletes, and writes
files in which many are hidden. Changes of recalled keys go to the next generation of these rows in Postgres.
Recalls and releases are moves without ranges, as relayouts are (`harness_pipelines.stages.otree.recalled`).

plan: choose ranges, or that regions are due. stage: Spark writes one file per region to the attempt's branch.
publish: the boundary commit, with the tree as it is from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Protocol

import structlog

from harness_pipelines.layout.balance import balanced
from harness_pipelines.layout.files import FileStats, might_hold
from harness_pipelines.layout.requested import Request, as_due, at_once, left_of
from harness_pipelines.layout.rewrites import Rewrite, has_all_of, not_all_of, not_grown, taken_along
from harness_pipelines.layout.sampling import Sample, is_one_piece, is_telling, share_to_draw
from harness_pipelines.layout.tree import RegionTree, indexed_columns
from harness_pipelines.ports.access import (
    HasEngine,
    HasLake,
    HasLakeReads,
    HasLedger,
    HasOverlays,
    HasRecalls,
    HasReclusters,
    HasSignOffs,
    HasTables,
)
from harness_pipelines.ports.engine import Arranging, KeyChanges, Met, Rows
from harness_pipelines.ports.errors import BaseGone
from harness_pipelines.ports.lake import NOTHING_STAGED, Staged
from harness_pipelines.ports.lake_writes import Hidden, Replacement
from harness_pipelines.ports.ledger import Boundary, LayoutState, MoveDraft, Swap, TableRow
from harness_pipelines.protocol.bounds import Vector, unmerged
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake.files import check_merged_into
from harness_pipelines.protocol.lake.overlays import OverlayChange, OverlayRequest, next_generation
from harness_pipelines.protocol.moves import Move, MoveState, budget_of, may_relayout, plan_ranges, waited_s
from harness_pipelines.protocol.versions import Version, View
from harness_pipelines.read.clustering import BUDGET_BYTES, Clustering, layout_of, target_bytes, target_rows_of
from harness_pipelines.stages.otree import look, recalled
from harness_pipelines.stages.otree.look import NOT_BETTER
from harness_pipelines.stages.run.moving import FAILURES_MAX, Moving, Pointless, Tally, TooLarge, base_of, make_branch

if TYPE_CHECKING:
    from harness_pipelines.layout.files import Positions

log = structlog.get_logger(__name__)
MOVE_OFFSETS_MAX = 50_000_000
LEFT_OUT = "it failed in every attempt, and its files are left out until they change or somebody reclusters"
REFUSED = "it failed in every attempt, and what was asked for is refused"
HIDDEN_SHARE_MAX = 0.2  #: of a file's rows, above which the file is rewritten: readers still read what is hidden


class Ports(
    HasEngine,
    HasLake,
    HasLakeReads,
    HasLedger,
    HasOverlays,
    HasRecalls,
    HasReclusters,
    HasSignOffs,
    HasTables,
    Protocol,
):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one attempt staged."""

    staged: Staged
    layout: Clustering | None = None  #: where it changes
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    fresh: tuple[str, ...] = ()  #: the regions that a merge clustered
    change: Replacement | None = None  #: what goes for it; None: it is appended
    on: int | None = None  #: the one snapshot that it may be published on; None: any that still has the files
    overlays: OverlayChange | None = None  #: what becomes of the recalled rows


def trigger(
    stores: Ports, table: TableRow, *, idle: bool = False, judged: str | None = None, seen_s: float = 0.0
) -> str | None:
    """Why otree should move now: ``recovery``, ``idle``, ``rows``, ``age``, ``request`` or ``due``; ``None``: need not.

    A ``request`` is one to recall, to release or to recluster.

    *idle*: tier has nothing left to move, and whatever the batch view lacks is merged at once. *judged* is a metadata
    file of the batch view in which nothing was due. *seen_s*: for how long the caller has seen no move of otree.
    """
    if stores.tables.open_move(table, Stage.OTREE, shard=0) is not None:
        return "recovery"
    head = stores.tables.head(table)
    lag = sum(r.span for r in unmerged(head.bounds).values())
    if lag and idle:
        return "idle"
    if lag >= table.spec.tier.max_rows:
        return "rows"
    if lag and waited_s(_since_s(stores, table), seen_s=seen_s) >= table.spec.freshness.lake:
        return "age"
    if stores.recalls.open(table) or stores.reclusters.open(table):
        return "request"
    if head.batch is None or head.batch.metadata == judged:
        return None
    return "due" if look.due(stores, table, head, budget_bytes=BUDGET_BYTES) else None


def _since_s(stores: Ports, table: TableRow) -> float:
    """Seconds since the last move of otree, by the database's clock; endless before the first."""
    last = next(iter(stores.tables.moves(table, stage=Stage.OTREE, limit=1)), None)
    if last is None:
        return inf
    return float((stores.sign_offs.now() - (last["committed_at"] or last["planned_at"])).total_seconds())


def otree_once(
    stores: Ports, table: TableRow, claim: Claim, *, trigger: str, run_id: str | None = None, done: Tally | None = None
) -> Version | None:
    """Merge what the stream view has more, or rewrite regions that are due; ``None`` when there is nothing to do.

    Raises: MoveStuck, FencedOut (NEVER); TryAgain when Spark or a store is away.
    """
    _give_up(stores, table, claim, done or Tally())
    return Moving(stores, table, _OTree(stores, table), tally=done).once(claim, trigger=trigger, run_id=run_id)


def _give_up(stores: Ports, table: TableRow, claim: Claim, done: Tally) -> None:
    """Abandon a move without ranges that failed in all attempts: no merge waits for it (L8).

    The files of a relayout are left out, what a person asked to recall or to release is refused.
    """
    move = stores.ledger.open_move(table, Stage.OTREE, shard=claim.shard)
    if move is None or move.ranges:
        return
    last = next(m for m in stores.ledger.moves(table, stage=Stage.OTREE) if m["move_id"] == move.move_id)
    if move.state is MoveState.PLANNED and last["failures"] < FAILURES_MAX:
        return
    if move.recall is not None:
        stores.recalls.refuse(move, detail=f"it failed in every attempt: {last['error']}")
        stores.ledger.close_move(claim, move, state=MoveState.ABANDONED, error=REFUSED)
        done.given_up += 1
        return
    taken = list[str]()
    with suppress(BaseGone):
        base = base_of(stores, table, move)
        assert base.batch is not None
        files = stores.lake.region_files(table, base.batch.metadata)
        taken = [file.path for part in _taken(stores, table, move, base, files) for file in part.files]
    stores.reclusters.leave_out(table, move_id=move.move_id, files=taken, error=str(last["error"]))
    stores.ledger.close_move(claim, move, state=MoveState.ABANDONED, error=LEFT_OUT)
    done.given_up += 1
    log.warning("otree.files_left_out", table=table.name, move=move.move_id, files=len(taken), error=last["error"])


@dataclass(frozen=True, slots=True)
class _OTree:
    stores: Ports
    table: TableRow
    name: Stage = Stage.OTREE

    def plan(self, claim: Claim, *, trigger: str, run_id: str | None, below: Vector | None = None) -> Move | None:
        return plan(self.stores, self.table, claim, trigger=trigger, run_id=run_id, below=below)

    def stage(self, move: Move) -> Attempt:
        return stage(self.stores, self.table, move)

    def publish(self, claim: Claim, move: Move, attempt: Attempt) -> Version:
        return publish(self.stores, self.table, claim, move, attempt)


# -- plan ---------------------------------------------------------------------------------------------------


def plan(
    stores: Ports, table: TableRow, claim: Claim, *, trigger: str, run_id: str | None, below: Vector | None = None
) -> Move | None:
    """Record a merge of what the stream view has more, or a move without ranges: a recall, a relayout that is due."""
    head = stores.ledger.head(table)
    lo, hi = plan_ranges(unmerged(head.bounds), offsets_max=_offsets_max(stores, table))
    parts: list[Rewrite] = []
    recall: int | None = None
    if below is not None:
        lo, hi = {p: lo[p] for p in below}, dict(below)
    elif (recall := _recall_first(stores, table, merge=bool(lo))) is not None:
        lo, hi = {}, {}
    elif _relayout_first(stores, table, head, merge=bool(lo)):
        lo, hi, parts = {}, {}, _requested(stores, table, head)
    elif not lo:
        return None
    draft = MoveDraft(
        stage=Stage.OTREE,
        shard=claim.shard,
        lo=lo,
        hi=hi,
        base_version=head.version,
        schema_version=table.schema_version,
        trigger=trigger,
        run_id=run_id,
        parts=[part.path for part in parts],
        recall=recall,
    )
    return stores.ledger.plan_move(claim, draft)


def _offsets_max(stores: Ports, table: TableRow) -> int:
    return min(MOVE_OFFSETS_MAX, stores.engine.offsets_max(table, Stage.OTREE) or MOVE_OFFSETS_MAX)


def _check_size(stores: Ports, table: TableRow, move: Move) -> None:
    """A spec may name another engine since the move was planned. Raises: TooLarge."""
    offsets_max = _offsets_max(stores, table)
    _, within = plan_ranges({r.partition: r for r in move.ranges}, offsets_max=offsets_max)
    if any(r.high > within[r.partition] for r in move.ranges):
        raise TooLarge(
            f"{table.name}: otree move {move.move_id} was planned for {sum(r.span for r in move.ranges)} offsets, and "
            f"the engine that does it now takes {offsets_max} at once; the move is planned again"
        )


def _recall_first(stores: Ports, table: TableRow, *, merge: bool) -> int | None:
    """The oldest request to recall or release rows, if it is the turn of a move without ranges."""
    asked = next(iter(stores.recalls.open(table)), None)
    return None if asked is None or not _may_relayout(stores, table, merge=merge) else asked.recall_id


def _relayout_first(stores: Ports, table: TableRow, head: Version, *, merge: bool) -> bool:
    if not _may_relayout(stores, table, merge=merge):
        return False
    return bool(_requested(stores, table, head) or look.due(stores, table, head, budget_bytes=BUDGET_BYTES))


def _may_relayout(stores: Ports, table: TableRow, *, merge: bool) -> bool:
    last = next(iter(stores.ledger.moves(table, stage=Stage.OTREE, limit=1)), None)
    return may_relayout(rows_wait=merge, last_merged=last is not None and bool(last["lo"]))


def _requested(stores: Ports, table: TableRow, head: Version) -> list[Rewrite]:
    """What one move takes of the oldest request of a person; requests of which nothing is left are ended."""
    for request in stores.reclusters.open(table):
        failed = [one.files for one in stores.reclusters.left_out(table)]
        left = [d for d in left_of_request(stores, table, head, request) if not has_all_of(failed, d.files)]
        if taken := at_once(left, budget_bytes=BUDGET_BYTES):
            return not_all_of(failed, taken)
        stores.reclusters.end(table, request)
        log.info("otree.request_done", table=table.name, request=request.request_id)
    return []


def left_of_request(stores: Ports, table: TableRow, head: Version, request: Request) -> list[Rewrite]:
    """The parts of the batch view of *head* that *request* still means, each within the byte budget of a move."""
    layout = layout_of(stores, table, head)
    if layout is None or head.batch is None:
        return []
    files = stores.lake.region_files(table, head.batch.metadata)
    return left_of(request, layout.tree, files, layout.clustered, budget_bytes=BUDGET_BYTES)


# -- stage --------------------------------------------------------------------------------------------------


def stage(stores: Ports, table: TableRow, move: Move) -> Attempt:
    """Let the engine write the move's rows by region to the attempt's branch, and check from metadata what it wrote."""
    _check_size(stores, table, move)
    base = make_branch(stores, table, move)
    layout = layout_of(stores, table, base)
    if move.recall is not None:
        if stores.recalls.find(table, move.recall).act is OverlayRequest.RECALL:
            return _stage_recall(stores, table, move, base=base)
        return _stage_release(stores, table, move, base=base, layout=layout)
    if move.ranges:
        return _stage_merge(stores, table, move, base=base, layout=layout)
    assert layout is not None, "a relayout is planned only where there is a tree"
    return _stage_relayout(stores, table, move, base=base, layout=layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Incoming:
    """What a merge writes, and the files that this stands for."""

    source: Rows
    rows: int
    bytes: int  #: of them in files, about
    replaced: tuple[FileStats, ...] = ()
    hidden: Mapping[str, Positions] = field(default_factory=dict)  #: rows of files that stay, by path
    regions: tuple[str, ...] = ()  #: that have all their rows among those written


def _stage_merge(stores: Ports, table: TableRow, move: Move, *, base: Version, layout: Clustering | None) -> Attempt:
    """New rows go to the smallest parts of the tree that give them files of some size; the first rows make the tree."""
    ranges = {r.partition: (r.low, r.high) for r in move.ranges}
    there = stores.lake_reads.stored_in(base.stream.metadata, ranges)
    if there.rows == 0:
        return Attempt(staged=NOTHING_STAGED)
    overlays = recalled.merged(stores, table, move, base=base, ranges=ranges)
    on = _View(base, [] if base.batch is None else stores.lake.region_files(table, base.batch.metadata), layout)
    with stores.engine.arranging(table, move, rows=there.rows) as engine:
        new = _Incoming(source=engine.stream_rows(base.stream.metadata, ranges), rows=there.rows, bytes=there.bytes)
        with _folded(stores, table, new, engine, on=on) as coming:
            cut = _write_coming(table, coming, engine, on=on) if coming.rows else None
    staged = stores.lake.staged(table, move, rows=coming.rows)
    snapshot = base.batch.snapshot if table.spec.key and base.batch is not None else None
    change = _change(stores, table, staged, coming, base=base)
    attempt = Attempt(staged=staged, change=change, on=snapshot, overlays=overlays)
    if base.layout is None:  # from the files: it is kept from now on, for merges make it no better
        attempt = replace(attempt, layout=layout)
    return attempt if cut is None else _with_layout(stores, table, attempt, coming, cut, on=on)


def _stage_recall(stores: Ports, table: TableRow, move: Move, *, base: Version) -> Attempt:
    """Rows of the batch view are copied to Postgres and hidden where they are; nothing is written for Spark to do."""
    assert base.batch is not None
    gathered = recalled.gather(stores, table, move, base=base)
    change = Replacement(
        removed=gathered.emptied,
        added=(),
        hidden=stores.lake.hide(table, base.batch.metadata, gathered.hidden) if gathered.hidden else Hidden(),
        same_rows=False,
    )
    return Attempt(
        staged=NOTHING_STAGED,
        change=change,
        on=base.batch.snapshot,
        overlays=gathered.overlays,
    )


def _stage_release(stores: Ports, table: TableRow, move: Move, *, base: Version, layout: Clustering | None) -> Attempt:
    """Everything that is recalled goes back to the lake, as the puts of a merge do."""
    assert base.batch is not None
    recalled.check_release(stores, table, move, base=base)
    on = _View(base, stores.lake.region_files(table, base.batch.metadata), layout)
    rows, size = sum(one.rows for one in base.overlays), sum(one.bytes for one in base.overlays)
    with stores.engine.arranging(table, move, rows=rows) as engine:
        coming = _Incoming(source=engine.recalled_rows(base), rows=rows, bytes=size)
        cut = _write_coming(table, coming, engine, on=on)
    staged = stores.lake.staged(table, move, rows=rows)
    recalled.check_released(stores, table, staged, base=base)
    overlays = next_generation(base.overlays, None)
    attempt = Attempt(staged=staged, on=base.batch.snapshot, overlays=overlays)
    return attempt if cut is None else _with_layout(stores, table, attempt, coming, cut, on=on)


def _write_coming(table: TableRow, coming: _Incoming, engine: Arranging, *, on: _View) -> _Cut | None:
    """Let the engine write *coming* in files of some size; None: one file, whose region was not determined."""
    of_rows = sum(f.live for f in on.files) - sum(f.live for f in coming.replaced) + coming.rows
    target_rows = target_rows_of(table, rows=coming.rows, size=coming.bytes, of_rows=of_rows)
    if on.layout is not None and not coming.replaced and is_one_piece(coming.rows, target_rows=target_rows):
        engine.write_one_piece(coming.source)
        return None
    sample = _sampled(table, coming.source, engine, rows=coming.rows, target_rows=target_rows)
    if on.layout is None:
        tree = parts = sample.tree(target_rows=target_rows)
    else:
        tree, parts = on.layout.tree, sample.pieces(on.layout.tree, target_rows=target_rows)
    _write(coming.source, engine, parts, sample, target_rows=target_rows)
    return _Cut(sample, tree)


def _with_layout(
    stores: Ports, table: TableRow, attempt: Attempt, coming: _Incoming, cut: _Cut, *, on: _View
) -> Attempt:
    """*attempt* with how the view is clustered after it: by a new tree, or where whole regions were written."""
    files = stores.lake.staged_regions(table, attempt.staged)
    tree = cut.tree
    if on.layout is not None:
        fresh = not_grown(tree, coming.regions, coming.replaced, files, target_bytes=_target(table, on.files))
        return replace(attempt, layout=on.layout, fresh=tuple(fresh)) if fresh else attempt
    judge = cut.sample.judge(target_bytes=_target(table, files), of_bytes=sum(f.bytes for f in files))
    return replace(
        attempt,
        layout=Clustering(tree=tree, clustered={}),
        scores={"after": asdict(judge.score_of_regions(files, tree))},
        fresh=tuple(tree.paths()),
    )


def _change(stores: Ports, table: TableRow, staged: Staged, coming: _Incoming, *, base: Version) -> Replacement | None:
    """The change that a merge makes to existing files; None if it only adds."""
    if not (coming.replaced or coming.hidden):
        return None
    assert base.batch is not None
    return Replacement(
        removed={f.path: f.deletes for f in coming.replaced},
        added=staged.written,
        hidden=stores.lake.hide(table, base.batch.metadata, coming.hidden),
        same_rows=False,
    )


@dataclass(frozen=True, slots=True)
class _View:
    """The batch view that a move builds on."""

    version: Version
    files: Sequence[FileStats]
    layout: Clustering | None

    @property
    def pinned(self) -> View | None:
        return self.version.batch


@dataclass(frozen=True, slots=True)
class _Cut:
    """The tree by which rows were written, and the sample that it was chosen by."""

    sample: Sample
    tree: RegionTree


@contextmanager
def _folded(stores: Ports, table: TableRow, new: _Incoming, engine: Arranging, *, on: _View) -> Iterator[_Incoming]:
    """What a merge of the rows *new* writes: they themselves, or in a keyed table what their changes make of the view.

    Raises: KeyInTwoPartitions.
    """
    if not table.spec.key:
        yield new
        return
    apart = engine.recalled_rows(on.version) if on.version.overlays else None
    with engine.newest(new.source, recalled=apart) as changes:
        size = new.bytes * changes.puts // new.rows
        puts = _Incoming(source=changes.rows, rows=changes.puts, bytes=size)
        yield _rewriting(stores, table, puts, changes, engine, on=on) if on.files and changes.keys else puts


def _rewriting(
    stores: Ports, table: TableRow, puts: _Incoming, changes: KeyChanges, engine: Arranging, *, on: _View
) -> _Incoming:
    """*puts*, and what becomes of the files in which older versions of the keys are: hidden there, or rewritten.

    How many rows are written follows from counts of what was met, not from what is written.
    """
    assert on.pinned is not None
    metadata = on.pinned.metadata
    nearby = [f for f in stores.lake.key_files(table, metadata) if might_hold(f, changes.box)]
    met = changes.met_in(metadata, nearby)
    if not met:
        return puts
    anew = {f.path for f in on.files if f.path in met and is_worn(f, met[f.path])}
    taken, regions = [f for f in on.files if f.path in anew], list[str]()
    if on.layout is not None:
        taken, regions = taken_along(on.layout.tree, on.files, on.layout.clustered, anew)
    gone = {f.path for f in taken}
    hidden = {path: one.positions for path, one in met.items() if path not in gone and one.positions is not None}
    if not taken:
        return replace(puts, hidden=hidden)
    rows, lost = sum(f.live for f in taken), sum(one.rows for path, one in met.items() if path in gone)
    return _Incoming(
        source=changes.beside(engine.file_rows(metadata, taken)),
        rows=rows - lost + puts.rows,
        bytes=sum(f.bytes for f in taken) * (rows - lost) // rows + puts.bytes,
        replaced=tuple(taken),
        hidden=hidden,
        regions=tuple(regions),
    )


def is_worn(file: FileStats, met: Met) -> bool:
    """Return whether a file is rewritten instead of hiding more of its rows."""
    return met.positions is None or file.hidden + met.rows > HIDDEN_SHARE_MAX * file.rows


def _stage_relayout(stores: Ports, table: TableRow, move: Move, *, base: Version, layout: Clustering) -> Attempt:
    """What is due, rewritten: parts cut again where they grew, one file per region; or files that only waited.

    `due` gives either parts or files that wait, never both.
    """
    assert base.batch is not None
    files = stores.lake.region_files(table, base.batch.metadata)
    asked, chosen = bool(move.parts), _taken(stores, table, move, base, files)
    taken = [file for part in chosen for file in part.files]
    if not taken:
        return Attempt(staged=NOTHING_STAGED)
    rows, size = sum(f.live for f in taken), sum(part.bytes for part in chosen)
    target_rows = target_rows_of(table, rows=rows, size=size, of_rows=sum(f.live for f in files))
    anew = [part.path for part in chosen if not part.waiting]
    tree = layout.tree
    with stores.engine.arranging(table, move, rows=rows) as engine:
        source = engine.file_rows(base.batch.metadata, taken)
        sample = _sampled(table, source, engine, rows=rows, target_rows=target_rows)
        for path in anew:
            tree = sample.cut_again(tree, path, target_rows=target_rows)
        # Their files lie wholly inside, so what is routed is as large as the move and not as the view.
        parts = tree.between(anew) if anew else sample.pieces(tree, target_rows=target_rows)
        judge = sample.judge(target_bytes=_target(table, files), of_bytes=size)
        before = judge.score(taken, staged_bytes=sum(part.staged_bytes for part in chosen))
        expected, anyway = sample.predicted(parts, taken), asked or not layout.clustered
        predicted = judge.score_of_regions(expected, parts)
        if anew and not anyway and is_telling(expected) and before.better_than(predicted):
            raise Pointless(f"{NOT_BETTER}: {asdict(before)} would become {asdict(predicted)}")
        _write(source, engine, parts, sample, target_rows=target_rows)
    staged = stores.lake.staged(table, move, rows=rows)
    written = stores.lake.staged_regions(table, staged)
    after = judge.score_of_regions(written, tree if anew else parts)
    fewer = not anew and len(staged.files) < len(taken)  # which is why files that wait are put together
    if not (anyway or fewer or after.better_than(before)):
        raise Pointless(f"{NOT_BETTER}: {asdict(before)} became {asdict(after)}")
    upto, gone = stores.lake.sequence_of(table, base.batch.metadata), {file.path for file in taken}
    clustered = {path: at for path, at in layout.clustered.items() if not any(path.startswith(part) for part in anew)}
    clustered |= {path: upto for path in tree.paths() if any(path.startswith(part) for part in anew)}
    if all(request.paths == ("",) for request in stores.reclusters.open(table)):  # else they name parts of this tree
        brought = [replace(file, sequence=upto if anew else upto + 1) for file in written]
        tree, clustered = balanced(tree, [*(f for f in files if f.path not in gone), *brought], clustered)
    return Attempt(
        staged=staged,
        layout=Clustering(tree=tree, clustered=clustered),
        scores={"before": asdict(before), "predicted": asdict(predicted), "after": asdict(after)},
        change=Replacement(
            removed={f.path: f.deletes for f in taken},
            added=staged.written,
            same_rows=True,
            # Unclustered rows keep waiting: they must be newer than all clustered rows of their region.
            sequence=upto if anew else None,
        ),
    )


def _taken(stores: Ports, table: TableRow, move: Move, base: Version, files: Sequence[FileStats]) -> list[Rewrite]:
    """The part of its base that a relayout takes: the requested or the due regions; less after many attempts."""
    layout, budget = layout_of(stores, table, base), budget_of(move, bytes_max=BUDGET_BYTES)
    assert layout is not None, "a relayout is planned only where there is a tree"
    asked = at_once(as_due(layout.tree, files, layout.clustered, move.parts), budget_bytes=budget)
    return asked or look.due(stores, table, base, budget_bytes=budget)


def _target(table: TableRow, files: Sequence[FileStats]) -> int:
    return target_bytes(table, of_bytes=sum(file.bytes for file in files))


def _sampled(table: TableRow, source: Rows, engine: Arranging, *, rows: int, target_rows: float) -> Sample:
    columns, share = indexed_columns(table.spec), share_to_draw(rows, target_rows=target_rows)
    values = engine.sample(source, columns, share=share)
    return Sample(columns, values, share, filters=table.spec.layout.queries)


def _write(source: Rows, engine: Arranging, tree: RegionTree, sample: Sample, *, target_rows: float) -> None:
    """One file per region, several for equal keys that are too many for one."""
    files = sample.files(tree, target_rows=target_rows)
    engine.write_pieces(source, tree, sample.values, pieces=files)


# -- publish ------------------------------------------------------------------------------------------------


def publish(stores: Ports, table: TableRow, claim: Claim, move: Move, attempt: Attempt) -> Version:
    """Make the staged files part of the batch view: pointer, bound, version, layout and move in one transaction."""
    keep, overlays = table.spec.retention.snapshots, attempt.overlays.then if attempt.overlays else None

    def write(base: str) -> Swap:
        if attempt.change is not None:
            return stores.lake.build_change(table, move, attempt.change, base=base, keep=keep, overlays=overlays)
        return stores.lake.build_append(table, move, attempt.staged, base=base, keep=keep, overlays=overlays)

    def build_on(base: str) -> Swap:
        swap = write(base)
        check_merged_into(attempt.on, swap.base_snapshot, table=table.name, move_id=move.move_id)
        if attempt.layout is None:
            return swap
        at = stores.lake.sequence_of(table, swap.new.metadata)
        clustered = {**attempt.layout.clustered, **dict.fromkeys(attempt.fresh, at)}
        tree, scores = attempt.layout.tree, {**attempt.scores}
        layout = LayoutState(tree=tree.to_json(), digest=tree.digest, clustered=clustered, scores=scores)
        return replace(swap, layout=layout)

    staged = attempt.staged
    boundary = Boundary(claim=claim, move=move, rows=staged.rows, bytes=staged.bytes, overlays=attempt.overlays)
    published = stores.ledger.publish(table, boundary, build_on)
    log.info(
        "otree.published",
        table=table.name,
        version=published.version,
        rows=boundary.rows,
        files=len(staged.files),
        removed=len(attempt.change.removed) if attempt.change else 0,
        deleted_from=len(attempt.change.hidden.of) if attempt.change else 0,
        recalled=sum(one.rows for one in published.overlays),
        move=move.move_id,
    )
    return published
