-- name: record_move
UPDATE harness.moves SET base_version = %(base_version)s, state = 'COMMITTED', error = NULL, rows = %(rows)s,
    bytes = %(bytes)s, committed_at = clock_timestamp()
WHERE table_id = %(table_id)s AND move_id = %(move_id)s AND state = 'ABANDONED'

-- name: states_at
-- Under the table's lock nobody settles records.
SELECT q.partition, q."offset", q.state FROM harness.quarantine q
JOIN unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS w (partition, "offset") USING (partition, "offset")
WHERE q.table_id = %(table_id)s

-- name: lock_states
-- What quarantine says of the given coordinates, locked until the end.
SELECT q.partition, q."offset", q.state FROM harness.quarantine q
JOIN unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS w (partition, "offset") USING (partition, "offset")
WHERE q.table_id = %(table_id)s ORDER BY q.partition, q."offset" FOR NO KEY UPDATE OF q

-- name: settle
UPDATE harness.quarantine q
SET state = %(state)s, settled_by = %(by)s, settled_at = clock_timestamp(),
    dropped_at = CASE WHEN %(state)s = 'dropped' THEN clock_timestamp() END, digest = NULL
FROM unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS w (partition, "offset")
WHERE q.table_id = %(table_id)s AND q.partition = w.partition AND q."offset" = w."offset" AND q.state = 'held'

-- name: set_aside
-- Records of rows that are removed, or that were neither rows nor held; one that had been put back is held again.
INSERT INTO harness.quarantine AS q (table_id, partition, "offset", reason, detail, key, value, headers, kafka_ms, whole,
                                     key_bytes, value_bytes, key_sha256, value_sha256)
SELECT %(table_id)s, r.partition, r."offset", r.reason, r.detail, decode(r.key, 'hex'), decode(r.value, 'hex'), r.headers,
       r.kafka_ms, r.whole, r.key_bytes, r.value_bytes, decode(r.key_sha256, 'hex'), decode(r.value_sha256, 'hex')
FROM json_to_recordset(%(records)s::json) AS r (
    partition integer, "offset" bigint, reason text, detail text, key text, value text, headers jsonb, kafka_ms bigint,
    whole boolean, key_bytes bigint, value_bytes bigint, key_sha256 text, value_sha256 text
)
ON CONFLICT (table_id, partition, "offset") DO UPDATE
SET state = 'held', reason = EXCLUDED.reason, detail = EXCLUDED.detail, settled_by = NULL, settled_at = NULL,
    dropped_at = NULL, digest = NULL

-- name: insert
INSERT INTO harness.corrections (table_id, version, partition, "offset", kind, digest, was, decoder, move_id)
SELECT %(table_id)s, %(version)s, w.partition, w."offset", w.kind, w.digest, w.was, %(decoder)s, %(move_id)s
FROM unnest(%(partitions)s::int[], %(offsets)s::bigint[], %(kinds)s::text[], %(digests)s::text[], %(were)s::text[])
    AS w (partition, "offset", kind, digest, was)

-- name: in_effect
SELECT partition, "offset", was_row, is_row, digest, was, version FROM harness.corrected
WHERE table_id = %(table_id)s AND in_effect ORDER BY partition, "offset"

-- name: any_between
SELECT EXISTS (
    SELECT FROM harness.versions v LEFT JOIN harness.moves m ON m.move_id = v.move_id
    WHERE v.table_id = %(table_id)s AND v.version > %(since)s AND v.version <= %(to)s
      AND (v.revert_of IS NOT NULL OR m.stage = 'replay')
) AS any, EXISTS (SELECT FROM harness.versions WHERE table_id = %(table_id)s AND version = %(since)s)
    -- A folded one was there, if its number is none that a lost history left out.
    OR EXISTS (SELECT FROM harness.folds WHERE table_id = %(table_id)s AND version >= %(since)s) AND NOT EXISTS (
        SELECT FROM harness.outbox o WHERE o.table_id = %(table_id)s AND o.event IN ('history_lost', 'promoted')
        AND %(since)s BETWEEN (o.payload ->> 'from')::bigint AND (o.payload ->> 'to')::bigint) AS known

-- name: of_versions
-- All corrections of the records that those of the given versions corrected.
SELECT c.partition, c."offset", c.version, c.digest, c.was
FROM (SELECT DISTINCT partition, "offset" FROM harness.corrections
      WHERE table_id = %(table_id)s AND version = ANY(%(versions)s)) AS w
JOIN harness.corrections c ON c.table_id = %(table_id)s AND c.partition = w.partition AND c."offset" = w."offset"

-- name: of_versions_among
-- The same, of the given ranges alone.
SELECT c.partition, c."offset", c.version, c.digest, c.was
FROM (SELECT DISTINCT h.partition, h."offset" FROM harness.corrections h
      JOIN unnest(%(partitions)s::int[], %(lows)s::bigint[], %(highs)s::bigint[]) AS w (partition, low, high)
          ON h.partition = w.partition AND h."offset" >= w.low AND h."offset" < w.high
      WHERE h.table_id = %(table_id)s AND h.version = ANY(%(versions)s)) AS w
JOIN harness.corrections c ON c.table_id = %(table_id)s AND c.partition = w.partition AND c."offset" = w."offset"

-- name: follow_revert
-- A record whose correction is undone is again what it was before, given up or held; one whose correction is in effect
-- again what that says. So is one that a move of tier took or refused (`buffer: none`).
UPDATE harness.quarantine q
SET digest = NULL, state = CASE WHEN j.is_row THEN 'replayed' WHEN j.dropped_at IS NULL THEN 'held' ELSE 'dropped' END
FROM harness.judged j
WHERE j.table_id = %(table_id)s AND q.table_id = j.table_id AND q.partition = j.partition AND q."offset" = j."offset"
  AND (q.state = 'replayed') <> j.is_row

-- name: forget_all_signed
-- A revert takes corrections back, or brings them back.
DELETE FROM harness.audits a USING harness.corrections c
WHERE c.table_id = %(table_id)s AND a.table_id = c.table_id AND a.partition = c.partition
  AND a.low <= c."offset" AND c."offset" < a.high

-- name: forget_signed
-- What audits signed off with other rows is read again.
DELETE FROM harness.audits a USING unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS w (partition, "offset")
WHERE a.table_id = %(table_id)s AND a.partition = w.partition AND a.low <= w."offset" AND w."offset" < a.high
