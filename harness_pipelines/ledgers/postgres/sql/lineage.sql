-- name: versions
-- Those whose files are kept: they can be read, or a named snapshot pins them.
SELECT v.* FROM harness.versions v JOIN harness.tables t ON t.table_id = v.table_id
WHERE v.table_id = %(table_id)s AND (v.version >= t.retained_from OR v.version IN (
    SELECT version FROM harness.snapshot_tables WHERE table_id = %(table_id)s))
ORDER BY v.version

-- name: made_by
-- The version that each snapshot of a view came with: later ones go on naming it while the view stays as it is.
SELECT DISTINCT ON (s.snapshot) s.snapshot, v.version, v.move_id
FROM harness.versions v
CROSS JOIN LATERAL (
    SELECT CASE %(view)s::text WHEN 'batch' THEN v.batch_snapshot ELSE v.stream_snapshot END AS snapshot
) s
WHERE v.table_id = %(table_id)s AND s.snapshot = ANY(%(snapshots)s::bigint[])
ORDER BY s.snapshot, v.version

-- name: moves
SELECT m.*, v.version FROM harness.moves m
LEFT JOIN (
    SELECT move_id, min(version) AS version FROM harness.versions
    WHERE table_id = %(table_id)s AND move_id = ANY(%(move_ids)s::bigint[]) GROUP BY move_id
) v ON v.move_id = m.move_id
WHERE m.table_id = %(table_id)s AND m.move_id = ANY(%(move_ids)s::bigint[]) ORDER BY m.move_id

-- name: carried
-- The moves that took an offset with them, those that a revert took back too.
SELECT move_id FROM harness.moves
WHERE table_id = %(table_id)s AND state = 'COMMITTED'
  AND (lo ->> %(partition)s::text)::bigint <= %(offset)s AND (hi ->> %(partition)s::text)::bigint > %(offset)s
ORDER BY move_id

-- name: folded
-- The checkpoints that a move, or a record, went into.
SELECT stage, kind, moves, first_move, last_move, folded_at FROM harness.checkpoints
WHERE table_id = %(table_id)s AND (%(move_id)s::bigint BETWEEN first_move AND last_move
   OR (lo ->> %(partition)s::text)::bigint <= %(offset)s AND (hi ->> %(partition)s::text)::bigint > %(offset)s)
ORDER BY first_move
