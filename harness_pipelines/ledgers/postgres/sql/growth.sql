-- name: note
-- Every five minutes, so that the older size is five to ten minutes old where somebody looks all the time.
INSERT INTO harness.buffer_sizes AS b (table_id, old_bytes, old_at, new_bytes, new_at)
SELECT t.table_id, s.bytes, clock_timestamp(), s.bytes, clock_timestamp()
FROM harness.tables t
CROSS JOIN LATERAL (
    SELECT coalesce(max(u.bytes), 0) AS bytes FROM harness.buffer_use u WHERE u.table_id = t.table_id
) s
WHERE t.namespace || '.' || t.name = ANY(%(tables)s) AND NOT EXISTS (
    SELECT FROM harness.buffer_sizes n
    WHERE n.table_id = t.table_id AND n.new_at > clock_timestamp() - interval '5 minutes')
ON CONFLICT (table_id) DO UPDATE
SET old_bytes = b.new_bytes, old_at = b.new_at, new_bytes = excluded.new_bytes, new_at = excluded.new_at

-- name: now
-- Over less than a minute a pace says nothing. Segments that are retired lie in Postgres until they are dropped.
SELECT t.namespace || '.' || t.name AS name, u.bytes, u.retired,
       (t.spec -> 'buffer' ->> 'max_bytes')::bigint AS bytes_max,
       coalesce(CASE WHEN b.old_at < clock_timestamp() - interval '1 minute'
                     THEN (u.bytes - b.old_bytes) / extract(epoch FROM clock_timestamp() - b.old_at) END, 0)::float8 AS per_s,
       p.limited, p.bytes AS paused_at, p.bytes_max AS paused_max, p.since
FROM harness.tables t
JOIN harness.buffer_use u USING (table_id)
LEFT JOIN harness.buffer_sizes b USING (table_id)
LEFT JOIN harness.buffer_pauses p USING (table_id)
ORDER BY 1
