-- Records that were set aside. What chooses them is the same in both: a record without a time is of no time range, the
-- time of one from before times were kept is that of its being set aside, a schema's id is in a value's first bytes,
-- or told apart where these are in the lake.

-- name: records
-- Without their bytes, but for the first ones; how many there are of each, and how many are kept.
SELECT partition, "offset", reason, detail, substring(value FROM 1 FOR 5) AS value_begins, schema_id, in_lake, state, settled_by,
       settled_at, recorded_at, coalesce(key_bytes, octet_length(key)) AS key_bytes,
       coalesce(value_bytes, octet_length(value)) AS value_bytes,
       whole AND greatest(octet_length(key), octet_length(value), 0) <= %(whole_max)s AS whole,
       CASE WHEN in_lake AND whole THEN coalesce(key_bytes, 0) + coalesce(value_bytes, 0)
            ELSE coalesce(octet_length(key), 0)::bigint + coalesce(octet_length(value), 0) + pg_column_size(headers) END AS kept_bytes,
       coalesce(kafka_ms, (extract(epoch FROM recorded_at) * 1000)::bigint) AS kafka_ms
FROM harness.quarantine
WHERE table_id = %(table_id)s
  AND (%(state)s::text IS NULL OR state = %(state)s)
  AND (%(partition)s::int IS NULL OR partition = %(partition)s)
  AND (%(offset)s::bigint IS NULL OR "offset" = %(offset)s)
  AND (%(reasons)s::text[] IS NULL OR reason = ANY(%(reasons)s))
  AND (%(detail)s::text IS NULL OR position(%(detail)s IN detail) > 0)
  AND (%(schema_id)s::int IS NULL OR schema_id = %(schema_id)s
       OR substring(value FROM 1 FOR 5) = '\x00'::bytea || int4send(%(schema_id)s))
  AND (%(since_ms)s::bigint IS NULL OR nullif(coalesce(kafka_ms, (extract(epoch FROM recorded_at) * 1000)::bigint), -1) >= %(since_ms)s)
  AND (%(until_ms)s::bigint IS NULL OR nullif(coalesce(kafka_ms, (extract(epoch FROM recorded_at) * 1000)::bigint), -1) < %(until_ms)s)
  AND (%(set_aside_since)s::timestamptz IS NULL OR recorded_at >= %(set_aside_since)s)
  AND (%(set_aside_until)s::timestamptz IS NULL OR recorded_at < %(set_aside_until)s)
  AND (partition, "offset") > (%(after_partition)s::int, %(after_offset)s::bigint)
ORDER BY partition, "offset" LIMIT %(limit)s

-- name: bytes
-- Of the given records that have them in Postgres. Of one from before heads were kept that is too large, the head.
SELECT q.partition, q."offset", q.headers,
       CASE WHEN octet_length(q.key) > %(whole_max)s THEN substring(q.key FROM 1 FOR %(head)s) ELSE q.key END AS key,
       CASE WHEN octet_length(q.value) > %(whole_max)s THEN substring(q.value FROM 1 FOR %(head)s) ELSE q.value END AS value
FROM harness.quarantine q
JOIN unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS w (partition, "offset") USING (partition, "offset")
WHERE q.table_id = %(table_id)s AND NOT q.in_lake

-- name: counts
SELECT state, reason, partition, count(*) AS records, min("offset") AS first_offset, max("offset") AS last_offset,
       max(recorded_at) AS last_at
FROM harness.quarantine
WHERE table_id = %(table_id)s
  AND (%(partition)s::int IS NULL OR partition = %(partition)s)
  AND (%(offset)s::bigint IS NULL OR "offset" = %(offset)s)
  AND (%(reasons)s::text[] IS NULL OR reason = ANY(%(reasons)s))
  AND (%(detail)s::text IS NULL OR position(%(detail)s IN detail) > 0)
  AND (%(schema_id)s::int IS NULL OR schema_id = %(schema_id)s
       OR substring(value FROM 1 FOR 5) = '\x00'::bytea || int4send(%(schema_id)s))
  AND (%(since_ms)s::bigint IS NULL OR nullif(coalesce(kafka_ms, (extract(epoch FROM recorded_at) * 1000)::bigint), -1) >= %(since_ms)s)
  AND (%(until_ms)s::bigint IS NULL OR nullif(coalesce(kafka_ms, (extract(epoch FROM recorded_at) * 1000)::bigint), -1) < %(until_ms)s)
  AND (%(set_aside_since)s::timestamptz IS NULL OR recorded_at >= %(set_aside_since)s)
  AND (%(set_aside_until)s::timestamptz IS NULL OR recorded_at < %(set_aside_until)s)
GROUP BY state, reason, partition ORDER BY array_position(ARRAY['held', 'replayed', 'dropped'], state), reason, partition

-- name: in_postgres
-- What can be moved: no single record has more bytes than are held in memory.
SELECT count(*) AS records, coalesce(sum(bytes), 0)::bigint AS bytes FROM harness.quarantine_in_postgres
WHERE table_id = %(table_id)s AND bytes <= %(one_max)s

-- name: stay
-- Records from before heads were kept that have more.
SELECT partition, "offset" FROM harness.quarantine_in_postgres
WHERE table_id = %(table_id)s AND bytes > %(one_max)s ORDER BY partition, "offset" LIMIT %(limit)s

-- name: kept
-- How many records were ever set aside, and where their bytes are.
SELECT count(*) FILTER (WHERE in_lake) AS in_lake, count(*) FILTER (WHERE NOT in_lake) AS in_postgres,
       (SELECT coalesce(sum(bytes), 0)::bigint FROM harness.quarantine_in_postgres WHERE table_id = %(table_id)s) AS bytes,
       (SELECT quarantine_metadata FROM harness.tables WHERE table_id = %(table_id)s) AS metadata
FROM harness.quarantine WHERE table_id = %(table_id)s

-- name: due
-- The oldest records that have so many bytes.
SELECT count(*) AS records, coalesce(sum(bytes), 0)::bigint AS bytes FROM (
    SELECT bytes, sum(bytes) OVER (ORDER BY recorded_at, partition, "offset") - bytes AS before
    FROM harness.quarantine_in_postgres WHERE table_id = %(table_id)s AND bytes <= %(one_max)s
) o WHERE before < %(bytes)s

-- name: oldest
-- The same, at most so many: however many there are, no others are looked at.
SELECT partition, "offset", reason, detail, key, value, headers, recorded_at, kafka_ms, bytes FROM (
    SELECT f.*, sum(bytes) OVER (ORDER BY recorded_at, partition, "offset") - bytes AS before FROM (
        SELECT * FROM harness.quarantine_in_postgres WHERE table_id = %(table_id)s AND bytes <= %(one_max)s
        ORDER BY recorded_at, partition, "offset" LIMIT %(records)s
    ) f
) o WHERE before < %(bytes)s ORDER BY partition, "offset"

-- name: place
SELECT quarantine_folder AS folder, quarantine_metadata AS metadata,
       ARRAY(SELECT d.folder FROM harness.cut_folders d WHERE d.table_id = t.table_id ORDER BY d.folder) AS fresh
FROM harness.tables t WHERE table_id = %(table_id)s

-- name: choose_folder
UPDATE harness.tables SET quarantine_folder = %(folder)s WHERE table_id = %(table_id)s AND quarantine_folder IS NULL AND quarantine_metadata IS NULL

-- name: keep_files
-- A ledger that was restored may lack records whose bytes are in the folder: expire looks for no orphans there any more.
UPDATE harness.tables SET quarantine_folder = NULL WHERE table_id = %(table_id)s

-- name: follow
UPDATE harness.tables SET quarantine_metadata = %(new)s
WHERE table_id = %(table_id)s AND quarantine_metadata IS NOT DISTINCT FROM %(old)s

-- name: empty
-- The bytes are in the lake; what audits and filters ask of them stays.
UPDATE harness.quarantine q SET in_lake = true, key = NULL, value = NULL, headers = '[]', schema_id = w.schema_id,
    key_sha256 = coalesce(key_sha256, sha256(key)), value_sha256 = coalesce(value_sha256, sha256(value)),
    key_bytes = coalesce(key_bytes, octet_length(key)), value_bytes = coalesce(value_bytes, octet_length(value)), digest = NULL
FROM unnest(%(partitions)s::int[], %(offsets)s::bigint[], %(schema_ids)s::int[]) AS w (partition, "offset", schema_id)
WHERE q.table_id = %(table_id)s AND q.partition = w.partition AND q."offset" = w."offset" AND NOT q.in_lake
