"""Why a mutant that no test notices changes nothing that anybody could notice."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: {what the whole name of a mutant looks like: why}
REASONS: Mapping[str, str] = {
    r"(?!functions/state_commit).*: compare .*(clock_timestamp|interval|ended <=|held >).*": (
        "two times that are equal to the microsecond: either side of them is right"
    ),
    r"functions/state_commit: lock FOR UPDATE": "the renewal that follows updates the same row, so it waits there",
    r"functions/state_commit: (compare FOUND AND wrong|where FOUND).*": (
        "what is found is below the start, above the end or of no partition: never at the end, and where nothing is "
        "found the record is NULL, which is above nothing"
    ),
    r"functions/shows_cut: (if NOT EXISTS|compare ws, highs\)|(where|compare) c\.low < c\.high$).*": (
        "the answer where nothing lies between comes sooner: without it the last statement gives the same one"
    ),
    r"functions/shows_cut: compare .* v\.version > of_version AND .*": (
        "the version itself reaches the offsets only where nothing lies between, and that is answered before"
    ),
    r"functions/shows_cut: where i\.partition >= 0": (
        "no table has a position of the pseudo-partition and no version has bounds of it: rows of another writer are "
        "accepted by a version with the bounds of the one before (contract/test_adopted.py)"
    ),
    r"functions/lease_renew: where born .*": "a check of the table: no lease is alive a day after it was born",
    r"functions/history: if pg_is_in_recovery.*": "faults/test_promotion.py asks a stand-by, which fails without it",
    r"history/known: where move_id = ANY.*": "only the moves that were asked for are looked up in the answer",
    r"corrections/of_versions(_among)?: where (h\.)?(version|table_id) = .*": (
        "says only which records are looked at: of each it is judged from all its corrections whether it changed"
    ),
    r"ledger/lock_table: lock .* in .*\.Corrections\._stand": ("the caller holds the row of the table already"),
    r"ledger/lock_positions: lock .* in .*\.Reconciler\._set_bounds": (
        "whoever changes positions holds the row of the table, as reconcile does"
    ),
    r"ledger/lock_move: lock .* in ledgers\.postgres\.ledger\.PostgresLedger\.(_built|note_failure)": (
        "the row is asked for what it says: nothing is written after it, or the update before has locked it"
    ),
    r"ledger/table_names: order .*": "what is most like the wrong name comes first, whatever the order was",
    r"ledger/ingest_positions: order .*": "whoever asks makes a mapping of them",
    r"(corrections/lock_states|revert/lock_(open_moves|claims)|drop/lock_pointers|ledger/lock_positions): order .*": (
        "the only statement that locks several of these rows: all who run it have the same order, this one or the other"
    ),
    r"buffer/count_(filtered|violations): order .*": "all ingest writers have the same order, this one or the other",
    r"ledger/open_move: order .*": "a unique index allows one open move per table, stage and shard",
    r"ledger/move_pointer: where table_(name|namespace) = .*": (
        "no two tables of a catalog have the same metadata file, and the old one is asked for too"
    ),
    r"((corrections|evolve|revert)/record_move|reads/version_of_move): where table_id = .*": (
        "a move's number is its own, whatever its table"
    ),
    r"reconcile/(leases_over|end_leases_over): or born <= .*": (
        "a check of the table: no lease lasts longer than a day after it was born, so it has ended"
    ),
    r"(reads/take_trim_lock: lock|reconcile/fence_all: fence) .* in .*\.Reconciler\.reserve": (
        "it notes the number of a move and publishes nothing; it does what all of reconcile does before a commit"
    ),
    r"ledger/update_schema_spec: where schema_version = .*": "asked of tables that have one schema alone",
    r"ledger/lock_move: lock .* in .*\.BoundaryCommit\._published": (
        "the row of the table, which a publish under way holds, was locked before"
    ),
    r"ledger/check_claim: lock .* in .*\.PostgresLedger\.renew": (
        "asked why a renewal changed nothing: nothing is written after it"
    ),
    r"buffer/lock_segment: lock .* in .*\._trimmed": "the update that follows locks the same row",
    r"buffer/retire_segment: where state = .*": "only a closed segment is chosen, and no state is ever taken back",
    r"(recluster/end|recalls/find): where table_id = .*": "a request's number is its own, whatever its table",
    r"reads/(look|glance): where s\.state <> 'retired'": (
        "they are left out again where those that can hold rows are chosen"
    ),
    r"reads/no_rows: where .*": "nothing was asked for, so nobody looks at what it gives",
    r"upkeep/moves_by_id: where move_id = ANY.*": "only those that branches are called by are looked up in the answer",
    r"ledger/lock_(table|row): lock pg_advisory_xact_lock.* in .*\.("
    r"plan_move|trim|(Recalls|Reclusters)\.(ask|cancel)|Corrections\.(drop|_stand)|QuarantineBytes\.publish"
    r"|Reconciler\.(reserve|restore_columns)|add_partitions|update_spec|_published)": (
        "it publishes no version, or its caller has the lock already: no reader of a moment has to wait for it"
    ),
    r"snapshots/is_ahead: compare .*": "two times that are equal to the microsecond: either side of them is right",
    r"drop/purged: where folder = .*": "requests of purges begin one after the other, so each time is of one folder",
    r"(upkeep/condemned_of|drop/begun): order .*": "says only which of several is named in the error",
    r"doctor/idle_holders: where l\.locktype .*": (
        "of other locks the class is none, or the number of a catalog, which is below 16,384"
    ),
    r"mirrors/published_files: where table_id = .*": (
        "says only how much is read: no two tables have metadata files in one folder"
    ),
    r"ledger/settle_taken: where m\.move_id <> .*": "the move itself is not committed yet",
    r"corrections/any_between: (where v\.version .*|where \(v\.revert_of .*|where v\.table_id .*|compare .*)": (
        "says only that corrections have to be looked for: looked for in vain, there are none"
    ),
}


def reason(name: str) -> str | None:
    """Why the mutant called *name* may live; ``None``: it may not."""
    return next((why for pattern, why in REASONS.items() if re.fullmatch(pattern, name)), None)
