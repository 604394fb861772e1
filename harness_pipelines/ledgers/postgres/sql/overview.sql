-- name: heads
-- The newest version of each of %(tables)s; those that have none are left out.
SELECT v.* FROM unnest(%(tables)s::integer[]) t (table_id)
JOIN LATERAL (
    SELECT * FROM harness.versions n WHERE n.table_id = t.table_id ORDER BY n.version DESC LIMIT 1
) v ON true

-- name: claims
SELECT table_id, stage, shard, holder::text AS holder, epoch, lease_until, lease_until > clock_timestamp() AS alive,
       lease_until > clock_timestamp() + %(lease_max)s AS ahead, clock_timestamp() AS now
FROM harness.claims WHERE table_id = ANY(%(tables)s) ORDER BY table_id, stage, shard

-- name: open_moves
SELECT table_id, move_id, stage, shard, lo, hi, state, attempt, failures, trigger, error, planned_at
FROM harness.moves WHERE table_id = ANY(%(tables)s) AND state IN ('PLANNED', 'QUARANTINED') ORDER BY move_id

-- name: counts
-- Grouped, not asked for each table: of one that has most rows the planner would conclude that a whole scan is best for each.
SELECT t.table_id, coalesce(q.quarantined, 0) AS quarantined, coalesce(f.filtered, 0) AS filtered,
       coalesce(l.readers, 0) AS readers, l.oldest_lease_s, coalesce(b.lake_rows, 0) AS lake_rows
FROM unnest(%(tables)s::integer[]) t (table_id)
LEFT JOIN (
    SELECT table_id, count(*) AS quarantined FROM harness.quarantine
    WHERE table_id = ANY(%(tables)s) AND state = 'held' GROUP BY table_id
) q USING (table_id)
LEFT JOIN (
    SELECT table_id, sum(records)::bigint AS filtered FROM harness.filtered
    WHERE table_id = ANY(%(tables)s) GROUP BY table_id
) f USING (table_id)
LEFT JOIN (
    SELECT table_id, count(*) AS readers, extract(epoch FROM clock_timestamp() - min(born))::float8 AS oldest_lease_s
    FROM harness.leases WHERE table_id = ANY(%(tables)s) AND until > clock_timestamp() GROUP BY table_id
) l USING (table_id)
LEFT JOIN (
    SELECT table_id, sum(rows)::bigint AS lake_rows FROM harness.rows_brought
    WHERE table_id = ANY(%(tables)s) GROUP BY table_id
) b USING (table_id)

-- name: violations
SELECT table_id, check_name AS "check", severity, sum(records)::bigint AS records, min(first_at) AS first_at,
       max(last_at) AS last_at, extract(epoch FROM clock_timestamp() - max(last_at))::float8 AS since_s
FROM harness.contract_violations WHERE table_id = ANY(%(tables)s)
GROUP BY table_id, check_name, severity ORDER BY table_id, check_name, severity

-- name: quarantined
SELECT table_id, count(*) AS records FROM harness.quarantine WHERE state = 'held' GROUP BY table_id

-- name: refusing
-- Of each partition of the last offsets those that are set aside and held; a partition without any is left out.
SELECT i.table_id, i.partition, least(i.buffer_hi - i.start, %(of_last)s)::bigint AS offsets, q.refused
FROM harness.ingest_positions i
JOIN LATERAL (
    SELECT count(*) AS refused FROM harness.quarantine q
    WHERE q.table_id = i.table_id AND q.partition = i.partition AND q.state = 'held'
      AND q."offset" >= greatest(i.start, i.buffer_hi - %(of_last)s) AND q."offset" < i.buffer_hi
) q ON q.refused > 0
WHERE (%(tables)s::integer[] IS NULL OR i.table_id = ANY(%(tables)s)) AND i.partition >= 0
ORDER BY i.table_id, i.partition

-- name: apart
-- Offsets that are no rows: quarantined and not replayed, by the tier that they lie in; and how many were filtered.
SELECT table_id, partition, coalesce(q.batch, 0) AS batch, coalesce(q.stream, 0) AS stream,
       coalesce(q.buffer, 0) AS buffer, coalesce(f.records, 0)::bigint AS filtered
FROM (
    SELECT table_id, partition, count(*) FILTER (WHERE q."offset" < l.batch_hi) AS batch,
           count(*) FILTER (WHERE q."offset" >= l.batch_hi AND q."offset" < l.stream_hi) AS stream,
           count(*) FILTER (WHERE q."offset" >= coalesce(l.stream_hi, i.start)) AS buffer
    FROM harness.quarantine q
    JOIN harness.ingest_positions i USING (table_id, partition)
    LEFT JOIN harness.lake_positions l USING (table_id, partition)
    WHERE q.table_id = ANY(%(tables)s) AND q.state <> 'replayed' AND q."offset" >= i.start AND q."offset" < i.buffer_hi
    GROUP BY table_id, partition
) q
FULL JOIN (
    SELECT table_id, partition, records FROM harness.filtered WHERE table_id = ANY(%(tables)s) AND records > 0
) f USING (table_id, partition)
ORDER BY table_id, partition

-- name: partitions
-- Those of topics; below 0 are those of adopted rows.
SELECT table_id, array_agg(partition ORDER BY partition) AS partitions
FROM harness.ingest_positions WHERE partition >= 0 GROUP BY table_id

-- name: since_ingest
-- By number, which has an index: commits of ingest are many, and one follows the other. None yet: the table is left out.
SELECT t.table_id, extract(epoch FROM clock_timestamp() - m.committed_at)::float8 AS since_ingest_s
FROM unnest(%(tables)s::integer[]) t (table_id)
JOIN LATERAL (
    SELECT n.committed_at FROM harness.moves n
    WHERE n.table_id = t.table_id AND n.stage = 'ingest' AND n.state = 'COMMITTED' ORDER BY n.move_id DESC LIMIT 1
) m ON true
