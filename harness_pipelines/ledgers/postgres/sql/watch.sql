-- name: record_ends
-- A table that was dropped since somebody looked is left out.
INSERT INTO harness.log_ends (table_id, partition, log_start, log_end, seen_at)
SELECT e.table_id, e.partition, e.log_start, e.log_end, clock_timestamp()
FROM unnest(%(tables)s::bigint[], %(partitions)s::integer[], %(starts)s::bigint[], %(ends)s::bigint[])
     AS e (table_id, partition, log_start, log_end)
JOIN harness.tables t USING (table_id)
ORDER BY e.table_id, e.partition
ON CONFLICT (table_id, partition) DO UPDATE
SET log_start = excluded.log_start, log_end = excluded.log_end, seen_at = excluded.seen_at

-- name: work
-- Every table at one instant, those that are furthest behind first. (Partitions below 0 are of adopted rows.)
SELECT t.table_id, t.namespace || '.' || t.name AS name, t.stopped,
       p.unread::float8, p.buffered::bigint, p.unmerged::bigint, p.buffer_at::bigint, p.stream_at::bigint,
       coalesce(s.bytes, 0)::bigint AS buffered_bytes, coalesce(c.busy, '{}') AS busy,
       c.since_expire_s,
       coalesce(m.open, '{}') AS open, coalesce(d.last, '{}') AS last,
       extract(epoch FROM clock_timestamp() - coalesce((
           SELECT m.committed_at FROM harness.moves m
           WHERE m.table_id = t.table_id AND m.stage = 'tier' AND m.state = 'COMMITTED' ORDER BY m.move_id DESC LIMIT 1
       ), t.created_at))::float8 AS since_tier_s
FROM harness.tables t
JOIN LATERAL (
    SELECT sum(greatest(e.log_end - i.buffer_hi, 0)) AS unread, sum(i.buffer_hi - l.stream_hi) AS buffered,
           sum(l.stream_hi - l.batch_hi) AS unmerged, sum(i.buffer_hi) AS buffer_at, sum(l.stream_hi) AS stream_at
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
LEFT JOIN LATERAL (
    SELECT jsonb_object_agg(s.stage, jsonb_build_object('move', k.move_id, 'rows', k.rows, 'by_a_run', k.run_id IS NOT NULL))
           AS last
    FROM (VALUES ('ingest'), ('tier'), ('compact'), ('otree')) s (stage)
    JOIN LATERAL (
        SELECT move_id, rows, run_id FROM harness.moves
        WHERE table_id = t.table_id AND stage = s.stage AND state = 'COMMITTED' ORDER BY move_id DESC LIMIT 1
    ) k ON true
) d ON true
WHERE %(tables)s::text[] IS NULL OR t.namespace || '.' || t.name = ANY(%(tables)s)
ORDER BY coalesce(p.unread, 0) + p.buffered DESC, t.table_id

-- name: pulses
-- What tells which stages of tables have work, for all at one instant; each part is one look at an index. A table whose
-- row has the hash %(known)s has no row; its id is among the `same` ones, which the first row has. Hashes are of texts:
-- that of a jsonb stays the same when two of its values that lie 32 apart change alike.
WITH p AS MATERIALIZED (
    SELECT t.table_id, hashtextextended(t.spec::text, 0) AS spec_hash, t.stopped, t.stopped_stage, p.positions, v.version, v.stream_metadata, v.batch_metadata,
           coalesce(c.claims, '{}') AS claims, coalesce(m.open, '{}') AS open,
           EXISTS (SELECT FROM harness.recalls r WHERE r.table_id = t.table_id AND r.state = 'asked')
           OR EXISTS (SELECT FROM harness.reclusters r WHERE r.table_id = t.table_id AND r.ended_at IS NULL) AS asked,
           extract(epoch FROM coalesce((
               SELECT m.committed_at FROM harness.moves m
               WHERE m.table_id = t.table_id AND m.stage = 'tier' AND m.state = 'COMMITTED' ORDER BY m.move_id DESC LIMIT 1
           ), t.created_at))::float8 AS tier_at,
           (SELECT extract(epoch FROM coalesce(m.committed_at, m.planned_at))::float8 FROM harness.moves m
            WHERE m.table_id = t.table_id AND m.stage = 'otree' ORDER BY m.move_id DESC LIMIT 1) AS otree_at,
           CASE WHEN p.is_buffered THEN coalesce((
               SELECT sum(pg_total_relation_size(to_regclass(format('harness_buffer.%%I', g.segment))))
               FROM harness.segments g WHERE g.table_id = t.table_id AND g.state <> 'retired'
           ), 0) ELSE 0 END::bigint AS buffered_bytes,
           EXISTS (SELECT FROM harness.condemned_files f WHERE f.table_id = t.table_id)
           OR EXISTS (SELECT FROM harness.segments s WHERE s.table_id = t.table_id AND s.state = 'retired') AS removes,
           (SELECT extract(epoch FROM n.committed_at)::float8 FROM harness.versions n
            WHERE n.table_id = t.table_id AND n.version >= t.retained_from ORDER BY n.version LIMIT 1 OFFSET 1) AS superseded_at
    FROM harness.tables t
    JOIN LATERAL (
        SELECT coalesce(jsonb_agg(jsonb_build_array(
                   i.partition, i.start, coalesce(l.batch_hi, i.start), coalesce(l.stream_hi, i.start), i.buffer_hi,
                   coalesce(l.trim_floor, i.start)) ORDER BY i.partition), '[]') AS positions,
               coalesce(bool_or(i.buffer_hi > l.stream_hi), false) AS is_buffered
        FROM harness.ingest_positions i LEFT JOIN harness.lake_positions l USING (table_id, partition)
        WHERE i.table_id = t.table_id
    ) p ON true
    JOIN LATERAL (
        SELECT version, stream_metadata, batch_metadata FROM harness.versions
        WHERE table_id = t.table_id ORDER BY version DESC LIMIT 1
    ) v ON true
    LEFT JOIN LATERAL (
        SELECT jsonb_object_agg(stage, holder) AS claims FROM harness.claims
        WHERE table_id = t.table_id AND shard = 0 AND lease_until > clock_timestamp()
    ) c ON true
    LEFT JOIN LATERAL (
        SELECT array_agg(o.stage) AS open
        FROM harness.moves o WHERE o.table_id = t.table_id AND o.state IN ('PLANNED', 'QUARANTINED')
    ) m ON true
    WHERE t.table_id = ANY(%(tables)s)
), h AS MATERIALIZED (
    SELECT p.*, hashtextextended(p::text, 0) AS row_hash, k.known
    FROM p JOIN unnest(%(tables)s::integer[], %(known)s::bigint[]) k (table_id, known) USING (table_id)
)
SELECT c.*, CASE WHEN c.nr IS NULL OR c.nr = 1 THEN s.same END AS same, extract(epoch FROM clock_timestamp())::float8 AS now
FROM (SELECT array_agg(table_id) FILTER (WHERE row_hash = known) AS same FROM h) s
LEFT JOIN (SELECT h.*, row_number() OVER () AS nr FROM h WHERE row_hash IS DISTINCT FROM known) c ON true

-- name: give_up_after
SELECT set_config('statement_timeout', %(limit)s, true), set_config('lock_timeout', %(limit)s, true)

-- name: states
-- Every table at one instant. Writers of ingest account in their own rows, so its last commit is not always that of
-- the newest row. More records than the limit are not counted: whoever is not warned by then never is.
SELECT t.name, t.stopped, v.version, p.tail::bigint, p.log_seen_s, coalesce(p.buffer, 0)::bigint AS buffer,
       CASE WHEN v.has_batch THEN p.stream::bigint END AS stream,
       extract(epoch FROM clock_timestamp() - coalesce((
           SELECT max(n.committed_at) FROM (
               SELECT m.committed_at FROM harness.moves m
               WHERE m.table_id = t.table_id AND m.stage = t.reads_log AND m.state = 'COMMITTED'
               ORDER BY m.move_id DESC LIMIT 16
           ) n
       ), t.created_at))::float8 AS buffer_commit_s,
       extract(epoch FROM clock_timestamp() - coalesce((
           SELECT m.committed_at FROM harness.moves m
           WHERE m.table_id = t.table_id AND m.stage = 'tier' AND m.state = 'COMMITTED' ORDER BY m.move_id DESC LIMIT 1
       ), t.created_at))::float8 AS tier_s,
       coalesce(s.bytes, 0)::bigint AS buffer_bytes,
       (SELECT count(*) FROM (
           SELECT FROM harness.quarantine q WHERE q.table_id = t.table_id AND q.state = 'held'
           ORDER BY q.partition, q."offset" LIMIT 100000 -- in this order: else the planner may read it whole for each table
       ) held) AS quarantined,
       (SELECT coalesce(sum(f.records), 0)::bigint FROM harness.filtered f WHERE f.table_id = t.table_id) AS filtered,
       (SELECT coalesce(max(q.refused::float8 / least(i.buffer_hi - i.start, %(of_last)s)), 0)
        FROM harness.ingest_positions i
        JOIN LATERAL (
            SELECT count(*) AS refused FROM harness.quarantine q
            WHERE q.table_id = i.table_id AND q.partition = i.partition AND q.state = 'held'
              AND q."offset" >= greatest(i.start, i.buffer_hi - %(of_last)s) AND q."offset" < i.buffer_hi
        ) q ON q.refused > 0
        WHERE i.table_id = t.table_id AND i.partition >= 0) AS refused_share,
       r.readers, r.oldest_lease_s, coalesce(c.claims, '{}') AS claims, coalesce(o.moves, '{}') AS moves,
       coalesce(x.violations, '[]') AS violations, coalesce(h.held, 0)::bigint AS held, h.held_s
FROM (
    SELECT table_id, namespace || '.' || name AS name, stopped IS NOT NULL AS stopped, created_at,
           CASE WHEN spec->>'buffer' = 'none' THEN 'tier' ELSE 'ingest' END AS reads_log,
           %(seen)s::jsonb -> (namespace || '.' || name) AS seen
    FROM harness.tables
) t
JOIN LATERAL (
    SELECT version, batch_metadata IS NOT NULL AS has_batch FROM harness.versions
    WHERE table_id = t.table_id ORDER BY version DESC LIMIT 1
) v ON true
JOIN LATERAL (
    SELECT CASE WHEN count(*) = count(n.log_end) THEN sum(greatest(n.log_end - i.buffer_hi, 0)) END AS tail,
           CASE WHEN count(*) = count(n.log_end) THEN max(n.age_s) END AS log_seen_s,
           sum(i.buffer_hi - l.stream_hi) AS buffer, sum(l.stream_hi - l.batch_hi) AS stream
    FROM harness.ingest_positions i
    JOIN harness.lake_positions l USING (table_id, partition)
    LEFT JOIN LATERAL (
        SELECT u.log_end, u.age_s FROM (
            SELECT e.log_end, extract(epoch FROM clock_timestamp() - e.seen_at)::float8 AS age_s
            FROM harness.log_ends e WHERE e.table_id = i.table_id AND e.partition = i.partition
            UNION ALL
            SELECT (t.seen->'ends'->>i.partition::text)::bigint, (t.seen->>'age_s')::float8
        ) u WHERE u.log_end IS NOT NULL ORDER BY u.age_s LIMIT 1
    ) n ON true
    WHERE i.table_id = t.table_id AND i.partition >= 0
) p ON true
LEFT JOIN LATERAL (
    SELECT sum(pg_total_relation_size(to_regclass(format('harness_buffer.%%I', g.segment)))) AS bytes
    FROM harness.segments g WHERE g.table_id = t.table_id AND g.state <> 'retired'
) s ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS readers, extract(epoch FROM clock_timestamp() - min(born))::float8 AS oldest_lease_s
    FROM harness.leases WHERE table_id = t.table_id AND until > clock_timestamp()
) r ON true
LEFT JOIN LATERAL (
    SELECT jsonb_object_agg(k.stage, jsonb_build_object('lease_s', k.lease_s, 'own', k.own)) AS claims
    FROM (
        SELECT stage, greatest(extract(epoch FROM max(lease_until) - clock_timestamp()), 0)::float8 AS lease_s,
               coalesce(bool_or(holder::text = %(holder)s::text AND lease_until > clock_timestamp()), false) AS own
        FROM harness.claims WHERE table_id = t.table_id GROUP BY stage
    ) k
) c ON true
LEFT JOIN LATERAL (
    SELECT jsonb_object_agg(k.stage, jsonb_build_object(
               'attempt', k.attempt, 'failures', k.failures, 'stuck', k.stuck, 'age_s', k.age_s)) AS moves
    FROM (
        SELECT stage, max(attempt) AS attempt, max(failures) AS failures, bool_or(state = 'QUARANTINED') AS stuck,
               extract(epoch FROM clock_timestamp() - min(planned_at))::float8 AS age_s
        FROM harness.moves WHERE table_id = t.table_id AND state IN ('PLANNED', 'QUARANTINED') GROUP BY stage
    ) k
) o ON true
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_object('check', k.check_name, 'severity', k.severity, 'records', k.records)
                     ORDER BY k.check_name, k.severity) AS violations
    FROM (
        SELECT check_name, severity, sum(records) AS records
        FROM harness.contract_violations WHERE table_id = t.table_id GROUP BY check_name, severity
    ) k
) x ON true
LEFT JOIN LATERAL (
    SELECT sum(greatest(e.newest - e.log_end, 0)) AS held,
           extract(epoch FROM clock_timestamp() - min(e.held_since))::float8 AS held_s
    FROM harness.log_ends e WHERE e.table_id = t.table_id AND e.newest IS NOT NULL
) h ON true
WHERE t.name = ANY(%(tables)s)
ORDER BY t.name
