-- name: quarantined
-- Of bytes that are in the lake what they were when they were moved there; of a head what the whole was.
SELECT "offset", reason, in_lake, whole, coalesce(value_sha256, sha256(value)) AS value_digest,
       coalesce(key_sha256, sha256(key)) AS key_digest
FROM harness.quarantine
WHERE table_id = %(table_id)s AND partition = %(partition)s AND state <> 'replayed'
  AND "offset" >= %(low)s AND "offset" < %(high)s
ORDER BY "offset"

-- name: quarantined_outside
SELECT q.partition, q."offset" FROM harness.quarantine q
LEFT JOIN harness.ingest_positions i USING (table_id, partition)
WHERE q.table_id = %(table_id)s AND (i.partition IS NULL OR q."offset" < i.start) LIMIT 1000

-- name: taken
SELECT move_id, stage, trigger, lo, hi, coalesce(rows, 0) AS rows, digest::jsonb AS digests, schema_version
FROM harness.moves
WHERE table_id = %(table_id)s AND state = 'COMMITTED' AND undone_by IS NULL AND (stage = %(stage)s OR trigger = 'accept-loss')
UNION ALL
SELECT last_move, stage, 'checkpoint', lo, hi, rows, digest, schema_version FROM harness.checkpoints
WHERE table_id = %(table_id)s AND kind = 'in effect' AND stage = %(stage)s
ORDER BY move_id

-- name: begin_accepted
INSERT INTO harness.moves (table_id, stage, shard, lo, hi, schema_version, state, epoch, trigger, rows, committed_at)
VALUES (%(table_id)s, 'ingest', %(shard)s, jsonb_build_object(%(partition)s::int, %(lo)s::bigint),
        jsonb_build_object(%(partition)s::int, %(hi)s::bigint), %(schema_version)s, 'COMMITTED', %(epoch)s, 'accept-loss',
        0, clock_timestamp())
RETURNING move_id

-- name: signed
SELECT partition, low, high, rows, refused, digest, evidence, status, witness, version, audited_at FROM harness.audits
WHERE table_id = %(table_id)s ORDER BY partition, low

-- name: lock_signed
SELECT pg_advisory_xact_lock(1752330867, %(table_id)s)

-- name: forget_signed
DELETE FROM harness.audits
WHERE table_id = %(table_id)s AND partition = %(partition)s AND low < %(high)s AND high > %(low)s

-- name: sign
INSERT INTO harness.audits
    (table_id, partition, low, high, rows, refused, digest, evidence, status, witness, version, audited_at)
VALUES (%(table_id)s, %(partition)s, %(low)s, %(high)s, %(rows)s, %(refused)s, %(digest)s, %(evidence)s, %(status)s,
        %(witness)s, %(version)s, %(audited_at)s)
