-- name: version
SELECT * FROM harness.versions WHERE table_id = %(table_id)s AND version = %(version)s

-- name: lock_open_moves
SELECT * FROM harness.moves WHERE table_id = %(table_id)s AND state IN ('PLANNED', 'QUARANTINED')
ORDER BY move_id FOR NO KEY UPDATE

-- name: put_back
-- A view that another engine dropped.
INSERT INTO public.iceberg_tables
    (catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location, iceberg_type)
VALUES (%(catalog)s, %(namespace)s, %(view)s, %(new)s, %(old)s, 'TABLE')
ON CONFLICT DO NOTHING

-- name: abandon_moves
UPDATE harness.moves SET state = 'ABANDONED', error = concat_ws('; its last error: ', %(error)s::text, error)
WHERE move_id = ANY(%(move_ids)s)

-- name: set_position
UPDATE harness.lake_positions SET stream_hi = %(stream_hi)s, batch_hi = %(batch_hi)s,
    trim_floor = least(trim_floor, %(stream_hi)s)
WHERE table_id = %(table_id)s AND partition = %(partition)s

-- name: record_move
UPDATE harness.moves SET lo = %(lo)s, hi = %(hi)s, base_version = %(base_version)s,
    schema_version = %(schema_version)s, state = 'COMMITTED', error = NULL, rows = 0, committed_at = clock_timestamp()
WHERE table_id = %(table_id)s AND move_id = %(move_id)s

-- name: lineage
-- Reverts are never folded, so that the way back from any version is that of all versions.
SELECT version, revert_of FROM harness.versions WHERE table_id = %(table_id)s

-- name: mark_undone
-- Of the moves that reconcile took over in one version, that version names the last alone.
WITH published AS (
    SELECT version, move_id FROM harness.versions WHERE table_id = %(table_id)s
    UNION
    SELECT base_version + 1, move_id FROM harness.moves
    WHERE table_id = %(table_id)s AND trigger = 'reconcile' AND state = 'COMMITTED'
)
UPDATE harness.moves m SET undone_by = CASE WHEN m.undone_by IS NULL THEN %(move_id)s::bigint END
FROM published v
WHERE m.move_id = v.move_id AND m.stage <> 'revert'
  AND (m.undone_by IS NULL) <> (v.version = ANY(%(in_effect)s))

-- name: claims
SELECT * FROM harness.claims WHERE table_id = %(table_id)s ORDER BY stage, shard

-- name: lock_claims
SELECT * FROM harness.claims WHERE table_id = %(table_id)s AND stage <> 'ingest' ORDER BY stage, shard FOR UPDATE

-- name: fence_claims
UPDATE harness.claims SET epoch = epoch + 1, lease_until = least(lease_until, clock_timestamp())
WHERE table_id = %(table_id)s AND stage <> 'ingest'
