-- name: as_owner
SET LOCAL ROLE NONE

-- name: lock_table
-- Not FOR UPDATE: a reader that holds the trim lock, which the drop waits for, inserts its lease yet.
SELECT table_id FROM harness.tables WHERE table_id = %(table_id)s FOR NO KEY UPDATE

-- name: lock_pointers
SELECT table_name, metadata_location FROM public.iceberg_tables
WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = ANY(%(views)s)
ORDER BY table_name FOR UPDATE

-- name: live_claims
SELECT stage, shard, holder::text AS holder, lease_until FROM harness.claims
WHERE table_id = %(table_id)s AND lease_until > clock_timestamp() ORDER BY stage, shard

-- name: mirrors
SELECT catalog FROM harness.mirrors WHERE table_id = %(table_id)s AND dropped_at IS NULL ORDER BY catalog

-- name: ledger_rows
SELECT (SELECT count(*) FROM harness.versions WHERE table_id = %(table_id)s) AS versions,
       (SELECT count(*) FROM harness.moves WHERE table_id = %(table_id)s) AS moves,
       (SELECT count(*) FROM harness.quarantine WHERE table_id = %(table_id)s) AS quarantined,
       (SELECT count(*) FROM harness.leases WHERE table_id = %(table_id)s AND until > clock_timestamp()) AS readers,
       (SELECT count(*) FROM harness.cuts WHERE table_id = %(table_id)s AND until > clock_timestamp())
       + (SELECT count(*) FROM harness.named_cuts WHERE table_id = %(table_id)s AND until > clock_timestamp()) AS cuts,
       ARRAY(SELECT folder FROM harness.cut_folders WHERE table_id = %(table_id)s ORDER BY folder) AS fresh

-- name: segments
SELECT s.segment, s.state, coalesce(pg_total_relation_size(c.oid), 0) AS bytes
FROM harness.segments s
LEFT JOIN pg_class c ON c.relname = s.segment AND c.relnamespace = 'harness_buffer'::regnamespace
WHERE s.table_id = %(table_id)s ORDER BY s.seq

-- name: delete_pointers
DELETE FROM public.iceberg_tables
WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = ANY(%(views)s)

-- name: ask_purge
INSERT INTO harness.purges (folder, name) SELECT f, %(name)s FROM unnest(%(folders)s::text[]) f
ON CONFLICT (folder) DO NOTHING

-- name: to_purge
SELECT folder FROM harness.purges WHERE name = %(name)s ORDER BY asked_at, folder

-- name: places
SELECT metadata_location FROM public.iceberg_tables WHERE metadata_location IS NOT NULL

-- name: lock_purges
-- Whoever begins to delete a folder looks at all tables, whoever makes a table looks at the folders: one after the other.
SELECT pg_advisory_xact_lock(1752330870, 0)

-- name: begin_purge
-- A server publishes a cut within two minutes or not at all, and a request of it may be under way as long again.
UPDATE harness.purges SET begun_at = clock_timestamp() WHERE folder = %(folder)s
RETURNING begun_at, asked_at <= clock_timestamp() - interval '5 minutes' AS is_left

-- name: begun
SELECT folder, name FROM harness.purges WHERE begun_at IS NOT NULL ORDER BY folder

-- name: purged
DELETE FROM harness.purges WHERE folder = %(folder)s AND begun_at = %(begun_at)s

-- name: delete_segments
DELETE FROM harness.segments WHERE table_id = %(table_id)s

-- name: delete_ingest_positions
DELETE FROM harness.ingest_positions WHERE table_id = %(table_id)s

-- name: delete_quarantine
DELETE FROM harness.quarantine WHERE table_id = %(table_id)s

-- name: delete_violations
DELETE FROM harness.contract_violations WHERE table_id = %(table_id)s

-- name: delete_filtered
DELETE FROM harness.filtered WHERE table_id = %(table_id)s

-- name: delete_table
DELETE FROM harness.tables WHERE table_id = %(table_id)s
