-- name: newest
-- The last cut, with whether it is alive, and whether the folder of the newest version's cuts is noted.
SELECT t.table_id AS of_table, c.*, f.is_noted, clock_timestamp() AS now,
       coalesce(c.until > clock_timestamp() AND c.retired_at IS NULL AND c.history = harness.history(), false) AS is_alive,
       greatest(c.sequence + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS following
FROM harness.tables t
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM harness.cut_folders d
                   WHERE d.table_id = t.table_id AND d.folder = harness.cut_folder(t.name, v.stream_metadata)) AS is_noted
    FROM harness.versions v WHERE v.table_id = t.table_id ORDER BY v.version DESC LIMIT 1
) f
LEFT JOIN LATERAL (SELECT * FROM harness.cuts WHERE table_id = t.table_id ORDER BY sequence DESC LIMIT 1) c ON true
WHERE t.table_id = %(table_id)s

-- name: prepare
SELECT harness.cut_prepare(%(table_id)s)

-- name: publish
SELECT looked_at, served_at, until FROM harness.cut_publish(
    %(table_id)s::integer, %(sequence)s::bigint, %(snapshot_id)s::bigint, %(timestamp_ms)s::bigint, %(version)s::bigint,
    %(schema_version)s::integer, %(bounds)s::jsonb, %(metadata)s::text, %(chunks)s::jsonb, %(parts)s::jsonb,
    %(files)s::text[], %(previous)s::bigint, %(lease_id)s::uuid, %(keep)s::interval)

-- name: serve
SELECT harness.cut_serve(%(table_id)s::integer, %(sequence)s::bigint, %(keep)s::interval) AS alive

-- name: retire
SELECT harness.cut_retire(%(table_id)s::integer, %(sequence)s::bigint) AS done

-- name: reached_versions
-- What has a row counts as alive: `upkeep/delete_ended` waits for a server that serves it just now.
SELECT v.* FROM harness.versions v
WHERE v.table_id = %(table_id)s AND v.version IN (
    SELECT c.version FROM harness.cuts c WHERE c.table_id = %(table_id)s AND c.files <> '{}')

-- name: reached_files
SELECT DISTINCT path FROM harness.cuts, unnest(files) AS path WHERE table_id = %(table_id)s

-- name: pinned
SELECT c.*, c.sequence IS NOT NULL AS is_alive, found.slot
FROM harness.cut_pin(%(table_id)s::integer, %(seconds)s::integer, %(mine)s::bigint, %(slot)s::bigint) AS found
LEFT JOIN harness.cuts c ON c.table_id = %(table_id)s AND c.sequence = found.pinned

-- name: merged
SELECT b.key::integer AS partition, max((b.value ->> 'batch_hi')::bigint) AS batch_hi
FROM harness.versions v CROSS JOIN LATERAL jsonb_each(v.bounds) b
WHERE v.table_id = %(table_id)s AND v.version > %(above)s AND v.version < %(below)s GROUP BY b.key

-- name: known
-- A cut by its id, if it is alive: what an engine reports of may be of another server.
SELECT c.*, true AS is_alive FROM harness.cuts c
WHERE c.table_id = %(table_id)s AND c.snapshot_id = %(snapshot_id)s AND c.until > clock_timestamp()
  AND c.history = harness.history() ORDER BY c.sequence DESC LIMIT 1
