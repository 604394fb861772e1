-- name: record_ends
INSERT INTO harness.log_ends (table_id, partition, log_start, log_end, seen_at)
SELECT %(table_id)s, e.partition, e.log_start, e.log_end, clock_timestamp()
FROM unnest(%(partitions)s::integer[], %(starts)s::bigint[], %(ends)s::bigint[]) AS e (partition, log_start, log_end)
ORDER BY e.partition
ON CONFLICT (table_id, partition) DO UPDATE
SET log_start = excluded.log_start, log_end = excluded.log_end, seen_at = excluded.seen_at

-- name: work
-- Every table at one instant, those that are furthest behind first. (Partitions below 0 are of adopted rows.)
SELECT t.table_id, t.namespace || '.' || t.name AS name, t.stopped,
       p.unread::float8, p.buffered::bigint, p.unmerged::bigint, p.buffer_at::bigint, p.stream_at::bigint,
       p.unseen_s::float8, coalesce(s.bytes, 0)::bigint AS buffered_bytes, coalesce(c.busy, '{}') AS busy,
       c.since_expire_s,
       coalesce(m.open, '{}') AS open,
       extract(epoch FROM clock_timestamp() - coalesce((
           SELECT m.committed_at FROM harness.moves m
           WHERE m.table_id = t.table_id AND m.stage = 'tier' AND m.state = 'COMMITTED' ORDER BY m.move_id DESC LIMIT 1
       ), t.created_at))::float8 AS since_tier_s
FROM harness.tables t
JOIN LATERAL (
    SELECT sum(greatest(e.log_end - i.buffer_hi, 0)) AS unread, sum(i.buffer_hi - l.stream_hi) AS buffered,
           sum(l.stream_hi - l.batch_hi) AS unmerged, sum(i.buffer_hi) AS buffer_at, sum(l.stream_hi) AS stream_at,
           extract(epoch FROM clock_timestamp() - min(e.seen_at)) AS unseen_s
    FROM harness.ingest_positions i
    JOIN harness.lake_positions l USING (table_id, partition)
    LEFT JOIN harness.log_ends e USING (table_id, partition)
    WHERE i.table_id = t.table_id AND i.partition >= 0
) p ON true
LEFT JOIN LATERAL (
    SELECT sum(pg_total_relation_size(to_regclass(format('harness_buffer.%%I', g.segment)))) AS bytes
    FROM harness.segments g WHERE g.table_id = t.table_id AND g.state <> 'retired'
) s ON true
LEFT JOIN LATERAL (
    SELECT array_agg(stage) FILTER (WHERE lease_until > clock_timestamp()) AS busy,
           extract(epoch FROM clock_timestamp() - max(lease_until) FILTER (WHERE stage = 'expire'))::float8 AS since_expire_s
    FROM harness.claims WHERE table_id = t.table_id
) c ON true
LEFT JOIN LATERAL (
    SELECT jsonb_object_agg(o.stage, jsonb_build_object('attempt', o.attempt, 'state', o.state)) AS open
    FROM harness.moves o WHERE o.table_id = t.table_id AND o.state IN ('PLANNED', 'QUARANTINED')
) m ON true
WHERE %(tables)s::text[] IS NULL OR t.namespace || '.' || t.name = ANY(%(tables)s)
ORDER BY coalesce(p.unread, 0) + p.buffered DESC, t.table_id
