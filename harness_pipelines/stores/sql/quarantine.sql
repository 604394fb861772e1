-- Records that were set aside. What chooses them is the same in both: a record without a time is of no time range, the
-- time of one from before times were kept is that of its being set aside, a schema's id is in a value's first bytes.

-- name: records
SELECT partition, "offset", reason, detail, key, value, headers, state, settled_by, settled_at, recorded_at,
       coalesce(kafka_ms, (extract(epoch FROM recorded_at) * 1000)::bigint) AS kafka_ms
FROM harness.quarantine
WHERE table_id = %(table_id)s
  AND (%(state)s::text IS NULL OR state = %(state)s)
  AND (%(partition)s::int IS NULL OR partition = %(partition)s)
  AND (%(offset)s::bigint IS NULL OR "offset" = %(offset)s)
  AND (%(reasons)s::text[] IS NULL OR reason = ANY(%(reasons)s))
  AND (%(detail)s::text IS NULL OR position(%(detail)s IN detail) > 0)
  AND (%(schema_id)s::int IS NULL OR substring(value FROM 1 FOR 5) = '\x00'::bytea || int4send(%(schema_id)s))
  AND (%(since_ms)s::bigint IS NULL OR nullif(coalesce(kafka_ms, (extract(epoch FROM recorded_at) * 1000)::bigint), -1) >= %(since_ms)s)
  AND (%(until_ms)s::bigint IS NULL OR nullif(coalesce(kafka_ms, (extract(epoch FROM recorded_at) * 1000)::bigint), -1) < %(until_ms)s)
  AND (%(set_aside_since)s::timestamptz IS NULL OR recorded_at >= %(set_aside_since)s)
  AND (%(set_aside_until)s::timestamptz IS NULL OR recorded_at < %(set_aside_until)s)
  AND (partition, "offset") > (%(after_partition)s::int, %(after_offset)s::bigint)
ORDER BY partition, "offset" LIMIT %(limit)s

-- name: counts
SELECT state, reason, partition, count(*) AS records, min("offset") AS first_offset, max("offset") AS last_offset,
       max(recorded_at) AS last_at
FROM harness.quarantine
WHERE table_id = %(table_id)s
  AND (%(partition)s::int IS NULL OR partition = %(partition)s)
  AND (%(offset)s::bigint IS NULL OR "offset" = %(offset)s)
  AND (%(reasons)s::text[] IS NULL OR reason = ANY(%(reasons)s))
  AND (%(detail)s::text IS NULL OR position(%(detail)s IN detail) > 0)
  AND (%(schema_id)s::int IS NULL OR substring(value FROM 1 FOR 5) = '\x00'::bytea || int4send(%(schema_id)s))
  AND (%(since_ms)s::bigint IS NULL OR nullif(coalesce(kafka_ms, (extract(epoch FROM recorded_at) * 1000)::bigint), -1) >= %(since_ms)s)
  AND (%(until_ms)s::bigint IS NULL OR nullif(coalesce(kafka_ms, (extract(epoch FROM recorded_at) * 1000)::bigint), -1) < %(until_ms)s)
  AND (%(set_aside_since)s::timestamptz IS NULL OR recorded_at >= %(set_aside_since)s)
  AND (%(set_aside_until)s::timestamptz IS NULL OR recorded_at < %(set_aside_until)s)
GROUP BY state, reason, partition ORDER BY array_position(ARRAY['held', 'replayed', 'dropped'], state), reason, partition
