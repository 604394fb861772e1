-- Statements of the ingest commit use $n: they run on the ADBC connection that also does the COPY.

-- name: wait_briefly
-- A table that is held up does not hold up those that are committed with it.
SET LOCAL lock_timeout = '200ms'

-- name: share_segments
-- In one order, which all writers keep.
SELECT s.segment, s.state FROM harness.segments s
WHERE s.segment = ANY (ARRAY(SELECT json_array_elements_text($1::text::json))) ORDER BY s.segment FOR KEY SHARE

-- name: advance
-- The units in their order; each call of the function sees what the ones before it did.
SELECT r.unit, a.*
FROM ROWS FROM (jsonb_to_recordset($1::text::jsonb) AS (
    unit integer, table_id integer, shard integer, ranges jsonb, schema_version integer, move_id bigint, epoch bigint,
    run_id text, rows bigint
)) AS r
CROSS JOIN LATERAL harness.advance_ingest(
    r.table_id, r.shard, r.ranges, r.schema_version, r.move_id, r.epoch, r.run_id, r.rows
) a

-- name: position
SELECT buffer_hi, schema_version FROM harness.ingest_positions WHERE table_id = $1 AND partition = $2

-- name: refuse
INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, key, value, headers, kafka_ms, whole, key_bytes,
                                value_bytes, key_sha256, value_sha256)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9, $10, $11, $12, $13, $14)

-- name: refuse_many
-- All of them are whole.
INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, key, value, headers, kafka_ms)
SELECT $1::integer, r.partition, r."offset", r.reason, r.detail, decode(r.key, 'hex'), decode(r.value, 'hex'), r.headers,
       r.kafka_ms
FROM json_to_recordset($2::text::json) AS r (
    partition integer, "offset" bigint, reason text, detail text, key text, value text, headers jsonb, kafka_ms bigint
)

-- name: count_violations
-- In one order, which all writers keep.
INSERT INTO harness.contract_violations AS v (table_id, partition, check_name, severity, records)
SELECT $1::integer, c.partition, c.check_name, c.severity, sum(c.records)
FROM jsonb_to_recordset($2::text::jsonb) AS c (partition integer, check_name text, severity text, records bigint)
GROUP BY c.partition, c.check_name, c.severity ORDER BY c.partition, c.check_name, c.severity
ON CONFLICT (table_id, partition, check_name, severity) DO UPDATE
SET records = v.records + excluded.records, last_at = clock_timestamp()

-- name: count_filtered
INSERT INTO harness.filtered AS f (table_id, partition, records)
SELECT $1::integer, c.partition, sum(c.records)
FROM jsonb_to_recordset($2::text::jsonb) AS c (partition integer, records bigint)
GROUP BY c.partition ORDER BY c.partition
ON CONFLICT (table_id, partition) DO UPDATE SET records = f.records + excluded.records

-- The rest runs on psycopg connections.

-- name: segments
SELECT * FROM harness.segments WHERE table_id = %(table_id)s ORDER BY seq

-- name: lock_segments
SELECT pg_advisory_xact_lock(1752330866, %(table_id)s)

-- name: schema_in_force
SELECT max(schema_version) AS schema_version FROM harness.ingest_positions WHERE table_id = %(table_id)s

-- name: insert_segment
INSERT INTO harness.segments (segment, table_id, seq, state, schema_version, packed)
VALUES (%(segment)s, %(table_id)s, %(seq)s, 'open', %(schema_version)s, %(packed)s)
RETURNING *

-- name: lock_segment
SELECT * FROM harness.segments WHERE segment = %(segment)s FOR UPDATE

-- name: close_segment
UPDATE harness.segments SET state = 'closed', closed_at = clock_timestamp(), max_hi = (
    SELECT coalesce(jsonb_object_agg(partition, buffer_hi), '{}') FROM harness.ingest_positions WHERE table_id = %(table_id)s
) WHERE segment = %(segment)s AND state = 'open'

-- name: retire_segment
UPDATE harness.segments SET state = 'retired', retired_at = clock_timestamp() WHERE segment = %(segment)s AND state = 'closed'

-- name: drop_segment
SELECT harness.segment_drop(%(segment)s)

-- name: forget_segment
-- Once `segment_drop` has dropped it, which refuses one that is not retired.
DELETE FROM harness.segments WHERE segment = %(segment)s

-- name: refused
SELECT "offset" FROM harness.quarantine
WHERE table_id = %(table_id)s AND partition = %(partition)s AND "offset" >= %(low)s AND "offset" < %(high)s
ORDER BY "offset"

-- name: beginning
-- More than the limit are not counted; of the moves the first that has rows is enough.
SELECT (SELECT count(*) FROM (
           SELECT FROM harness.quarantine WHERE table_id = %(table_id)s LIMIT %(limit)s
       ) q) AS refused,
       EXISTS (SELECT FROM harness.moves WHERE table_id = %(table_id)s AND state = 'COMMITTED' AND rows > 0)
       OR EXISTS (SELECT FROM harness.filtered WHERE table_id = %(table_id)s AND records > 0) AS taken

-- name: room
-- All tables at once, because all share the server's limit.
SELECT t.table_id, coalesce(u.bytes, 0) AS bytes, (t.spec -> 'buffer' ->> 'max_bytes')::bigint AS table_max, p.limited,
       p.bytes AS paused_at, p.bytes_max
FROM harness.tables t
LEFT JOIN harness.buffer_use u USING (table_id)
LEFT JOIN harness.buffer_pauses p USING (table_id)
WHERE u.bytes IS NOT NULL OR p.limited IS NOT NULL

-- name: pause
INSERT INTO harness.buffer_pauses (table_id, limited, bytes, bytes_max)
VALUES (%(table_id)s, %(limited)s, %(bytes)s, %(bytes_max)s)
ON CONFLICT (table_id) DO UPDATE SET limited = excluded.limited, bytes = excluded.bytes, bytes_max = excluded.bytes_max

-- name: resume
DELETE FROM harness.buffer_pauses WHERE table_id = %(table_id)s

-- name: segment_sizes
SELECT s.segment, s.state, s.created_at, coalesce(pg_table_size(c.oid), 0) AS bytes,
       extract(epoch FROM clock_timestamp() - s.created_at)::float8 AS age_s
FROM harness.segments s
LEFT JOIN pg_class c ON c.relname = s.segment AND c.relnamespace = 'harness_buffer'::regnamespace
WHERE s.table_id = %(table_id)s ORDER BY s.seq

-- name: short_lock_timeout
SET LOCAL lock_timeout = '1s'

-- name: tell
SELECT pg_notify('harness', table_id) FROM json_array_elements_text($1::text::json) AS table_id
