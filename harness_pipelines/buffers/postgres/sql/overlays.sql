-- name: note
INSERT INTO harness.overlays (segment, table_id, move_id, attempt, schema_version)
VALUES (%(segment)s, %(table_id)s, %(move_id)s, %(attempt)s, %(schema_version)s)

-- name: all
SELECT o.segment, o.move_id, o.retired_at, to_regclass('harness_buffer.' || quote_ident(o.segment)) IS NOT NULL AS stored
FROM harness.overlays o WHERE o.table_id = %(table_id)s ORDER BY o.created_at, o.segment

-- name: there
-- Those that a version may name: stored, and not given up. Retiring and publishing both lock the table's row.
SELECT segment FROM harness.overlays
WHERE table_id = %(table_id)s AND retired_at IS NULL
  AND to_regclass('harness_buffer.' || quote_ident(segment)) IS NOT NULL

-- name: size
SELECT pg_total_relation_size(to_regclass('harness_buffer.' || quote_ident(%(segment)s))) AS bytes

-- name: made
SELECT segment, move_id FROM harness.overlays WHERE table_id = %(table_id)s AND retired_at IS NULL

-- name: open_moves
SELECT move_id, base_version FROM harness.moves WHERE table_id = %(table_id)s AND state IN ('PLANNED', 'QUARANTINED')

-- name: retire
UPDATE harness.overlays SET retired_at = clock_timestamp() WHERE segment = ANY(%(segments)s)

-- name: forget
-- Once `segment_drop` has dropped it, which refuses one that is not retired.
DELETE FROM harness.overlays WHERE segment = %(segment)s

-- name: sizes
SELECT o.segment, CASE WHEN o.retired_at IS NULL THEN 'recalled' ELSE 'retired' END AS state,
       coalesce(pg_total_relation_size(c.oid), 0) AS bytes
FROM harness.overlays o
LEFT JOIN pg_class c ON c.relname = o.segment AND c.relnamespace = 'harness_buffer'::regnamespace
WHERE o.table_id = %(table_id)s ORDER BY o.segment

-- name: delete_all
DELETE FROM harness.overlays WHERE table_id = %(table_id)s
