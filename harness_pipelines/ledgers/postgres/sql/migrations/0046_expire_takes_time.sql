-- What expire removes shows at the end of its run, which takes minutes for thousands of files or on a busy machine. Until
-- then nothing was wrong, and an alarm said that it got no further.

CREATE OR REPLACE VIEW harness.stage_work AS
WITH p AS (
    SELECT i.table_id, sum(greatest(e.log_end - i.buffer_hi, 0)) AS unread, sum(i.buffer_hi) AS buffer_at,
           sum(i.buffer_hi - l.stream_hi) AS buffered, sum(l.stream_hi) AS stream_at,
           sum(l.stream_hi - l.batch_hi) AS unmerged, sum(l.batch_hi) AS batch_at
    FROM harness.ingest_positions i
    JOIN harness.lake_positions l USING (table_id, partition)
    LEFT JOIN harness.log_ends e USING (table_id, partition)
    WHERE i.partition >= 0
    GROUP BY i.table_id
), rules AS (
    SELECT t.table_id, t.retained_from, coalesce(t.spec ->> 'buffer' = 'none', false) AS reads_directly,
           CASE WHEN t.spec ->> 'mode' = 'runs'
                THEN greatest(harness.spec_seconds(t.spec, '{tier,max_age}', 0), harness.spec_seconds(t.spec, '{freshness,lake}', 0) / 2)
                ELSE harness.spec_seconds(t.spec, '{tier,max_age}', 0) END AS tier_s,
           harness.spec_seconds(t.spec, '{freshness,lake}', 0) AS lake_s,
           -- A worker looks every minute, a run of Dagster every half hour, and removing takes its time as a move does.
           CASE WHEN t.spec ->> 'mode' = 'runs' THEN 1860 ELSE 60 END::float8 + 600 AS expire_s,
           make_interval(secs => harness.spec_seconds(t.spec, '{retention,versions}', 1e9)) AS versions,
           make_interval(secs => greatest(harness.spec_seconds(t.spec, '{retention,grace}', 1e9), 30)) AS grace
    FROM harness.tables t
), open_moves AS (
    -- And acts that people ask for, which have none: files that were there before them are not removed meanwhile.
    SELECT table_id, min(planned_at) AS planned_at FROM harness.moves
    WHERE state = 'PLANNED' OR state = 'ABANDONED' AND epoch = 0 AND planned_at > clock_timestamp() - interval '1 hour'
    GROUP BY table_id
)
SELECT r.table_id, CASE WHEN r.reads_directly THEN 'tier' ELSE 'ingest' END AS stage, 'records in the log' AS what,
       p.buffer_at::text AS marker, CASE WHEN r.reads_directly THEN r.tier_s ELSE 0 END AS allowed_s, false AS failed
FROM rules r JOIN p USING (table_id) WHERE p.unread > 0
UNION ALL
SELECT r.table_id, 'tier', 'records in the buffer', p.stream_at::text, r.tier_s, false
FROM rules r JOIN p USING (table_id) WHERE p.buffered > 0 AND NOT r.reads_directly
UNION ALL
SELECT r.table_id, 'otree', 'records to merge', p.batch_at::text, r.lake_s, false
FROM rules r JOIN p USING (table_id)
WHERE p.unmerged > 0 AND (
    SELECT v.batch_metadata IS NOT NULL FROM harness.versions v WHERE v.table_id = r.table_id ORDER BY v.version DESC LIMIT 1)
UNION ALL
SELECT m.table_id, m.stage, 'an open move', coalesce((
           SELECT c.move_id FROM harness.moves c
           WHERE c.table_id = m.table_id AND c.stage = m.stage AND c.state = 'COMMITTED' ORDER BY c.move_id DESC LIMIT 1
       )::text, ''),
       CASE WHEN m.failed THEN 0 WHEN m.stage = 'tier' THEN 120 ELSE 600 END, m.failed
FROM (
    SELECT table_id, stage, bool_or(error IS NOT NULL OR state = 'QUARANTINED') AS failed
    FROM harness.moves WHERE state IN ('PLANNED', 'QUARANTINED') GROUP BY table_id, stage
) m
UNION ALL
SELECT table_id, 'otree', 'a request to ' || act, min(recall)::text, 0, false
FROM harness.recalls WHERE state = 'asked' GROUP BY table_id, act
UNION ALL
SELECT table_id, 'otree', 'a request to recluster', min(request)::text, 0, false
FROM harness.reclusters WHERE ended_at IS NULL GROUP BY table_id
UNION ALL
SELECT table_id, 'events', 'events for ' || name, dealt_with::text, 0, false FROM harness.subscribers WHERE lag > 0
UNION ALL
-- While a move of compact is open that is what waits.
SELECT w.table_id, w.stage, 'small files', coalesce((
           SELECT c.move_id FROM harness.moves c
           WHERE c.table_id = w.table_id AND c.stage = w.stage AND c.state = 'COMMITTED' ORDER BY c.move_id DESC LIMIT 1
       )::text, ''), r.tier_s, false
FROM harness.lake_work w JOIN rules r USING (table_id)
WHERE NOT EXISTS (
    SELECT FROM harness.moves m WHERE m.table_id = w.table_id AND m.stage = w.stage AND m.state IN ('PLANNED', 'QUARANTINED'))
UNION ALL
SELECT r.table_id, 'expire', 'files to remove', min(f.since)::text, r.expire_s, false
FROM rules r JOIN harness.condemned_files f USING (table_id) LEFT JOIN open_moves o USING (table_id)
WHERE f.since <= least(clock_timestamp() - r.grace, o.planned_at) GROUP BY r.table_id, r.expire_s
UNION ALL
SELECT r.table_id, 'expire', 'segments to drop', min(s.seq)::text, r.expire_s, false
FROM rules r JOIN harness.segments s USING (table_id)
WHERE s.state = 'retired' AND s.retired_at <= clock_timestamp() - r.grace GROUP BY r.table_id, r.expire_s
UNION ALL
-- Those that are superseded for longer than they are kept.
SELECT r.table_id, 'expire', 'versions to let go of', r.retained_from::text, r.expire_s, false
FROM rules r WHERE (
    SELECT v.committed_at FROM harness.versions v
    WHERE v.table_id = r.table_id AND v.version >= r.retained_from ORDER BY v.version LIMIT 1 OFFSET 1
) <= clock_timestamp() - r.versions;
