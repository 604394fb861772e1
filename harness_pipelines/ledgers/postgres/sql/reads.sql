-- name: now
SELECT clock_timestamp() AS now

-- name: listen
LISTEN harness

-- name: share_trim_lock
SELECT pg_advisory_xact_lock_shared(1752330865, %(table_id)s)

-- name: take_trim_lock
SELECT pg_advisory_xact_lock(1752330865, %(table_id)s)

-- name: positions
SELECT i.table_id, i.partition, i.start, coalesce(l.stream_hi, i.start) AS stream_hi,
       coalesce(l.batch_hi, i.start) AS batch_hi, i.buffer_hi, coalesce(l.trim_floor, i.start) AS trim_floor
FROM harness.ingest_positions i
LEFT JOIN harness.lake_positions l USING (table_id, partition)
WHERE i.table_id = ANY(%(tables)s) ORDER BY i.table_id, i.partition

-- name: pointer
SELECT metadata_location FROM public.iceberg_tables
WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = %(view)s

-- name: version_of_move
SELECT * FROM harness.versions WHERE table_id = %(table_id)s AND move_id = %(move_id)s

-- name: look
WITH wanted AS (
    SELECT v.* FROM harness.versions v
    WHERE v.table_id = %(table_id)s AND (%(version)s::bigint IS NULL OR v.version = %(version)s)
    ORDER BY v.version DESC LIMIT 1
), positions AS (
    SELECT jsonb_object_agg(partition, jsonb_build_array(start, buffer_hi)) AS positions
    FROM harness.ingest_positions WHERE table_id = %(table_id)s
), segments AS (
    SELECT coalesce(jsonb_agg(to_jsonb(s) ORDER BY s.seq), '[]') AS segments
    FROM harness.segments s WHERE s.table_id = %(table_id)s AND s.state <> 'retired'
), lease AS MATERIALIZED (
    SELECT %(lease_id)s::uuid AS lease_id, harness.lease_take(
        %(lease_id)s::uuid, %(table_id)s::integer, w.version, coalesce(%(named)s::jsonb, p.positions), %(holder)s::text,
        %(lease)s::interval
    ) AS until
    FROM wanted w, positions p
)
SELECT w.*, p.positions, s.segments, l.lease_id, l.until, t.retained_from, clock_timestamp() AS now
FROM wanted w, positions p, segments s, harness.tables t LEFT JOIN lease l ON true WHERE t.table_id = %(table_id)s

-- name: glance
-- Without a lease, and in one snapshot with rows of the buffer that the caller writes in (so $n, and braces). One row is
-- the state, the others are the newest per key and partition in [stream_hi, buffer_hi).
WITH head AS (
    SELECT * FROM harness.versions WHERE table_id = $1 ORDER BY version DESC LIMIT 1
), positions AS (
    SELECT i.partition, i.start, i.buffer_hi,
           coalesce((h.bounds -> i.partition::text ->> 'stream_hi')::bigint, i.start) AS stream_hi
    FROM harness.ingest_positions i, head h WHERE i.table_id = $1
), state AS (
    SELECT h.*, NULL::uuid AS lease_id, NULL::timestamptz AS until, clock_timestamp() AS now,
           (SELECT jsonb_object_agg(partition, jsonb_build_array(start, buffer_hi)) FROM positions) AS positions,
           (SELECT coalesce(jsonb_agg(to_jsonb(s) ORDER BY s.seq), '[]')
            FROM harness.segments s WHERE s.table_id = $1 AND s.state <> 'retired') AS segments
    FROM head h
), hot AS ({rows})
SELECT * FROM state FULL JOIN hot ON false

-- name: newest
SELECT DISTINCT ON ({key}, r._kafka_partition) r.*
FROM ({segments}) r
JOIN positions p ON p.partition = r._kafka_partition AND r._kafka_offset >= p.stream_hi AND r._kafka_offset < p.buffer_hi
ORDER BY {key}, r._kafka_partition, r._kafka_offset DESC

-- name: no_rows
SELECT NULL::integer AS none WHERE false

-- name: events
SELECT seq, event, payload FROM harness.outbox
WHERE table_id = %(table_id)s AND seq > %(after)s ORDER BY seq LIMIT %(limit)s

-- name: renew_lease
SELECT until FROM harness.lease_renew(%(lease_id)s::uuid, %(lease)s::interval) AS until WHERE until IS NOT NULL

-- name: end_lease
-- NULL: there is no such lease.
SELECT harness.lease_end(%(lease_id)s::uuid) AS alive

-- name: async_commit
SET LOCAL synchronous_commit = off
