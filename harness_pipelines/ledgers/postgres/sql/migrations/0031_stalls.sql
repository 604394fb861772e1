-- What operators are shown: stages that get no further, what errors hold them, and records behind open transactions.
-- Nothing that is committed depends on it.

-- `newest`: where the log ends for those who read uncommitted records too; `held_since`: the time of the first record of
-- the oldest open transaction, where there is one.
ALTER TABLE harness.log_ends ADD COLUMN newest bigint, ADD COLUMN held_since timestamptz;

-- What each stage had to do when somebody looked last, and since when it got no further with it.
CREATE TABLE harness.stalls (
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    stage    text NOT NULL,
    what     text NOT NULL,
    marker   text NOT NULL,                    -- how far the stage was
    since    timestamptz NOT NULL,
    PRIMARY KEY (table_id, stage, what)
) WITH (fillfactor = 50);

-- The errors that hold stages, as the workers that meet them say every few seconds.
CREATE TABLE harness.troubles (
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    stage    text NOT NULL,
    holder   uuid NOT NULL,                    -- the worker
    error    text NOT NULL,
    since    timestamptz NOT NULL,
    seen_at  timestamptz NOT NULL,
    PRIMARY KEY (table_id, stage, holder)
) WITH (fillfactor = 50);

-- Who subscribes to the events of a table, and how far it is.
CREATE VIEW harness.subscribers AS
SELECT t.table_id, s.name, c.checkpoint::bigint AS dealt_with, t.outbox_seq - c.checkpoint::bigint AS lag, c.committed_at,
       s.lease_until
FROM harness.states s
JOIN LATERAL (
    SELECT checkpoint, payload, committed_at FROM harness.state_commits k WHERE k.name = s.name ORDER BY k.seq DESC LIMIT 1
) c ON jsonb_typeof(c.payload) = 'object' AND c.checkpoint ~ '^[0-9]{1,18}$'
JOIN harness.tables t ON t.namespace || '.' || t.name = c.payload ->> 'events_of';

-- What each stage has to do now: `marker` changes with its progress, `allowed_s` is how long the spec's rules let it wait,
-- or an attempt without an error take.
CREATE VIEW harness.stage_work AS
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
    SELECT t.table_id, t.spec ->> 'buffer' = 'none' AS reads_directly,
           CASE WHEN t.spec ->> 'mode' = 'runs'
                THEN greatest((t.spec -> 'tier' ->> 'max_age')::float8, (t.spec -> 'freshness' ->> 'lake')::float8 / 2)
                ELSE (t.spec -> 'tier' ->> 'max_age')::float8 END AS tier_s,
           (t.spec -> 'freshness' ->> 'lake')::float8 AS lake_s
    FROM harness.tables t
)
SELECT r.table_id, CASE WHEN r.reads_directly THEN 'tier' ELSE 'ingest' END AS stage, 'records in the log' AS what,
       p.buffer_at::text AS marker, CASE WHEN r.reads_directly THEN r.tier_s ELSE 0 END AS allowed_s
FROM rules r JOIN p USING (table_id) WHERE p.unread > 0
UNION ALL
SELECT r.table_id, 'tier', 'records in the buffer', p.stream_at::text, r.tier_s
FROM rules r JOIN p USING (table_id) WHERE p.buffered > 0 AND NOT r.reads_directly
UNION ALL
SELECT r.table_id, 'otree', 'records to merge', p.batch_at::text, r.lake_s
FROM rules r JOIN p USING (table_id)
WHERE p.unmerged > 0 AND (
    SELECT v.batch_metadata IS NOT NULL FROM harness.versions v WHERE v.table_id = r.table_id ORDER BY v.version DESC LIMIT 1)
UNION ALL
SELECT m.table_id, m.stage, 'an open move', coalesce((
           SELECT c.move_id FROM harness.moves c
           WHERE c.table_id = m.table_id AND c.stage = m.stage AND c.state = 'COMMITTED' ORDER BY c.move_id DESC LIMIT 1
       )::text, ''),
       CASE WHEN bool_or(m.error IS NOT NULL OR m.state = 'QUARANTINED') THEN 0 WHEN m.stage = 'tier' THEN 120 ELSE 600 END
FROM harness.moves m WHERE m.state IN ('PLANNED', 'QUARANTINED') GROUP BY m.table_id, m.stage
UNION ALL
SELECT table_id, 'otree', 'a request to ' || act, min(recall)::text, 0
FROM harness.recalls WHERE state = 'asked' GROUP BY table_id, act
UNION ALL
SELECT table_id, 'otree', 'a request to recluster', min(request)::text, 0
FROM harness.reclusters WHERE ended_at IS NULL GROUP BY table_id
UNION ALL
SELECT table_id, 'events', 'events for ' || name, dealt_with::text, 0 FROM harness.subscribers WHERE lag > 0;

GRANT SELECT ON harness.stalls, harness.troubles, harness.subscribers, harness.stage_work TO harness_reader;
GRANT INSERT, UPDATE, DELETE ON harness.stalls, harness.troubles TO harness_worker;
