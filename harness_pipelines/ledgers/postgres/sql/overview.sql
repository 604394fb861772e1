-- name: claims
SELECT stage, shard, holder::text AS holder, epoch, lease_until, lease_until > clock_timestamp() AS alive,
       lease_until > clock_timestamp() + %(lease_max)s AS ahead, clock_timestamp() AS now
FROM harness.claims WHERE table_id = %(table_id)s ORDER BY stage, shard

-- name: open_moves
SELECT move_id, stage, shard, lo, hi, state, attempt, failures, trigger, error, planned_at
FROM harness.moves WHERE table_id = %(table_id)s AND state IN ('PLANNED', 'QUARANTINED') ORDER BY move_id

-- name: counts
SELECT (SELECT count(*) FROM harness.quarantine WHERE table_id = %(table_id)s AND state = 'held') AS quarantined,
       (SELECT coalesce(sum(records), 0)::bigint FROM harness.filtered WHERE table_id = %(table_id)s) AS filtered,
       (SELECT count(*) FROM harness.leases WHERE table_id = %(table_id)s AND until > clock_timestamp()) AS readers,
       (SELECT extract(epoch FROM clock_timestamp() - min(born))::float8 FROM harness.leases
        WHERE table_id = %(table_id)s AND until > clock_timestamp()) AS oldest_lease_s,
       (SELECT coalesce(sum(rows), 0)::bigint FROM harness.rows_brought WHERE table_id = %(table_id)s) AS lake_rows

-- name: violations
SELECT check_name AS "check", severity, sum(records)::bigint AS records, min(first_at) AS first_at, max(last_at) AS last_at,
       extract(epoch FROM clock_timestamp() - max(last_at))::float8 AS since_s
FROM harness.contract_violations WHERE table_id = %(table_id)s GROUP BY check_name, severity ORDER BY check_name, severity

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
WHERE (%(table_id)s::integer IS NULL OR i.table_id = %(table_id)s) AND i.partition >= 0
ORDER BY i.table_id, i.partition

-- name: apart
-- Offsets that are no rows: quarantined and not replayed, by the tier that they lie in; and how many were filtered.
SELECT partition, coalesce(q.batch, 0) AS batch, coalesce(q.stream, 0) AS stream, coalesce(q.buffer, 0) AS buffer,
       coalesce(f.records, 0)::bigint AS filtered
FROM (
    SELECT partition, count(*) FILTER (WHERE q."offset" < l.batch_hi) AS batch,
           count(*) FILTER (WHERE q."offset" >= l.batch_hi AND q."offset" < l.stream_hi) AS stream,
           count(*) FILTER (WHERE q."offset" >= coalesce(l.stream_hi, i.start)) AS buffer
    FROM harness.quarantine q
    JOIN harness.ingest_positions i USING (table_id, partition)
    LEFT JOIN harness.lake_positions l USING (table_id, partition)
    WHERE q.table_id = %(table_id)s AND q.state <> 'replayed' AND q."offset" >= i.start AND q."offset" < i.buffer_hi
    GROUP BY partition
) q
FULL JOIN (SELECT partition, records FROM harness.filtered WHERE table_id = %(table_id)s AND records > 0) f
USING (partition)
ORDER BY partition

-- name: partitions
-- Those of topics; below 0 are those of adopted rows.
SELECT table_id, array_agg(partition ORDER BY partition) AS partitions
FROM harness.ingest_positions WHERE partition >= 0 GROUP BY table_id

-- name: since_ingest
-- By number, which has an index: commits of ingest are many, and one follows the other.
SELECT extract(epoch FROM clock_timestamp() - committed_at)::float8 AS since_ingest_s
FROM harness.moves WHERE table_id = %(table_id)s AND stage = 'ingest' AND state = 'COMMITTED'
ORDER BY move_id DESC LIMIT 1
