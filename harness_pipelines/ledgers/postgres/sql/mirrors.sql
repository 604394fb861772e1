-- name: state
SELECT m.version, m.holds, m.uuids, m.trouble, h.version AS head,
       extract(epoch FROM clock_timestamp() - m.looked_at)::float8 AS looked_s
FROM (
    SELECT v.version FROM harness.versions v WHERE v.table_id = %(table_id)s ORDER BY v.version DESC LIMIT 1
) h LEFT JOIN harness.mirrors m ON m.table_id = %(table_id)s AND m.catalog = %(catalog)s AND m.dropped_at IS NULL

-- name: head
SELECT * FROM harness.versions WHERE table_id = %(table_id)s ORDER BY version DESC LIMIT 1

-- name: intend
-- What was sent before stays: nobody knows yet that the server does not show it.
INSERT INTO harness.mirrors AS m (table_id, catalog, holds) VALUES (%(table_id)s, %(catalog)s, ARRAY[%(version)s::bigint])
ON CONFLICT (table_id, catalog) DO UPDATE
SET holds = CASE WHEN %(version)s = ANY(m.holds) THEN m.holds ELSE m.holds || %(version)s::bigint END,
    dropped_at = NULL, dropping_since = NULL

-- name: register
UPDATE harness.mirrors
SET registered = CASE WHEN %(metadata)s = ANY(registered) THEN registered ELSE registered || %(metadata)s::text END
WHERE table_id = %(table_id)s AND catalog = %(catalog)s AND dropped_at IS NULL AND dropping_since IS NULL

-- name: known
SELECT max(version) FILTER (WHERE snapshot = %(snapshot)s) AS newest,
       coalesce(bool_or(snapshot = %(snapshot)s AND version = %(version)s), false) AS is_of_version
FROM (
    SELECT version, CASE WHEN %(view)s = 'batch' THEN batch_snapshot ELSE stream_snapshot END AS snapshot
    FROM harness.versions WHERE table_id = %(table_id)s
) v

-- name: settle
UPDATE harness.mirrors SET version = %(version)s, holds = ARRAY[%(version)s::bigint], names = %(names)s, uuids = %(uuids)s,
    trouble = NULL, trouble_since = NULL, looked_at = clock_timestamp(),
    mirrored_at = CASE WHEN version = %(version)s THEN mirrored_at ELSE clock_timestamp() END
WHERE table_id = %(table_id)s AND catalog = %(catalog)s AND dropped_at IS NULL

-- name: trouble
INSERT INTO harness.mirrors AS m (table_id, catalog, trouble, trouble_since)
VALUES (%(table_id)s, %(catalog)s, %(error)s, clock_timestamp())
ON CONFLICT (table_id, catalog) DO UPDATE
SET trouble = excluded.trouble, trouble_since = coalesce(m.trouble_since, excluded.trouble_since), dropped_at = NULL

-- name: begin_drop
-- As a trouble, so that a drop which was cut off is seen.
UPDATE harness.mirrors SET dropping_since = clock_timestamp(), trouble_since = clock_timestamp(),
    trouble = 'it is being dropped; where that was cut off, `harness mirror drop` finishes it'
WHERE table_id = %(table_id)s AND catalog = %(catalog)s AND dropped_at IS NULL

-- name: forget
-- Unless a worker has begun to follow it again since. `holds` and `registered` stay: a follower that sleeps may have sent
-- none of it yet.
UPDATE harness.mirrors SET version = NULL, names = '{}', uuids = '{}', trouble = NULL, trouble_since = NULL,
    mirrored_at = NULL, looked_at = NULL, dropped_at = clock_timestamp(), dropping_since = NULL
WHERE table_id = %(table_id)s AND catalog = %(catalog)s AND dropping_since IS NOT NULL

-- name: kept
-- What was on its way to one that was dropped is kept for the hour that other acts have.
SELECT holds, registered || names AS files FROM harness.mirrors
WHERE table_id = %(table_id)s AND coalesce(dropped_at > clock_timestamp() - interval '1 hour', true)

-- name: published_files
-- Metadata files that versions named: those of them that nothing reaches any more are ours to remove.
SELECT stream_metadata AS path FROM harness.versions WHERE table_id = %(table_id)s
UNION SELECT batch_metadata FROM harness.versions WHERE table_id = %(table_id)s AND batch_metadata IS NOT NULL

-- name: lags
SELECT t.namespace || '.' || t.name AS name, l.* FROM harness.mirror_lags l JOIN harness.tables t USING (table_id)
WHERE t.namespace || '.' || t.name = ANY(%(tables)s) ORDER BY 1, l.catalog
