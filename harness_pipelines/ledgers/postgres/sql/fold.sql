-- name: state
-- How far history is folded, the last version that may be, and whether that is so much more that it is worth a transaction.
-- *last*: it is old, no read may ask for it, and no subscriber waits for its event.
SELECT coalesce(f.version, 0) AS version, coalesce(f.event, 0) AS event, w.retained_from, w.last,
       coalesce(greatest(w.last - coalesce(f.version, 0), 0) >= %(least)s, false) OR coalesce((
           SELECT m.committed_at FROM harness.moves m
           WHERE m.table_id = t.table_id AND m.stage = 'ingest' AND m.state = 'COMMITTED'
           ORDER BY m.move_id OFFSET %(least)s + %(newest)s LIMIT 1
       ) < clock_timestamp() - %(history)s::interval, false) AS is_due
FROM harness.tables t LEFT JOIN harness.folds f USING (table_id)
CROSS JOIN LATERAL (
    -- NULL counts as no limit to `least`, and no version that is old is one: 0.
    SELECT t.retained_from, least(t.retained_from - 1, coalesce((
        SELECT v.version FROM harness.versions v
        WHERE v.table_id = t.table_id AND v.committed_at < clock_timestamp() - %(history)s::interval
        ORDER BY v.committed_at DESC, v.version DESC LIMIT 1
    ), 0), (
        SELECT (o.payload ->> 'version')::bigint - 1 FROM harness.outbox o
        WHERE o.table_id = t.table_id AND o.payload ? 'version' AND o.seq > (
            SELECT min(s.dealt_with) FROM harness.subscribers s WHERE s.table_id = t.table_id)
        ORDER BY o.seq LIMIT 1)) AS last
) w
WHERE t.table_id = %(table_id)s

-- name: pins
-- Versions that something needs whatever their age: read, pinned, shown elsewhere, or built on.
SELECT version FROM harness.leases WHERE table_id = %(table_id)s
UNION SELECT version FROM harness.snapshot_tables WHERE table_id = %(table_id)s
UNION SELECT version FROM harness.mirrors WHERE table_id = %(table_id)s AND version IS NOT NULL
UNION SELECT unnest(holds) FROM harness.mirrors WHERE table_id = %(table_id)s
UNION SELECT version FROM harness.cuts WHERE table_id = %(table_id)s
UNION SELECT version FROM harness.named_cuts WHERE table_id = %(table_id)s
UNION SELECT base_version FROM harness.moves
      WHERE table_id = %(table_id)s AND state IN ('PLANNED', 'QUARANTINED') AND base_version IS NOT NULL

-- name: first
SELECT version FROM harness.versions WHERE table_id = %(table_id)s ORDER BY version LIMIT 1

-- name: staying
-- Moves that refused a record which was a row when the first correction changed it (`buffer: none`). If what corrected it is
-- undone, only such a move says that the record is no row.
SELECT DISTINCT unnest(q.refused_by) AS move_id FROM harness.quarantine q
WHERE q.table_id = %(table_id)s AND q.refused_by IS NOT NULL
  AND EXISTS (SELECT FROM harness.corrections a WHERE a.table_id = %(table_id)s AND a.kind IN ('replaced', 'removed')) AND (
    SELECT c.kind FROM harness.corrections c
    WHERE c.table_id = q.table_id AND c.partition = q.partition AND c."offset" = q."offset"
    ORDER BY c.version LIMIT 1) IN ('replaced', 'removed')

-- name: old_versions
-- Those up to *through* that something made which goes on by itself; among them the newest of each stage, which stay. What
-- stays for long is left out here, so that it holds no later ones up.
SELECT v.version, v.move_id, v.revert_of FROM harness.versions v JOIN harness.moves m USING (move_id)
WHERE v.table_id = %(table_id)s AND v.version <= %(through)s AND v.revert_of IS NULL
  AND v.version <> ALL(%(needed)s::bigint[]) AND m.stage IN ('tier', 'otree', 'compact')
  AND m.trigger NOT IN ('accept-loss', 'accept-foreign', 'reconcile') AND m.recall IS NULL AND m.parts = '[]'
  AND NOT EXISTS (SELECT FROM harness.moves c WHERE c.parent_move = m.move_id)
  AND m.move_id <> ALL(%(staying)s::bigint[])
ORDER BY v.version LIMIT %(limit)s + 4 * %(newest)s

-- name: reverts
-- Of versions above one.
SELECT version, revert_of FROM harness.versions
WHERE table_id = %(table_id)s AND version > %(through)s AND revert_of IS NOT NULL

-- name: moves_of
-- Of the given moves those that may go: none of the newest of its stage, which the lake's metadata may name, none that
-- something names.
WITH newest AS MATERIALIZED (
    SELECT s.stage, (
        SELECT n.move_id FROM harness.moves n
        WHERE n.table_id = %(table_id)s AND n.stage = s.stage AND n.state = 'COMMITTED'
        ORDER BY n.move_id DESC OFFSET %(newest)s - 1 LIMIT 1) AS since
    FROM (VALUES ('ingest'), ('tier'), ('otree'), ('compact')) AS s (stage)
)
SELECT m.* FROM harness.moves m JOIN newest USING (stage)
WHERE m.table_id = %(table_id)s AND m.move_id = ANY(%(move_ids)s::bigint[]) AND m.recall IS NULL AND m.parts = '[]'
  AND m.move_id < newest.since AND NOT EXISTS (SELECT FROM harness.moves c WHERE c.parent_move = m.move_id)
  AND m.move_id <> ALL(%(staying)s::bigint[])

-- name: old_ingest
-- Of ingest those whose rows the buffer need not hold any more: all below the trim floor.
SELECT m.move_id FROM (
    SELECT move_id, hi, committed_at FROM harness.moves
    WHERE table_id = %(table_id)s AND stage = 'ingest' AND state = 'COMMITTED'
      AND trigger NOT IN ('accept-loss', 'accept-foreign', 'reconcile')
    ORDER BY move_id LIMIT %(limit)s
) m
WHERE m.committed_at < clock_timestamp() - %(history)s::interval
  AND NOT EXISTS (
      SELECT FROM jsonb_each_text(m.hi) h
      LEFT JOIN harness.lake_positions l ON l.table_id = %(table_id)s AND l.partition = h.key::integer
      WHERE coalesce(l.trim_floor < h.value::bigint, true))

-- name: old_abandoned
-- Epoch 0: of people, who may take such a move up again.
SELECT m.move_id FROM harness.moves m
WHERE m.table_id = %(table_id)s AND m.state = 'ABANDONED' AND m.epoch <> 0
  AND m.stage IN ('ingest', 'tier', 'otree', 'compact') AND m.trigger NOT IN ('accept-loss', 'accept-foreign', 'reconcile')
  AND m.recall IS NULL AND m.parts = '[]' AND NOT EXISTS (SELECT FROM harness.moves c WHERE c.parent_move = m.move_id)
  AND m.planned_at < clock_timestamp() - %(history)s::interval ORDER BY m.move_id LIMIT %(limit)s

-- name: checkpoints
SELECT * FROM harness.checkpoints WHERE table_id = %(table_id)s ORDER BY stage, first_move

-- name: barriers
SELECT move_id FROM harness.moves
WHERE table_id = %(table_id)s AND trigger = 'reconcile' AND state = 'COMMITTED' AND stage <> 'ingest'

-- name: fold_versions
SELECT harness.fold_versions(%(table_id)s::integer, %(before)s::bigint, %(through)s::bigint, %(versions)s::bigint[]) AS folded

-- name: judge_for_good
-- Records that the given moves refused name these no more (`buffer: none`), some of them. One that a move in effect refused
-- is no row for good, as one that ingest refused. A move that is undone for good says nothing.
UPDATE harness.quarantine q
SET digest = NULL, refused_by = CASE WHEN NOT q.refused_by && %(in_effect)s::bigint[] THEN ARRAY(
    SELECT r.move_id FROM unnest(q.refused_by) AS r (move_id) WHERE r.move_id <> ALL(%(move_ids)s::bigint[])) END
WHERE q.ctid = ANY(ARRAY(
    SELECT s.ctid FROM harness.quarantine s
    WHERE s.table_id = %(table_id)s AND s.refused_by IS NOT NULL AND s.refused_by && %(move_ids)s::bigint[]
    LIMIT %(records)s))

-- name: fold_moves
SELECT harness.fold_moves(%(table_id)s::integer, %(move_ids)s::bigint[], %(checkpoints)s::bigint[]) AS checkpoint

-- name: old_events
-- The number up to which events are of versions that are folded and every subscriber has dealt with them; NULL: of none.
SELECT max(e.seq) AS through FROM (
    SELECT o.seq, (o.payload ->> 'version')::bigint AS version,
           max((o.payload ->> 'version')::bigint) OVER (ORDER BY o.seq) AS highest
    FROM (
        SELECT seq, payload FROM harness.outbox WHERE table_id = %(table_id)s AND seq > %(event)s
        AND seq <= coalesce((SELECT min(s.dealt_with) FROM harness.subscribers s WHERE s.table_id = %(table_id)s), seq)
        ORDER BY seq LIMIT %(limit)s
    ) o
) e WHERE e.highest <= %(through)s AND e.version IS NOT NULL

-- name: fold_events
SELECT harness.fold_events(%(table_id)s::integer, %(through)s::bigint) AS folded

-- name: told
-- What readers are told of folded history; no row: nothing is folded.
SELECT version, versions, event, events, stream_hi, folded_at FROM harness.folds WHERE table_id = %(table_id)s
