"""Seeded faults: each takes something out of the protocol, or does it wrong, and must be found by a model.

A mutant with several names takes out layers that back each other: each alone is caught by the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness_pipelines.protocol.claims import Stage
from harness_pipelines_tests.model.acts import Acts
from harness_pipelines_tests.model.corrections import Corrections
from harness_pipelines_tests.model.cut_files import CutFiles
from harness_pipelines_tests.model.cuts import Cuts
from harness_pipelines_tests.model.cuts_state import Left as CutsLeft
from harness_pipelines_tests.model.files import Files
from harness_pipelines_tests.model.folds import Folds
from harness_pipelines_tests.model.groups import Groups
from harness_pipelines_tests.model.history import History
from harness_pipelines_tests.model.ingest import Ingest
from harness_pipelines_tests.model.ingest import Left as IngestLeft
from harness_pipelines_tests.model.mirrors import Mirrors
from harness_pipelines_tests.model.moments import Moments
from harness_pipelines_tests.model.moves import Left, Moves
from harness_pipelines_tests.model.named_cuts import NamedCuts
from harness_pipelines_tests.model.overlays import Left as OverlaysLeft
from harness_pipelines_tests.model.overlays import Overlays
from harness_pipelines_tests.model.purges import Purges
from harness_pipelines_tests.model.ranges import Ranges
from harness_pipelines_tests.model.reading import Reading
from harness_pipelines_tests.model.removals import Removals
from harness_pipelines_tests.model.restores import Restores
from harness_pipelines_tests.model.room import Room
from harness_pipelines_tests.model.schemas import Schemas
from harness_pipelines_tests.model.snapshots import Snapshots
from harness_pipelines_tests.model.specs import Specs
from harness_pipelines_tests.model.states import States
from harness_pipelines_tests.model.streams import Streams
from harness_pipelines_tests.model.views import Left as ViewsLeft
from harness_pipelines_tests.model.views import Views

AnyModel = Any  #: one of these; each has states of its own
FAULTS = Moves(Left(crashes=1, ends=1, lost=1), records=1, name="moves: faults")
HALVES = Moves(Left(ends=1, failures=1), name="moves: abandoned")
REVERTS = Moves(Left(reverts=1), name="moves: reverts")
REVERTS_SLOW = Moves(Left(ends=1, reverts=1), records=1, name="moves: reverts, two workers")
PUBLISHERS = Moves(Left(ends=1, compactions=1), name="moves: two publishers")
FOREIGN = Moves(Left(foreign=1, reverts=1), workers=1, name="moves: foreign writer")
SEGMENTS = Ingest(IngestLeft(crashes=1, ends=1, lost=1, rotations=1), name="ingest: segments")
SCHEMAS = Ingest(IngestLeft(ends=1, evolutions=1), name="ingest: schema publish")
READS = Reading(name="reading: two partitions")
READS_LONG = Reading(ends=(2,), rotations=2, name="reading: three segments")
FILES = Files(name="files: old reads")
FILES_MOVES = Files(readers=0, name="files: open moves")
FILES_CRASH = Files(records=1, crashes=1, readers=0, name="files: abandoned moves")
FILES_REVERT = Files(records=1, reverts=1, readers=0, name="files: reverts")
ACTS = Acts(name="acts: without an open move")
REMOVALS = Removals(name="removals: beside an adoption")
PURGES = Purges(name="purges: beside a rebuild")
FOLDS = Folds(name="folds: reverts, a pin")
ROOM = Room()
GROUPS = Groups()
ROOM_SERVER = Room(unread=(2, 3), table_max=None, server_max=3, name="room: the limit of the server")
MOMENTS = Moments(name="moments: reads of a time beside publishers")
VIEWS = Views(ViewsLeft(ends=1), records=3, tiered=2, merged=1, name="views: two attempts")
VIEWS_FAULTS = Views(ViewsLeft(crashes=1, ends=1, lost=1), tiered=2, merged=1, name="views: faults")
VIEWS_SMALL = Views(ViewsLeft(ends=1), tiered=2, merged=1, name="views: two attempts, small")
VIEWS_TURNS = Views(ViewsLeft(crashes=1), 4, 4, merged=3, stages=("otree",), name="views: taking turns")
VIEWS_CRASHES = Views(ViewsLeft(crashes=2), records=3, stages=("otree",), name="views: two crashes")
VIEWS_BOTH = Views(ViewsLeft(), records=5, tiered=4, stages=("otree", "compact"), name="views: otree beside compact")
VIEWS_COMPACT = Views(
    ViewsLeft(crashes=1, ends=1), records=5, tiered=4, stages=("compact", "compact"), name="views: compaction"
)
VIEWS_COMPACTORS = Views(ViewsLeft(ends=1), 4, 4, stages=("compact", "compact"), name="views: two compactors")
VIEWS_APPENDS = Views(ViewsLeft(), 5, 4, stages=("compact",), name="views: compaction beside tier")
VIEWS_REVERT = Views(ViewsLeft(reverts=1), stages=("otree",), name="views: reverts")
VIEWS_REVERT_SLOW = Views(ViewsLeft(ends=1, reverts=1), tiered=2, merged=1, name="views: reverts, two workers")
VIEWS_FOREIGN = Views(ViewsLeft(foreign=1, reverts=1), tiered=1, stages=("otree",), name="views: foreign writer")
VIEWS_READ = Views(
    ViewsLeft(reads=1), records=3, tiered=2, merged=1, stages=("otree",), expires=True, name="views: reads"
)
VIEWS_FILES = Views(ViewsLeft(), 4, 4, stages=("otree", "compact"), expires=True, name="views: files of both")
KEYED = Views(ViewsLeft(ends=1, lost=1), records=4, tiered=3, merged=2, keys=2, name="views: keyed")
KEYED_LONG = Views(ViewsLeft(ends=1), records=5, tiered=4, merged=2, keys=2, name="views: keyed, five records")
KEYED_REVERT = Views(ViewsLeft(reverts=1), 4, 3, 2, stages=("otree",), keys=2, name="views: keyed, reverts")
KEYED_READ = Views(ViewsLeft(reads=1), 4, 3, 2, stages=("otree",), expires=True, keys=2, name="views: keyed, reads")
DELETES = Views(ViewsLeft(ends=1, pointless=1), 4, 4, 2, keys=2, hides=True, name="views: deletes")
DELETES_NEW = Views(ViewsLeft(ends=1), 3, 3, 2, keys=3, hides=True, name="views: deletes, a new key")
DELETES_FAULTS = Views(ViewsLeft(crashes=1, lost=1), 4, 4, 2, keys=2, hides=True, name="views: deletes, faults")
DELETES_REVERT = Views(
    ViewsLeft(reverts=1), 5, 5, 2, stages=("otree",), keys=2, hides=True, name="views: deletes, reverts"
)
DELETES_READ = Views(
    *(ViewsLeft(reads=1, names=1), 4, 4, 2),
    stages=("otree",),
    expires=True,
    keys=2,
    hides=True,
    name="views: deletes, snapshots and reads",
)
SNAPSHOTS = Snapshots(compactions=1, renewals=1, ends=1, name="snapshots: one table")
SNAPSHOTS_TRIM = Snapshots(records=2, name="snapshots: two records")
SNAPSHOTS_REVERT = Snapshots(reverts=1, name="snapshots: reverts")
SNAPSHOTS_CUT = Snapshots(tables=2, expires=False, name="snapshots: a cut of two tables")
SNAPSHOTS_DROPS = Snapshots(*(0, 2, 2, 2), renewals=1, ends=1, expires=False, name="snapshots: dropped under readers")
STATES = States()
OVERLAYS = Overlays(OverlaysLeft(recalls=2, releases=2), records=6, name="overlays: merges of recalled rows")
OVERLAYS_CRASH = Overlays(OverlaysLeft(crashes=1), name="overlays: late attempts")
OVERLAYS_REVERT = Overlays(OverlaysLeft(reverts=1), name="overlays: reverts")
OVERLAYS_READ = Overlays(OverlaysLeft(reads=1), name="overlays: reads")
CORRECTIONS = Corrections(name="corrections: two at once, reverts, old reads")
RANGES = Ranges(records=2, name="ranges: two at once, compaction, reverts, old reads")
RANGES_TWICE = Ranges(records=1, reverts=2, crashes=0, name="ranges: two reverts")
CORRECTIONS_TWICE = Corrections(records=2, reverts=2, crashes=0, name="corrections: two reverts")
RESTORES = Restores(records=2, name="restores: the lake is taken over, two reverts")
RESTORES_LONG = Restores(records=3, reverts=1, name="restores: the lake is taken over, a revert")
RANGES_CALM = Ranges(crashes=0, reverts=0, name="ranges: without crashes")
CORRECTIONS_CALM = Corrections(crashes=0, name="corrections: without crashes")
HISTORY = History(name="history: promotions, backups, a server that comes back")
DROPS = Schemas(name="schemas: a drop by two at once, old reads")
MIRRORS = Mirrors(name="mirrors: another writer")
MIRRORS_DROP = Mirrors(*(2, 0, 0, 0), expiries=1, drops=1, name="mirrors: dropped under a worker")
MIRRORS_BACKUP = Mirrors(backups=1, foreign=0, name="mirrors: a server goes back to a backup")
SPECS = Specs()
STREAMS = Streams()
CUTS = Cuts(CutsLeft(loads=3), servers=2, name="cuts: two servers")
CUTS_TWO_REVERT = Cuts(CutsLeft(loads=3, reverts=1), records=1, servers=2, name="cuts: two servers, reverts")
CUTS_SLOW = Cuts(CutsLeft(loads=3, crashes=1, forgets=1), records=1, servers=2, name="cuts: slow servers")
CUTS_LOG = Cuts(CutsLeft(loads=3, lags=1), records=1, servers=2, kind="tail", name="cuts: two ends of one log")
CUTS_VIEWS = Cuts(CutsLeft(loads=2, merges=2, compactions=1), name="cuts: both views")
CUTS_VIEWS_REVERT = Cuts(CutsLeft(loads=2, merges=2, reverts=1), name="cuts: both views, reverts")
CUTS_EVOLVE = Cuts(CutsLeft(loads=3, evolutions=1), name="cuts: schemas")
CUTS_REVERT = Cuts(CutsLeft(loads=3, reverts=1), name="cuts: reverts")
CUTS_CORRECTED = Cuts(CutsLeft(loads=2, merges=1), odd=True, name="cuts: corrections")
CUTS_CORRECTED_REVERT = Cuts(CutsLeft(loads=2, merges=1, reverts=1), odd=True, name="cuts: corrections, reverts")
CUTS_TAIL = Cuts(CutsLeft(loads=2, decoders=1, reverts=1), kind="tail", name="cuts: a decoded tail")
CUTS_TAIL_BACK = Cuts(CutsLeft(loads=3, decoders=2), records=1, kind="tail", name="cuts: a decoder, and back")
CUTS_KEYED = Cuts(CutsLeft(loads=2, merges=2, recalls=2), records=2, kind="keyed", name="cuts: recalled rows")
CUTS_KEYED_REVERT = Cuts(
    CutsLeft(loads=2, merges=1, recalls=1, reverts=1), records=1, kind="keyed", name="cuts: recalled rows, reverts"
)
CUT_FILES = CutFiles(name="cuts: files")
CUT_FILES_CRASH = CutFiles(loads=2, crashes=1, name="cuts: files, a server that dies")
CUT_FILES_LOST = CutFiles(compactions=0, damages=1, name="cuts: files, one that is lost")
CUT_FILES_CACHED = CutFiles(servers=1, compactions=0, caches=True, name="cuts: files, an answer that is cached")
NAMED_CUTS = NamedCuts(name="cuts: of a named snapshot")
CUT_FILES_UNNAMED = CutFiles(compactions=0, remembers=True, name="cuts: files that were not published")

#: What the suite explores; each holds without a mutant.
SUITE: tuple[AnyModel, ...] = (
    *(FAULTS, HALVES, REVERTS, REVERTS_SLOW, PUBLISHERS, FOREIGN),
    *(SEGMENTS, SCHEMAS, READS, READS_LONG, FILES, FILES_MOVES, FILES_CRASH, FILES_REVERT),
    *(ACTS, REMOVALS, PURGES, MOMENTS, FOLDS, ROOM, ROOM_SERVER, GROUPS),
    *(
        VIEWS,
        VIEWS_SMALL,
        VIEWS_FAULTS,
        VIEWS_TURNS,
        VIEWS_CRASHES,
        VIEWS_BOTH,
        VIEWS_COMPACT,
        VIEWS_COMPACTORS,
        VIEWS_APPENDS,
    ),
    *(VIEWS_REVERT, VIEWS_REVERT_SLOW, VIEWS_FOREIGN, VIEWS_READ, VIEWS_FILES),
    *(KEYED, KEYED_LONG, KEYED_REVERT, KEYED_READ),
    *(SNAPSHOTS, SNAPSHOTS_TRIM, SNAPSHOTS_REVERT, SNAPSHOTS_CUT, SNAPSHOTS_DROPS),
    STATES,
    *(DELETES, DELETES_NEW, DELETES_FAULTS, DELETES_REVERT, DELETES_READ),
    *(OVERLAYS, OVERLAYS_CRASH, OVERLAYS_REVERT, OVERLAYS_READ),
    *(CORRECTIONS, CORRECTIONS_CALM, CORRECTIONS_TWICE),
    *(RANGES, RANGES_CALM, RANGES_TWICE),
    *(RESTORES, RESTORES_LONG),
    DROPS,
    *(SPECS, HISTORY, STREAMS, MIRRORS, MIRRORS_BACKUP, MIRRORS_DROP),
    *(CUTS, CUTS_TWO_REVERT, CUTS_SLOW, CUTS_LOG, CUTS_VIEWS, CUTS_VIEWS_REVERT, CUTS_EVOLVE, CUTS_REVERT),
    *(CUTS_CORRECTED, CUTS_CORRECTED_REVERT, CUTS_TAIL, CUTS_TAIL_BACK, CUTS_KEYED, CUTS_KEYED_REVERT),
    *(CUT_FILES, CUT_FILES_CRASH, CUT_FILES_CACHED, CUT_FILES_LOST, CUT_FILES_UNNAMED, NAMED_CUTS),
)
STATES_MAX = 120_000  #: of a model of the suite
#: Larger bounds, by hand: ``python -m harness_pipelines_tests.model --large``.
LARGE: tuple[AnyModel, ...] = (
    Views(ViewsLeft(reverts=2), stages=("otree",), name="views: two reverts, large"),
    Moves(Left(crashes=1, ends=1, lost=1), name="moves: faults, large"),
    Moves(Left(crashes=1, ends=1, failures=1), name="moves: abandoned, large"),
    Moves(Left(ends=1, reverts=1), name="moves: reverts, large"),
    Moves(Left(crashes=2, ends=1), records=1, name="moves: two crashes"),
    Ingest(IngestLeft(crashes=2, ends=1, lost=1, rotations=1, evolutions=1), name="ingest: large"),
    Ingest(IngestLeft(crashes=1, ends=1, rotations=2), records=3, name="ingest: three records"),
    Reading(ends=(2, 1), name="reading: large"),
    Files(records=1, reverts=1, name="files: large"),
    Views(ViewsLeft(crashes=2, ends=1, lost=1), tiered=2, merged=1, name="views: faults, large"),
    Views(ViewsLeft(crashes=1), records=5, tiered=4, stages=("otree", "compact"), name="views: beside compact, large"),
    Views(ViewsLeft(reverts=1), records=3, tiered=1, stages=("otree",), name="views: reverts, large"),
    Views(ViewsLeft(reads=1), 4, 4, stages=("otree", "compact"), expires=True, name="views: reads, large"),
    Views(ViewsLeft(ends=1, pointless=1), 4, 3, 2, keys=2, hides=True, name="views: deletes, large"),
    Snapshots(2, compactions=1, name="snapshots: large"),
    Cuts(CutsLeft(loads=2, merges=2, compactions=1), records=3, name="cuts: both views, large"),
    Cuts(CutsLeft(loads=3, reverts=1), servers=2, name="cuts: two servers, large"),
    CutFiles(crashes=1, name="cuts: files, large"),
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: the models' switches that it sets, the model that must find it, and the invariant that it breaks."""

    stage: Stage | None  #: whose step it is in; ``None`` is a reader's, or a person's who names snapshots
    switches: tuple[str, ...]
    model: AnyModel
    breaks: str  #: how the violated invariant begins

    def mutated(self) -> Any:
        return replace(self.model, bad=frozenset(self.switches))


INGEST, TIER, EXPIRE, REVERT = Stage.INGEST, Stage.TIER, Stage.EXPIRE, Stage.REVERT
OTREE, COMPACT, REPLAY, EVOLVE = Stage.OTREE, Stage.COMPACT, Stage.REPLAY, Stage.EVOLVE
MIRROR = Stage.MIRROR
MUTANTS: Mapping[str, Mutant] = {
    # -- mirror
    "a mirror's commit asserts no snapshot": Mutant(MIRROR, ("ref_unasserted",), MIRRORS, "S38"),
    "a mirror goes on over another writer": Mutant(MIRROR, ("foreign_ignored",), MIRRORS, "S38"),
    "a mirror sets a newer version back": Mutant(MIRROR, ("overtaken_goes_on",), MIRRORS, "S38"),
    "a mirror takes a conflict for a success": Mutant(MIRROR, ("conflict_is_success",), MIRRORS, "S38"),
    "a mirror forgets what it sent before": Mutant(MIRROR, ("intent_replaces",), MIRRORS, "S10"),
    "expire keeps nothing for a mirror": Mutant(EXPIRE, ("holds_not_kept",), MIRRORS, "S10"),
    "expire folds versions that can be read": Mutant(EXPIRE, ("folds_what_is_retained",), FOLDS, "S39"),
    "expire folds what a revert has taken back, or brings back": Mutant(EXPIRE, ("reverts_not_asked",), FOLDS, "S39"),
    "expire folds a pinned version": Mutant(EXPIRE, ("pins_not_asked",), FOLDS, "S39"),
    "a checkpoint takes moves that do not go on from it": Mutant(EXPIRE, ("seams_closed",), FOLDS, "S39"),
    "a checkpoint takes undone moves for moves in effect": Mutant(EXPIRE, ("undone_folded_as_others",), FOLDS, "S39"),
    "expire folds reverts": Mutant(EXPIRE, ("reverts_folded",), FOLDS, "S39"),
    "moves are removed before the checkpoint has them": Mutant(EXPIRE, ("folds_in_two",), FOLDS, "S39"),
    "a dropped mirror is forgotten at once": Mutant(None, ("dropped_at_once",), MIRRORS_DROP, "S10"),
    "a worker does not ask whether the mirror was dropped": Mutant(
        MIRROR, ("registered_unasked",), MIRRORS_DROP, "S10"
    ),
    "a mirror is dropped at the server before it is noted": Mutant(None, ("drop_not_noted",), MIRRORS_DROP, "S10"),
    "a worker registers what is being dropped": Mutant(MIRROR, ("registered_while_dropped",), MIRRORS_DROP, "S10"),
    "a drop forgets what a worker follows again": Mutant(None, ("followed_is_forgotten",), MIRRORS_DROP, "S10"),
    # -- ingest
    "ingest commits without a fence": Mutant(INGEST, ("unfenced",), SEGMENTS, "S5"),
    "ingest reads its claim plainly": Mutant(INGEST, ("claim_read_plainly",), SEGMENTS, "S5"),
    "the ingest fence judges by now()": Mutant(INGEST, ("fence_by_now",), SEGMENTS, "S5"),
    "an ingest thief looks only once": Mutant(INGEST, ("thief_looks_once",), SEGMENTS, "S5"),
    "blind retry of an ingest unit": Mutant(INGEST, ("blind_retry", "range_unchecked"), SEGMENTS, "S1"),
    "ingest checks neither claim nor range": Mutant(INGEST, ("unfenced", "range_unchecked"), SEGMENTS, "S1"),
    "ingest writes to a closed segment": Mutant(INGEST, ("closed_segment_written",), SEGMENTS, "S1/S13"),
    "a segment is closed without waiting": Mutant(INGEST, ("close_without_waiting",), SEGMENTS, "S1/S13"),
    "writers do not share the segment's row": Mutant(INGEST, ("segment_not_shared",), SEGMENTS, "S1/S13"),
    "ingest does not look at the schema": Mutant(INGEST, ("schema_unchecked",), SCHEMAS, "S22"),
    "a transaction of several tables fences the first of them": Mutant(INGEST, ("checks_the_first",), GROUPS, "S5"),
    "units of a lost COMMIT are written again one by one": Mutant(
        INGEST, ("blind_retry", "range_unchecked"), GROUPS, "S1"
    ),
    "transactions of several tables lock in any order and wait": Mutant(
        INGEST, ("any_order", "waits_for_ever"), GROUPS, "L"
    ),
    "a segment ahead of tier is retired": Mutant(EXPIRE, ("retire_ahead_of_tier",), SEGMENTS, "S1/S13"),
    # -- tier
    "tier publishes without a fence": Mutant(TIER, ("unfenced",), FAULTS, "S5"),
    "tier reads its claim plainly": Mutant(TIER, ("claim_read_plainly",), FAULTS, "S5"),
    "the tier fence judges by now()": Mutant(TIER, ("fence_by_now",), FAULTS, "S5"),
    "a tier thief looks only once": Mutant(TIER, ("thief_looks_once",), FAULTS, "S5"),
    "a move is planned without a fence": Mutant(TIER, ("plan_unfenced",), FAULTS, "S5"),
    "two moves of one stage are open": Mutant(TIER, ("two_open_moves", "plan_unfenced"), FAULTS, "S8"),
    "an attempt is taken without a fence": Mutant(TIER, ("attempt_unfenced",), FAULTS, "S5"),
    "a move is closed without a fence": Mutant(TIER, ("close_unfenced",), HALVES, "S5"),
    "a later attempt works out its range anew": Mutant(TIER, ("retry_recomputes",), HALVES, "S25"),
    "blind retry of a publish": Mutant(
        TIER, ("blind_retry", "closed_move_published", "range_unchecked"), FAULTS, "S1/S2"
    ),
    "a closed move is published": Mutant(TIER, ("closed_move_published", "unfenced"), HALVES, "S9"),
    "the outcome is judged without the locks": Mutant(TIER, ("resolve_unlocked",), FAULTS, "S24"),
    "attempts share a branch": Mutant(TIER, ("branch_shared",), FAULTS, "S1/S2"),
    "the version row comes from a stale copy": Mutant(
        TIER, ("version_from_stale_copy", "pointer_not_compared", "foreign_taken_over"), PUBLISHERS, "S3"
    ),
    "the pointer is swapped without comparing": Mutant(
        TIER, ("pointer_not_compared", "foreign_taken_over"), PUBLISHERS, "S7"
    ),
    "another writer's rows are taken over": Mutant(TIER, ("foreign_taken_over",), FOREIGN, "S7"),
    "tier carries the batch view of a stale copy": Mutant(TIER, ("version_from_stale_copy",), VIEWS, "S3"),
    # -- otree
    "otree publishes without a fence": Mutant(OTREE, ("unfenced",), VIEWS_SMALL, "S5"),
    "two moves change the batch view": Mutant(OTREE, ("two_open_moves", "plan_unfenced"), VIEWS_SMALL, "S8"),
    "a merge is planned on a stale batch_hi": Mutant(OTREE, ("merge_from_stale_bound",), VIEWS_SMALL, "S6"),
    "a merge on a stale batch_hi is published": Mutant(
        OTREE, ("merge_from_stale_bound", "range_unchecked"), VIEWS_SMALL, "S19"
    ),
    "a merge reads the stream view from its start": Mutant(OTREE, ("merge_without_low",), VIEWS, "S19"),
    "a merge moves its base up": Mutant(OTREE, ("retry_recomputes",), VIEWS_CRASHES, "S25"),
    "blind retry of a merge": Mutant(
        OTREE, ("blind_retry", "closed_move_published", "range_unchecked"), VIEWS_FAULTS, "S19"
    ),
    "blind retry of a relayout": Mutant(
        OTREE, ("blind_retry", "closed_move_published", "replace_unchecked"), VIEWS_FAULTS, "S20"
    ),
    "a relayout does not look whether its files are live": Mutant(
        OTREE, ("replace_unchecked", "closed_move_published", "unfenced"), VIEWS_SMALL, "S20"
    ),
    "a relayout is published over another": Mutant(
        OTREE,
        ("pointer_not_compared", "foreign_taken_over", "closed_move_published", "unfenced"),
        VIEWS_SMALL,
        "S7",
    ),
    "a relayout moves batch_hi": Mutant(OTREE, ("relayout_moves_bound",), VIEWS, "S20"),
    "relayouts always come first": Mutant(OTREE, ("relayouts_first",), VIEWS_TURNS, "L8"),
    "otree looks at the base of the stream view": Mutant(OTREE, ("base_of_stream_view",), VIEWS_FOREIGN, "S7"),
    "rows of another writer are clustered": Mutant(OTREE, ("foreign_taken_over",), VIEWS_FOREIGN, "S7"),
    "a keyed merge leaves older versions where they are": Mutant(OTREE, ("merge_appends",), KEYED, "S16/S17"),
    "a keyed merge lets deleted rows be": Mutant(OTREE, ("deletes_ignored",), KEYED, "S16/S17"),
    "a newer delete file forgets the rows of the older one": Mutant(
        OTREE, ("older_rows_forgotten",), DELETES, "S16/S17"
    ),
    "a newer delete file is put beside the older one": Mutant(OTREE, ("deletes_added",), DELETES, "S26"),
    "the delete file of a replaced file stays": Mutant(OTREE, ("dangling_deletes",), DELETES, "S26"),
    "a relayout writes hidden rows too": Mutant(OTREE, ("hidden_rows_written",), DELETES, "S16/S17"),
    "a relayout that did not see the newest delete file is published": Mutant(
        OTREE, ("deletes_unchecked", "closed_move_published", "publish_unfenced"), DELETES, "S20"
    ),
    "a keyed merge is published on what its later attempt published": Mutant(
        OTREE,
        ("merged_anywhere", "range_unchecked", "closed_move_published", "publish_unfenced"),
        DELETES_NEW,
        "S16/S17",
    ),
    "otree carries the stream view of a stale copy": Mutant(OTREE, ("version_from_stale_copy",), VIEWS_BOTH, "S3"),
    "a recall hides rows and does not name them": Mutant(OTREE, ("recall_names_nothing",), OVERLAYS, "S16/S17"),
    "a recall names rows and does not hide them": Mutant(OTREE, ("recall_leaves",), OVERLAYS, "S16/S17"),
    "a merge puts recalled keys into the lake": Mutant(OTREE, ("merge_ignores_overlays",), OVERLAYS, "S16/S17"),
    "a deleted row stays recalled": Mutant(OTREE, ("deletes_stay_recalled",), OVERLAYS, "S16/S17"),
    "a merge changes an overlay in its place": Mutant(OTREE, ("generation_in_place",), OVERLAYS, "S10"),
    "rows are released twice": Mutant(
        OTREE, ("closed_move_published", "overlays_unchecked"), OVERLAYS_CRASH, "S16/S17"
    ),
    # -- compact
    "compact publishes without a fence": Mutant(COMPACT, ("unfenced",), VIEWS_COMPACTORS, "S5"),
    "a compaction drops what tier appended": Mutant(COMPACT, ("replace_on_the_base",), VIEWS_COMPACT, "S20"),
    "a compaction is published over tier": Mutant(
        COMPACT, ("pointer_not_compared", "foreign_taken_over"), VIEWS_COMPACT, "S7"
    ),
    "a compaction does not look whether its files are live": Mutant(
        COMPACT, ("replace_unchecked", "closed_move_published", "unfenced"), VIEWS_COMPACTORS, "S20"
    ),
    "compact takes what tier has only staged": Mutant(
        COMPACT, ("branches_listed", "stream_hi_ignored", "replace_unchecked"), VIEWS_APPENDS, "S37"
    ),
    # -- expire
    "trim ignores leases": Mutant(EXPIRE, ("leases_ignored",), READS, "S10"),
    "trim decides before it has the lock": Mutant(EXPIRE, ("decided_before_lock",), READS, "S10"),
    "trim goes by what ingest has": Mutant(EXPIRE, ("floor_of_ingest",), READS, "S13"),
    "trim goes by the fastest partition": Mutant(EXPIRE, ("floor_of_fastest_partition",), READS, "S13"),
    "trim does not wait a grace": Mutant(EXPIRE, ("trim_without_grace",), REVERTS, "S34"),
    "trim forgets that a revert lowered the lake": Mutant(EXPIRE, ("trim_forgets_reverts",), REVERTS, "S13"),
    "trim forgets old reads": Mutant(EXPIRE, ("trim_forgets_old_reads",), FILES, "S13"),
    "leases do not reach files": Mutant(EXPIRE, ("leases_do_not_reach",), FILES, "S10"),
    "what answers for a leased version is not reached": Mutant(EXPIRE, ("answering_not_reached",), FILES, "S10"),
    "only the head reaches files": Mutant(EXPIRE, ("only_the_head_reaches",), FILES, "S10"),
    "the base of an open move is not reached": Mutant(EXPIRE, ("bases_not_reached",), FILES_MOVES, "S10"),
    "files of open moves are condemned": Mutant(EXPIRE, ("open_moves_ignored",), FILES_CRASH, "S27"),
    "files are deleted without a second look": Mutant(EXPIRE, ("deleted_without_recheck",), FILES, "S10"),
    "files are deleted when they are condemned": Mutant(EXPIRE, ("deleted_without_grace",), FILES, "S11"),
    "files of acts without an open move are condemned": Mutant(EXPIRE, ("acts_not_reserved",), ACTS, "S27"),
    "branches are dropped without a fence": Mutant(EXPIRE, ("drop_unfenced", "drop_unchecked"), ACTS, "S10"),
    "an act publishes what is gone": Mutant(REPLAY, ("acts_unchecked",), ACTS, "S10"),
    "an act publishes what is about to be deleted": Mutant(REPLAY, ("condemned_published",), ACTS, "S10"),
    "an act looks whether its files are there without the trim lock": Mutant(
        EVOLVE, ("acts_without_trim_lock",), ACTS, "S10"
    ),
    "expire does not note what it begins to remove": Mutant(EXPIRE, ("removal_not_noted",), REMOVALS, "S10"),
    "expire begins to remove what was pardoned, without a fence": Mutant(
        EXPIRE, ("begin_unfenced", "begins_what_was_pardoned"), REMOVALS, "S10"
    ),
    "what a holder removes is adopted": Mutant(None, ("notes_ignored",), REMOVALS, "S10"),
    "an adoption pardons what a holder removes": Mutant(None, ("pardon_takes_notes",), REMOVALS, "S10"),
    "a table that gets no more records keeps its open segment": Mutant(EXPIRE, ("idle_stays_open",), ROOM_SERVER, "L"),
    "nothing closes the open segment of a table that pauses": Mutant(
        INGEST, ("pause_closes_nothing", "idle_stays_open"), ROOM, "L"
    ),
    "ingest decides by sizes that it read once": Mutant(INGEST, ("looks_once",), ROOM, "room"),
    "retired segments do not count against the limit": Mutant(INGEST, ("retired_is_free",), ROOM, "room"),
    "a purge does not note that it begins": Mutant(None, ("begin_not_noted",), PURGES, "S10"),
    "a purge begins where a table lies": Mutant(None, ("begins_on_a_table",), PURGES, "S10"),
    "a purge does not look again before each request": Mutant(None, ("begins_once",), PURGES, "S10"),
    "a purge forgets the note of another drop": Mutant(None, ("forgets_any_note",), PURGES, "S10"),
    "a table is made of files that are being deleted": Mutant(None, ("notes_ignored",), PURGES, "S10"),
    "expire looks at the stream view only": Mutant(EXPIRE, ("stream_view_only",), VIEWS_READ, "S10"),
    "the files that an open merge reads are not reached": Mutant(EXPIRE, ("bases_not_reached",), VIEWS_READ, "S10"),
    "files of an open relayout are removed": Mutant(EXPIRE, ("open_moves_ignored",), VIEWS_READ, "S27"),
    "delete files are not reached": Mutant(EXPIRE, ("delete_files_not_reached",), DELETES_READ, "S10"),
    "a delete file that only a snapshot needs is removed": Mutant(
        EXPIRE, ("deletes_of_names_not_reached",), DELETES_READ, "S10"
    ),
    "expire looks at no snapshots": Mutant(EXPIRE, ("names_not_reached",), SNAPSHOTS, "S10"),
    "trim looks at no snapshots": Mutant(EXPIRE, ("floor_ignores_names",), SNAPSHOTS_TRIM, "S10"),
    "a snapshot counts with the bounds of its version": Mutant(EXPIRE, ("pinned_with_own_bounds",), SNAPSHOTS, "S10"),
    "what is retained is read after the snapshots": Mutant(EXPIRE, ("retained_read_last",), SNAPSHOTS, "S10"),
    "an overlay goes that an older version names": Mutant(EXPIRE, ("only_the_head_names",), OVERLAYS, "S10"),
    "an overlay goes that a lease needs": Mutant(EXPIRE, ("leases_name_nothing",), OVERLAYS_READ, "S10"),
    "an overlay of an open move goes": Mutant(EXPIRE, ("open_moves_ignored",), OVERLAYS, "S27"),
    # -- revert
    "a revert leaves moves open": Mutant(REVERT, ("revert_leaves_moves",), REVERTS, "S6"),
    "a revert leaves claims": Mutant(REVERT, ("revert_keeps_claims",), REVERTS, "S6"),
    "a revert goes below what the buffer holds": Mutant(REVERT, ("revert_below_buffer",), REVERTS, "S13"),
    "a revert looks at the buffer before its lock": Mutant(REVERT, ("revert_unchecked_lock",), REVERTS, "S13"),
    "a revert to a version that is not retained": Mutant(REVERT, ("revert_to_unretained",), FILES_REVERT, "S10"),
    "a revert restores the stream view's pointer only": Mutant(REVERT, ("revert_one_pointer",), VIEWS_REVERT, "S19"),
    "a revert restores stream_hi only": Mutant(REVERT, ("revert_one_bound",), VIEWS_REVERT, "S19"),
    "a relayout is published over a revert": Mutant(
        REVERT, ("revert_leaves_moves", "replace_unchecked"), VIEWS_REVERT, "S20"
    ),
    "a revert forgets which rows were hidden": Mutant(REVERT, ("revert_without_deletes",), DELETES_REVERT, "S16/S17"),
    "a revert keeps what is recalled": Mutant(REVERT, ("revert_keeps_overlays",), OVERLAYS_REVERT, "S16/S17"),
    "a revert leaves the records that it takes back as put back": Mutant(
        REVERT, ("revert_keeps_records",), CORRECTIONS, "S31"
    ),
    # -- replay
    "a replay asks no version that may be read": Mutant(REPLAY, ("old_reads_ignored",), CORRECTIONS, "S2"),
    "a revert brings a record back under a version that may be read": Mutant(
        REVERT, ("restored_unchecked",), CORRECTIONS_TWICE, "S2"
    ),
    "a revert brings a new row back under a version that may be read": Mutant(
        REVERT, ("restored_unchecked",), RANGES_TWICE, "S2"
    ),
    "a replay is published over tier": Mutant(REPLAY, ("pointer_not_compared",), CORRECTIONS, "S2"),
    "a replayed range asks no version that may be read": Mutant(REPLAY, ("old_reads_ignored",), RANGES, "S2"),
    "a replayed range is published over tier": Mutant(REPLAY, ("pointer_not_compared",), RANGES, "S2"),
    "a row is replaced that is not the one that was looked at": Mutant(REPLAY, ("was_unchecked",), RANGES_CALM, "S1"),
    "a compaction brings back a row that a replay replaced": Mutant(COMPACT, ("replace_unchecked",), RANGES, "S20"),
    "a record is put back twice": Mutant(REPLAY, ("held_unchecked", "free_unchecked"), CORRECTIONS_CALM, "S1"),
    # -- evolve
    "what is written after a drop answers for versions before": Mutant(EVOLVE, ("drops_uncounted",), DROPS, "S2"),
    "a change is published over one that it did not know": Mutant(EVOLVE, ("planned_unchecked",), DROPS, "S22"),
    "a change is published over tier": Mutant(EVOLVE, ("pointer_not_compared",), DROPS, "S22"),
    "the positions get the new schema after the version": Mutant(EVOLVE, ("positions_later",), DROPS, "S22"),
    "a move is published on another schema": Mutant(TIER, ("move_schema_unchecked",), DROPS, "S21"),
    "the buffer is trimmed under versions from before a drop": Mutant(EXPIRE, ("floor_without_old",), DROPS, "S2"),
    # -- the spec, and partitions that join
    "an apply writes over a spec that it has not read": Mutant(None, ("spec_not_compared",), SPECS, "S22"),
    "an apply writes back the columns from before a change": Mutant(
        None, ("spec_not_compared", "columns_unchecked"), SPECS, "S21"
    ),
    "a change of columns writes back the settings that it read": Mutant(
        Stage.EVOLVE, ("evolve_writes_what_it_read",), SPECS, "S22"
    ),
    "a partition joins with the schema that its holder knows": Mutant(
        Stage.INGEST, ("joins_as_the_holder_knows",), SPECS, "S22"
    ),
    "a partition joins without the claim": Mutant(Stage.INGEST, ("joins_without_claim",), SPECS, "S5"),
    # -- histories
    "a ledger is not compared with the lake": Mutant(None, ("lake_not_compared",), HISTORY, "S29"),
    "what a server had once is not asked of the promoted one": Mutant(None, ("verdict_kept",), HISTORY, "S29"),
    "moves are compared by number alone, and staged before": Mutant(
        None, ("nonces_not_compared", "staged_before_compared"), HISTORY, "S29"
    ),
    "a commit does not ask in which history it is": Mutant(None, ("commit_without_history",), HISTORY, "S3"),
    "a commit takes the row of another move of its number": Mutant(None, ("nonce_of_row_ignored",), HISTORY, "S9"),
    "numbers go on where the ledger ends": Mutant(None, ("numbers_go_on",), HISTORY, "S3"),
    "numbers go on where nothing seems lost": Mutant(None, ("numbers_go_on_unless_lost",), HISTORY, "S3"),
    "numbers skip as many each time": Mutant(None, ("numbers_skip_some",), HISTORY, "S3"),
    "a server that was left behind does not read the mark": Mutant(None, ("mark_not_read",), HISTORY, "S5"),
    # -- readers
    "a reader looks before it leases": Mutant(None, ("look_before_lease",), READS, "S10"),
    "a reader takes no trim lock": Mutant(None, ("reader_without_lock",), READS, "S10"),
    "pointer and bounds are read in two statements": Mutant(None, ("two_statements",), READS, "S2"),
    "segments are listed before the bounds": Mutant(None, ("segments_listed_before",), READS, "S2"),
    "a tier is not limited by the bounds": Mutant(None, ("tiers_unbounded",), READS, "S2"),
    "a read does not check its lease, a missing segment is empty": Mutant(
        None, ("lease_unchecked", "missing_is_empty"), READS, "S2"
    ),
    "batch_hi comes from another version than the batch pointer": Mutant(
        None, ("bounds_read_apart",), VIEWS_READ, "S2"
    ),
    "a snapshot is read with the bounds of its version": Mutant(None, ("bounds_of_version",), SNAPSHOTS, "S2"),
    # -- open streams
    "a stream leaves out what does not fit its spec": Mutant(None, ("leaves_out_what_does_not_fit",), STREAMS, "S18"),
    "a stream goes on behind a record that ingest has judged": Mutant(
        None, ("goes_on_behind_what_waited",), STREAMS, "S18"
    ),
    "a stream's token passes the record that it waits at": Mutant(None, ("token_passes_what_waits",), STREAMS, "S18"),
    "a stream goes on where the log ends": Mutant(None, ("leg_to_the_end_of_the_log",), STREAMS, "S18"),
    "a stream begins anew with its history": Mutant(None, ("leg_from_the_start",), STREAMS, "S18"),
    "a stream does not tell what was put back behind it": Mutant(None, ("corrections_not_told",), STREAMS, "S18"),
    # -- reads of a moment
    "a read of a moment waits for no publisher": Mutant(None, ("publishers_not_awaited",), MOMENTS, "S2"),
    "a moment is read that is not over": Mutant(None, ("read_before_it_is_over",), MOMENTS, "S2"),
    "a reader waits for publishers before the moment is over": Mutant(
        None, ("awaited_before_it_is_over",), MOMENTS, "S2"
    ),
    "a reader looks in the statement that waits": Mutant(None, ("looks_while_it_waits",), MOMENTS, "S2"),
    "a version has the time of before its lock": Mutant(TIER, ("time_before_the_lock",), MOMENTS, "S2"),
    # -- named snapshots
    "a snapshot is created without the trim lock": Mutant(None, ("create_without_lock",), SNAPSHOTS, "S10"),
    "version and bounds of a snapshot are read in two statements": Mutant(None, ("two_statements",), SNAPSHOTS, "S36"),
    "the tables of a snapshot are read one by one": Mutant(None, ("table_by_table",), SNAPSHOTS_CUT, "S36"),
    "a snapshot is dropped without the trim lock": Mutant(None, ("drop_without_lock",), SNAPSHOTS_DROPS, "S10"),
    "a snapshot is dropped under a lease": Mutant(None, ("readers_ignored",), SNAPSHOTS_DROPS, "S10"),
    "a drop judges leases by the clock": Mutant(None, ("leases_by_the_clock",), SNAPSHOTS_DROPS, "S10"),
    "a drop takes a snapshot of tables that it has not locked": Mutant(
        None, ("dropped_by_name",), SNAPSHOTS_DROPS, "S10"
    ),
    # -- states of consumers
    "a state pins a version that does not show its cut": Mutant(None, ("cut_unshown",), STATES, "S10"),
    "a state pins a version that is merged beyond its offsets": Mutant(None, ("merged_beyond",), STATES, "S2"),
    "a state is committed ahead of ingest": Mutant(None, ("ahead_of_ingest",), STATES, "S2"),
    "trim looks at no states": Mutant(EXPIRE, ("floor_ignores_states",), STATES, "S10"),
    # -- cuts that engines read
    "a cut is published over a newer one": Mutant(None, ("previous_unchecked", "follows_unchecked"), CUTS, "S4"),
    "the state is looked at before the newest cut": Mutant(None, ("looks_first", "follows_unchecked"), CUTS, "S4"),
    "each server has a reuse window of its own": Mutant(None, ("reuse_per_server",), CUTS, "S4"),
    "numbers of cuts begin again": Mutant(EXPIRE, ("numbers_begin_again",), CUTS_SLOW, "F2"),
    "a cut ends below the one before": Mutant(None, ("follows_unchecked",), CUTS_LOG, "S4"),
    "rows of files that straddle batch_hi are not hidden": Mutant(None, ("straddle_unhidden",), CUTS_VIEWS, "F1"),
    "deletes of the cut before stay after a merge": Mutant(None, ("part_without_batch_hi",), CUTS_VIEWS, "F1"),
    "deletes of a cut are older than the files": Mutant(None, ("sequence_ignores_views",), CUTS_VIEWS, "F4"),
    "the id of a cut leaves batch_hi out": Mutant(
        None, ("id_without_batch_hi", "id_without_version"), CUTS_VIEWS, "F2"
    ),
    "the id of a cut leaves the version out": Mutant(None, ("id_without_version",), CUTS_CORRECTED, "S2"),
    "the id of a cut leaves the decoder out": Mutant(None, ("id_without_makers",), CUTS_TAIL, "S2"),
    "a state that comes back has the id of its first cut": Mutant(None, ("id_without_sequence",), CUTS_TAIL_BACK, "F2"),
    "a chunk begins one offset too low": Mutant(None, ("chunk_off_by_one",), CUTS_REVERT, "F1"),
    "a chunk is kept that the lake has a part of": Mutant(None, ("straddling_chunk_kept",), CUTS_REVERT, "F1"),
    "a chunk is kept over a change of columns": Mutant(None, ("chunk_over_makers",), CUTS_EVOLVE, "S21"),
    "a chunk is kept over a change of the decoder": Mutant(None, ("chunk_over_makers",), CUTS_TAIL, "S21"),
    "what a revert gives back to the buffer is not read": Mutant(None, ("revert_ends_no_chunk",), CUTS_REVERT, "F1"),
    "a record is put back into the buffer": Mutant(REPLAY, ("replayed_into_the_buffer",), CUTS_CORRECTED, "S2"),
    "recalled rows of another generation are kept": Mutant(None, ("recalled_without_generation",), CUTS_KEYED, "S2"),
    "recalled rows are kept after they went back": Mutant(
        None, ("recalled_kept_after_revert",), CUTS_KEYED_REVERT, "F1"
    ),
    "a merged state calls itself fresh": Mutant(None, ("merged_is_fresh",), CUTS_KEYED, "F9"),
    "a cut is found by the name that its snapshot had": Mutant(None, ("named_by_its_name",), NAMED_CUTS, "S2"),
    "a state that a snapshot pins has two cuts": Mutant(None, ("named_twice",), NAMED_CUTS, "F2"),
    "serving a cut of a snapshot does not prolong it": Mutant(None, ("named_not_prolonged",), NAMED_CUTS, "S11"),
    "the cut of a snapshot names files that may be gone": Mutant(None, ("named_lease_unchecked",), NAMED_CUTS, "F3"),
    "the cut of a dropped snapshot does not keep its version": (
        Mutant(EXPIRE, ("named_version_unprotected",), NAMED_CUTS, "F3")
    ),
    "expire does not ask for cuts of snapshots": Mutant(EXPIRE, ("named_files_unprotected",), NAMED_CUTS, "F3"),
    "the files of a cut may go when it is answered": Mutant(None, ("lease_ends_at_the_answer",), CUT_FILES, "S11"),
    "serving a cut again does not prolong it": Mutant(None, ("until_not_moved",), CUT_FILES, "S11"),
    "a cut is served whose row is gone": Mutant(None, ("served_without_its_row",), CUT_FILES, "S11"),
    "a maker that lost answers with its own cut": Mutant(None, ("loser_answers",), CUT_FILES, "S11"),
    "a cut names files that were unreachable for a while": Mutant(None, ("lease_unchecked",), CUT_FILES, "F3"),
    "a cut takes over files of one that is not the newest": Mutant(None, ("previous_unchecked",), CUT_FILES, "F3"),
    "a cut has the number of one before it": Mutant(None, ("follows_unchecked",), CUT_FILES, "F3"),
    "a number of a cut is given to another one": Mutant(EXPIRE, ("numbers_begin_again",), CUT_FILES, "F3"),
    "a cut does not keep its version": Mutant(EXPIRE, ("version_unprotected",), CUT_FILES, "F3"),
    "expire judges cuts by the clock": Mutant(EXPIRE, ("cuts_by_the_clock",), CUT_FILES, "F3"),
    "files go in the run that forgets their cut": Mutant(EXPIRE, ("same_run",), CUT_FILES, "F3"),
    "files of a cut that is being made are orphans": Mutant(EXPIRE, ("horizon_too_short",), CUT_FILES, "F3"),
    "files that a server remembers are orphans": Mutant(EXPIRE, ("unnamed_are_orphans",), CUT_FILES_UNNAMED, "F3"),
    "a cut goes on from one that was retired": Mutant(None, ("retired_goes_on",), CUT_FILES_LOST, "F3"),
    "a cut is served that was retired": Mutant(None, ("retired_is_served",), CUT_FILES_LOST, "S11"),
    "the ETag of an answer is that of the state": Mutant(None, ("etag_of_the_state",), CUT_FILES_CACHED, "S11"),
}
