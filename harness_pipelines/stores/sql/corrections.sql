-- name: held
SELECT partition, "offset", reason, detail, key, value, headers,
       coalesce(kafka_ms, (extract(epoch FROM recorded_at) * 1000)::bigint) AS kafka_ms
FROM harness.quarantine
WHERE table_id = %(table_id)s AND state = 'held'
  AND (%(partition)s::int IS NULL OR partition = %(partition)s)
  AND (%(offset)s::bigint IS NULL OR "offset" = %(offset)s)
  AND (%(reasons)s::text[] IS NULL OR reason = ANY(%(reasons)s))
  AND (partition, "offset") > (%(after_partition)s::int, %(after_offset)s::bigint)
ORDER BY partition, "offset" LIMIT %(limit)s

-- name: states
SELECT state, count(*) AS records FROM harness.quarantine WHERE table_id = %(table_id)s GROUP BY state

-- name: reserve_move
-- The metadata names the move, so the ledger has its row before any file is written.
INSERT INTO harness.moves (table_id, stage, shard, lo, hi, base_version, schema_version, state, epoch, trigger, run_id, error)
VALUES (%(table_id)s, 'replay', 0, '{}', '{}', %(base_version)s, %(schema_version)s, 'ABANDONED', 0, 'request', %(run_id)s,
        'the replay did not take effect')
RETURNING move_id

-- name: record_move
UPDATE harness.moves SET base_version = %(base_version)s, state = 'COMMITTED', error = NULL, rows = %(rows)s,
    bytes = %(bytes)s, committed_at = clock_timestamp()
WHERE table_id = %(table_id)s AND move_id = %(move_id)s AND state = 'ABANDONED'

-- name: lock_held
-- Those of the given coordinates that are held, locked until the end.
SELECT q.partition, q."offset" FROM harness.quarantine q
JOIN unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS w (partition, "offset") USING (partition, "offset")
WHERE q.table_id = %(table_id)s AND q.state = 'held' ORDER BY q.partition, q."offset" FOR NO KEY UPDATE OF q

-- name: settle
UPDATE harness.quarantine q SET state = %(state)s, settled_by = %(by)s, settled_at = clock_timestamp()
FROM unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS w (partition, "offset")
WHERE q.table_id = %(table_id)s AND q.partition = w.partition AND q."offset" = w."offset" AND q.state = 'held'

-- name: insert
INSERT INTO harness.corrections (table_id, version, partition, "offset", kind, digest, decoder, move_id)
SELECT %(table_id)s, %(version)s, w.partition, w."offset", 'added', w.digest, %(decoder)s, %(move_id)s
FROM unnest(%(partitions)s::int[], %(offsets)s::bigint[], %(digests)s::text[]) AS w (partition, "offset", digest)

-- name: in_effect
SELECT c.partition, c."offset", c.digest, c.version, c.move_id FROM harness.corrections c
JOIN harness.moves m ON m.move_id = c.move_id AND m.undone_by IS NULL
WHERE c.table_id = %(table_id)s ORDER BY c.partition, c."offset"

-- name: follow_revert
-- Records whose correction is undone are held again; those whose correction is in effect again are not.
UPDATE harness.quarantine q SET state = CASE WHEN now.added THEN 'replayed' ELSE 'held' END
FROM (
    SELECT c.partition, c."offset", bool_or(m.undone_by IS NULL) AS added FROM harness.corrections c
    JOIN harness.moves m ON m.move_id = c.move_id WHERE c.table_id = %(table_id)s GROUP BY c.partition, c."offset"
) now
WHERE q.table_id = %(table_id)s AND q.partition = now.partition AND q."offset" = now."offset"
  AND (q.state = 'replayed') <> now.added AND (now.added OR q.state = 'replayed')

-- name: forget_all_signed
-- A revert takes corrections back, or brings them back.
DELETE FROM harness.audits a USING harness.corrections c
WHERE c.table_id = %(table_id)s AND a.table_id = c.table_id AND a.partition = c.partition
  AND a.low <= c."offset" AND c."offset" < a.high

-- name: forget_signed
-- What audits signed off with other rows is read again.
DELETE FROM harness.audits a USING unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS w (partition, "offset")
WHERE a.table_id = %(table_id)s AND a.partition = w.partition AND a.low <= w."offset" AND w."offset" < a.high
