-- name: newest
-- What the newest version that was read reaches, but for the data files, which are in `files`.
SELECT view, path, kind, first, files FROM harness.reach WHERE table_id = %(table_id)s AND last IS NULL AND kind <> 'file'

-- name: unread
-- The versions above one, and those of some numbers, with whether their metadata was read.
SELECT v.*, is_read.stream AS is_stream_read, is_read.batch AS is_batch_read
FROM harness.versions v CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM harness.reach r WHERE r.table_id = v.table_id AND r.path = v.stream_metadata
                   AND v.version BETWEEN r.first AND coalesce(r.last, v.version)) AS stream,
           EXISTS (SELECT FROM harness.reach r WHERE r.table_id = v.table_id AND r.path = v.batch_metadata
                   AND v.version BETWEEN r.first AND coalesce(r.last, v.version)) AS batch
) is_read
WHERE v.table_id = %(table_id)s AND (v.version > %(above)s OR v.version = ANY(%(versions)s)) ORDER BY v.version

-- name: lock
-- Before what is written is compared with what was read: one at a time adds to what is known of a table.
SELECT pg_advisory_xact_lock(1752330872, %(table_id)s)

-- name: through
-- The newest version that was read and has another metadata file than the one before it.
SELECT coalesce(max(first), -1) AS first FROM harness.reach WHERE table_id = %(table_id)s AND last IS NULL AND kind = 'metadata'

-- name: end
UPDATE harness.reach r SET last = e.last, files = NULL
FROM unnest(%(paths)s::text[], %(lasts)s::bigint[]) AS e (path, last)
WHERE r.table_id = %(table_id)s AND r.view = %(view)s AND r.path = e.path AND r.last IS NULL

-- name: begin
INSERT INTO harness.reach (table_id, view, path, kind, first, last, files)
SELECT %(table_id)s, %(view)s, s.* FROM unnest(
    %(paths)s::text[], %(kinds)s::text[], %(firsts)s::bigint[], %(lasts)s::bigint[], %(files)s::jsonb[]) AS s

-- name: add
-- To one version that is older than the newest that was read: what it reaches beside what it is known to reach.
INSERT INTO harness.reach (table_id, view, path, kind, first, last)
SELECT %(table_id)s, %(view)s, s.path, s.kind, %(version)s, %(version)s
FROM unnest(%(paths)s::text[], %(kinds)s::text[]) AS s (path, kind)
WHERE NOT EXISTS (
    SELECT FROM harness.reach r WHERE r.table_id = %(table_id)s AND r.view = %(view)s AND r.path = s.path
    AND %(version)s BETWEEN r.first AND coalesce(r.last, %(version)s))

-- name: first_of_lists
-- For each manifest list that is known the first version that has it.
SELECT path, min(first) AS version FROM harness.reach
WHERE table_id = %(table_id)s AND kind = 'list' AND path = ANY(%(paths)s) GROUP BY path

-- name: paths
-- In arrays of 5,000: to read a row for each path would take several times as long.
SELECT is_reached, array_agg(path) AS paths FROM (
    SELECT path, row_number() OVER () / 5000 AS page, last IS NULL OR last >= %(retained_from)s
           OR EXISTS (SELECT FROM unnest(%(versions)s::bigint[]) AS n (version) WHERE n.version BETWEEN first AND last)
           OR kind <> 'metadata'
              AND EXISTS (SELECT FROM unnest(%(shown)s::bigint[]) AS n (version) WHERE n.version BETWEEN first AND last) AS is_reached
    FROM harness.reach WHERE table_id = %(table_id)s AND view = %(view)s
) found GROUP BY page, is_reached

-- name: forget
-- Files that are gone, and that no version in reach has.
DELETE FROM harness.reach
WHERE table_id = %(table_id)s AND path = ANY(%(paths)s) AND last < %(retained_from)s
  AND NOT EXISTS (
    SELECT FROM unnest(%(versions)s::bigint[] || %(shown)s::bigint[]) AS n (version) WHERE n.version BETWEEN first AND last)
