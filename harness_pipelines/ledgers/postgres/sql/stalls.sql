-- name: alone
-- Whoever looks at the same moment finds the same.
SELECT pg_try_advisory_xact_lock(1752330866, 1) AS alone

-- name: forget
DELETE FROM harness.stalls s USING harness.tables t
WHERE t.table_id = s.table_id AND t.namespace || '.' || t.name = ANY(%(tables)s) AND NOT EXISTS (
    SELECT FROM harness.stage_work w WHERE (w.table_id, w.stage, w.what) = (s.table_id, s.stage, s.what))

-- name: note
-- A move may take minutes, so how long it was open before its first failed attempt says nothing: that begins a new count.
-- It goes on until a move is committed, whether or not later attempts and moves fail as well.
INSERT INTO harness.stalls AS s (table_id, stage, what, marker, failed, since)
SELECT w.table_id, w.stage, w.what, w.marker, w.failed, clock_timestamp()
FROM harness.stage_work w JOIN harness.tables t USING (table_id)
WHERE t.namespace || '.' || t.name = ANY(%(tables)s)
ON CONFLICT (table_id, stage, what) DO UPDATE
SET marker = excluded.marker, failed = excluded.failed, since = excluded.since
WHERE s.marker <> excluded.marker OR excluded.failed AND NOT s.failed

-- name: small_files
INSERT INTO harness.lake_work AS w (table_id, stage) VALUES (%(table_id)s, 'compact')
ON CONFLICT (table_id, stage) DO UPDATE SET seen_at = excluded.seen_at

-- name: no_small_files
DELETE FROM harness.lake_work WHERE table_id = %(table_id)s AND stage = 'compact'

-- name: over
-- The caller's own, and those of workers that are gone.
DELETE FROM harness.troubles x USING harness.tables t
WHERE t.table_id = x.table_id AND (
    x.seen_at < clock_timestamp() - interval '1 hour'
    OR x.holder = %(holder)s AND NOT (t.namespace || '.' || t.name, x.stage) IN (
        SELECT * FROM unnest(%(names)s::text[], %(stages)s::text[])))

-- name: trouble
INSERT INTO harness.troubles AS x (table_id, stage, holder, error, since, seen_at)
SELECT t.table_id, g.stage, %(holder)s, g.error, clock_timestamp(), clock_timestamp()
FROM unnest(%(names)s::text[], %(stages)s::text[], %(errors)s::text[]) AS g (name, stage, error)
JOIN harness.tables t ON t.namespace || '.' || t.name = g.name
ON CONFLICT (table_id, stage, holder) DO UPDATE SET error = excluded.error, seen_at = excluded.seen_at

-- name: now
-- A worker that has not spoken for a minute says nothing any more.
SELECT t.namespace || '.' || t.name AS name, f.stage, f.what, f.since, f.error,
       greatest(extract(epoch FROM clock_timestamp() - f.since)::float8 - f.allowed_s, 0) AS stalled_s
FROM (
    SELECT s.table_id, s.stage, s.what, s.since, w.allowed_s::float8 AS allowed_s, NULL AS error
    FROM harness.stalls s JOIN harness.stage_work w USING (table_id, stage, what, marker)
    WHERE s.failed OR NOT w.failed
    UNION ALL
    SELECT x.table_id, x.stage, 'an error', min(x.since), 0, (array_agg(x.error ORDER BY x.seen_at DESC))[1]
    FROM harness.troubles x WHERE x.seen_at > clock_timestamp() - interval '1 minute' GROUP BY x.table_id, x.stage
) f JOIN harness.tables t USING (table_id)
WHERE %(tables)s::text[] IS NULL OR t.namespace || '.' || t.name = ANY(%(tables)s)
ORDER BY name, f.stage, stalled_s DESC, f.what

-- name: subscribers
SELECT t.namespace || '.' || t.name AS name, s.name AS subscriber, s.lag, s.error, s.error_at,
       coalesce(extract(epoch FROM clock_timestamp() - s.committed_at)::float8, 0) AS since_s
FROM harness.subscribers s JOIN harness.tables t USING (table_id)
WHERE t.namespace || '.' || t.name = ANY(%(tables)s) ORDER BY 1, 2

-- name: record_held
-- `held_since` NULL: no transaction is open there.
UPDATE harness.log_ends e SET newest = h.newest, held_since = h.since
FROM unnest(%(tables)s::integer[], %(partitions)s::integer[], %(newest)s::bigint[], %(since)s::timestamptz[])
     AS h (table_id, partition, newest, since)
WHERE (e.table_id, e.partition) = (h.table_id, h.partition)
  AND (e.newest, e.held_since) IS DISTINCT FROM (h.newest, h.since)

-- name: pins
-- What named snapshots and the last commits of states keep. `behind`: versions between the pinned one and the oldest that
-- is retained anyway, whose files are kept as far as the pinned one has them.
SELECT t.namespace || '.' || t.name AS name, p.name AS pin, p.version, s.created_at AS since,
       extract(epoch FROM clock_timestamp() - s.created_at)::float8 AS age_s,
       greatest(t.retained_from - p.version, 0)::bigint AS behind
FROM harness.snapshot_tables p JOIN harness.snapshots s USING (name) JOIN harness.tables t USING (table_id)
WHERE t.namespace || '.' || t.name = ANY(%(tables)s)
ORDER BY 1, s.created_at, p.name
