-- name: begin
INSERT INTO harness.snapshots (name) VALUES (%(name)s) ON CONFLICT DO NOTHING RETURNING created_at

-- name: take
-- One statement, so all tables are seen at one instant.
INSERT INTO harness.snapshot_tables (name, table_id, version, bounds)
SELECT %(name)s, t.table_id, v.version, p.bounds
FROM harness.tables t
CROSS JOIN LATERAL (
    SELECT version, bounds FROM harness.versions WHERE table_id = t.table_id ORDER BY version DESC LIMIT 1
) v
CROSS JOIN LATERAL (
    SELECT jsonb_object_agg(i.partition,
        coalesce(v.bounds -> i.partition::text,
                 jsonb_build_object('start', i.start, 'batch_hi', i.start, 'stream_hi', i.start))
        || jsonb_build_object('buffer_hi', i.buffer_hi)) AS bounds
    FROM harness.ingest_positions i WHERE i.table_id = t.table_id
) p
WHERE t.table_id = ANY(%(table_ids)s)
RETURNING table_id, version, bounds

-- name: all
SELECT s.name, s.created_at, t.namespace || '.' || t.name AS table_name, p.version, p.bounds,
       coalesce(p.digest = harness.pin_digest(p), true) AS sound
FROM harness.snapshots s
LEFT JOIN harness.snapshot_tables p USING (name)
LEFT JOIN harness.tables t USING (table_id)
WHERE s.name = %(name)s OR (%(name)s::text IS NULL AND s.name NOT LIKE 'state:%%')
ORDER BY s.created_at, s.name, table_name

-- name: of_table
SELECT p.name, p.bounds AS named_bounds, v.*
FROM harness.snapshot_tables p JOIN harness.versions v USING (table_id, version)
WHERE p.table_id = %(table_id)s AND (NOT %(sound)s OR p.digest = harness.pin_digest(p)) ORDER BY v.version, p.name

-- name: find
-- `state:NAME` is what the state's last commit pins.
SELECT version, bounds, digest = harness.pin_digest(p) AS sound FROM harness.snapshot_tables p WHERE table_id = %(table_id)s AND name = coalesce((
    SELECT %(name)s || ':' || max(seq) FROM harness.state_commits WHERE 'state:' || name = %(name)s), %(name)s)

-- name: is_ahead
SELECT now FROM clock_timestamp() AS now WHERE now < %(then)s

-- name: await_publishers
-- Who publishes a version has this lock from before the version's time is taken until its COMMIT (`ledger/lock_table`). So
-- what was under way and is older than this statement is visible to the next one.
SELECT pg_advisory_xact_lock_shared(1752330869, %(table_id)s)

-- name: version_then
SELECT version FROM harness.versions WHERE table_id = %(table_id)s AND committed_at <= %(then)s
ORDER BY version DESC LIMIT 1

-- name: tables_of
SELECT table_id FROM harness.snapshot_tables WHERE name = %(name)s ORDER BY table_id

-- name: readers
-- Whatever the clock says: a renewal under way may have begun before the lease ended, and those that ended are deleted.
SELECT t.namespace || '.' || t.name AS table_name, l.holder, l.until
FROM harness.snapshot_tables p JOIN harness.leases l USING (table_id, version) JOIN harness.tables t USING (table_id)
WHERE p.name = %(name)s ORDER BY l.until DESC

-- name: drop
-- Not one that was made again over other tables, whose locks the transaction does not have.
DELETE FROM harness.snapshots s WHERE s.name = %(name)s AND NOT EXISTS (
    SELECT FROM harness.snapshot_tables p WHERE p.name = s.name AND p.table_id <> ALL(%(table_ids)s::integer[]))
