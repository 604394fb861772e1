-- name: note
-- Every five minutes, so that the older size is five to ten minutes old where somebody looks all the time.
INSERT INTO harness.buffer_sizes AS b (table_id, old_bytes, old_at, new_bytes, new_at)
SELECT t.table_id, s.bytes, clock_timestamp(), s.bytes, clock_timestamp()
FROM harness.tables t
CROSS JOIN LATERAL (
    SELECT coalesce(sum(pg_total_relation_size(to_regclass(format('harness_buffer.%%I', g.segment)))), 0)::bigint AS bytes
    FROM harness.segments g WHERE g.table_id = t.table_id
) s
WHERE t.namespace || '.' || t.name = ANY(%(tables)s) AND NOT EXISTS (
    SELECT FROM harness.buffer_sizes n
    WHERE n.table_id = t.table_id AND n.new_at > clock_timestamp() - interval '5 minutes')
ON CONFLICT (table_id) DO UPDATE
SET old_bytes = b.new_bytes, old_at = b.new_at, new_bytes = excluded.new_bytes, new_at = excluded.new_at

-- name: now
-- Over less than a minute a pace says nothing. Segments that are retired lie in Postgres until they are dropped.
SELECT t.namespace || '.' || t.name AS name, s.bytes,
       coalesce(CASE WHEN b.old_at < clock_timestamp() - interval '1 minute'
                     THEN (s.bytes - b.old_bytes) / extract(epoch FROM clock_timestamp() - b.old_at) END, 0)::float8 AS per_s
FROM harness.tables t
JOIN LATERAL (
    SELECT sum(pg_total_relation_size(to_regclass(format('harness_buffer.%%I', g.segment))))::bigint AS bytes
    FROM harness.segments g WHERE g.table_id = t.table_id
) s ON s.bytes IS NOT NULL
LEFT JOIN harness.buffer_sizes b USING (table_id)
ORDER BY 1
