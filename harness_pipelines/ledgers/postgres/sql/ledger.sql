-- name: insert_table
INSERT INTO harness.tables (namespace, name, spec, cluster_id, topic, topic_id)
VALUES (%(namespace)s, %(name)s, %(spec)s, %(cluster_id)s, %(topic)s, %(topic_id)s)
ON CONFLICT (namespace, name) DO NOTHING
RETURNING table_id

-- name: update_spec
UPDATE harness.tables SET spec = %(spec)s WHERE table_id = %(table_id)s

-- name: spec_now
-- After the table was locked: what it is changed from.
SELECT t.spec, s.schema_version, s.fields
FROM harness.tables t
JOIN LATERAL (
    SELECT schema_version, fields FROM harness.schemas WHERE table_id = t.table_id ORDER BY schema_version DESC LIMIT 1
) s ON true
WHERE t.table_id = %(table_id)s

-- name: insert_schema
INSERT INTO harness.schemas (table_id, schema_version, fields, spec, starts, move_id)
VALUES (%(table_id)s, %(schema_version)s, %(fields)s, %(spec)s, %(starts)s, %(move_id)s)

-- name: tables
-- By the index; of several names these may be more than were asked for.
SELECT t.table_id, t.namespace, t.name, t.spec, t.cluster_id, t.topic, t.topic_id, t.stopped, t.retained_from,
       hashtextextended(t.spec::text, 0) AS spec_hash, s.history
FROM harness.tables t
LEFT JOIN LATERAL ( -- NULL: its schemas are gone
    SELECT jsonb_agg(jsonb_build_object(
        'schema_version', schema_version, 'fields', fields, 'spec', spec, 'starts', starts
    ) ORDER BY schema_version) AS history
    FROM harness.schemas WHERE table_id = t.table_id HAVING count(*) > 0
) s ON true
WHERE (%(namespaces)s::text[] IS NULL OR t.namespace = ANY(%(namespaces)s))
  AND (%(names)s::text[] IS NULL OR t.name = ANY(%(names)s))
ORDER BY t.namespace, t.name

-- name: modes
SELECT table_id, namespace || '.' || name AS name, spec ->> 'mode' AS mode FROM harness.tables ORDER BY table_id

-- name: beat
-- Those whose time was over long ago are forgotten on the way.
WITH gone AS (
    DELETE FROM harness.workers WHERE alive_until < clock_timestamp() - interval '1 hour'
), mine AS (
    INSERT INTO harness.workers (holder, stages, alive_until)
    VALUES (%(holder)s, %(stages)s, clock_timestamp() + %(lease)s)
    ON CONFLICT (holder) DO UPDATE SET alive_until = excluded.alive_until
)
SELECT holder FROM harness.workers
WHERE alive_until > clock_timestamp() AND stages = %(stages)s AND holder <> %(holder)s

-- name: leave
DELETE FROM harness.workers WHERE holder = %(holder)s

-- name: table_names
SELECT namespace || '.' || name AS name FROM harness.tables ORDER BY namespace, name

-- name: stop_table
UPDATE harness.tables SET stopped = %(stopped)s, stopped_stage = %(stage)s WHERE table_id = %(table_id)s

-- name: stopped
SELECT stopped, stopped_stage FROM harness.tables WHERE table_id = %(table_id)s AND stopped IS NOT NULL

-- name: start_table
UPDATE harness.tables SET stopped = NULL, stopped_stage = NULL WHERE table_id = %(table_id)s AND stopped = %(was)s

-- name: lock_table
-- The advisory lock is for those who may not lock the row: readers of a moment (`snapshots/await_publishers`). It is taken
-- with the row locked, so that nobody who has it waits for the row, and before the time of a version is.
WITH locked AS MATERIALIZED (
    SELECT table_id, outbox_seq, retained_from, stopped, harness.require_history(history) FROM harness.tables
    WHERE table_id = %(table_id)s FOR NO KEY UPDATE
)
SELECT locked.*, pg_advisory_xact_lock(1752330869, table_id) FROM locked

-- name: update_schema_spec
-- Of a table that has one schema yet.
UPDATE harness.schemas SET spec = %(spec)s WHERE table_id = %(table_id)s AND schema_version = 1

-- name: reading_claims
-- Those who read the log; locked, so that nobody takes one over until this is over, and who looked at one has committed.
SELECT stage, holder::text AS holder, lease_until > clock_timestamp() AS alive FROM harness.claims
WHERE table_id = %(table_id)s AND stage IN ('ingest', 'tier') FOR UPDATE

-- name: lock_row
-- The same where the table need not be compared with its lake since a stand-by was promoted.
WITH locked AS MATERIALIZED (
    SELECT table_id FROM harness.tables WHERE table_id = %(table_id)s FOR NO KEY UPDATE
)
SELECT table_id, pg_advisory_xact_lock(1752330869, table_id) FROM locked

-- name: lock_first_claims
-- For those who change how records are decoded: nobody makes a claim's first row, which refers to this one, until then.
SELECT table_id FROM harness.tables WHERE table_id = %(table_id)s FOR UPDATE

-- name: lock_pointer
SELECT metadata_location FROM public.iceberg_tables
WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = %(view)s FOR UPDATE

-- name: move_pointer
UPDATE public.iceberg_tables SET metadata_location = %(new)s, previous_metadata_location = %(old)s
WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = %(view)s
  AND metadata_location = %(old)s

-- name: insert_pointer
INSERT INTO public.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
VALUES (%(catalog)s, %(namespace)s, %(view)s, %(new)s, 'TABLE')

-- name: insert_partition
INSERT INTO harness.lake_positions (table_id, partition, start, stream_hi, batch_hi, trim_floor)
VALUES (%(table_id)s, %(partition)s, %(start)s, %(start)s, %(start)s, %(start)s)
ON CONFLICT DO NOTHING

-- name: insert_ingest_partition
-- In the schema in force: the table is locked, so no other one is published meanwhile.
INSERT INTO harness.ingest_positions (table_id, partition, start, buffer_hi, schema_version)
SELECT %(table_id)s, %(partition)s, %(start)s, %(start)s, max(schema_version)
FROM harness.schemas WHERE table_id = %(table_id)s
ON CONFLICT DO NOTHING

-- name: lock_positions
SELECT partition, start, stream_hi, batch_hi, trim_floor FROM harness.lake_positions
WHERE table_id = %(table_id)s ORDER BY partition FOR NO KEY UPDATE

-- name: advance_stream_hi
UPDATE harness.lake_positions SET stream_hi = %(hi)s
WHERE table_id = %(table_id)s AND partition = %(partition)s AND stream_hi = %(lo)s

-- name: advance_batch_hi
UPDATE harness.lake_positions SET batch_hi = %(hi)s
WHERE table_id = %(table_id)s AND partition = %(partition)s AND batch_hi = %(lo)s

-- name: ingest_positions
SELECT partition, start, buffer_hi, leader_epoch, schema_version FROM harness.ingest_positions
WHERE table_id = %(table_id)s ORDER BY partition

-- name: head
SELECT v.*, clock_timestamp() AS now FROM harness.versions v WHERE table_id = %(table_id)s ORDER BY version DESC LIMIT 1

-- name: versions
SELECT v.* FROM harness.versions v
WHERE table_id = %(table_id)s AND version >= %(first)s ORDER BY version

-- name: version
SELECT v.* FROM harness.versions v
WHERE table_id = %(table_id)s AND version >= %(first)s AND version = %(version)s

-- name: insert_version
INSERT INTO harness.versions
    (table_id, version, stream_metadata, stream_snapshot, batch_metadata, batch_snapshot, layout, schema_version,
     bounds, overlays, narrowed, move_id, revert_of, committed_at)
VALUES (%(table_id)s, %(version)s, %(stream_metadata)s, %(stream_snapshot)s, %(batch_metadata)s, %(batch_snapshot)s,
        %(layout)s, %(schema_version)s, %(bounds)s, %(overlays)s, %(narrowed)s, %(move_id)s, %(revert_of)s, %(committed_at)s)

-- name: insert_layout
INSERT INTO harness.layouts (table_id, version, tree, digest, clustered, scores)
VALUES (%(table_id)s, %(version)s, %(tree)s, %(digest)s, %(clustered)s, %(scores)s)

-- name: layout
SELECT tree, digest, clustered, scores FROM harness.layouts WHERE table_id = %(table_id)s AND version = %(version)s

-- name: append_outbox
WITH next AS (
    UPDATE harness.tables SET outbox_seq = outbox_seq + 1 WHERE table_id = %(table_id)s RETURNING outbox_seq
), added AS (
    INSERT INTO harness.outbox (table_id, seq, event, payload)
    SELECT %(table_id)s, outbox_seq, %(event)s, %(payload)s FROM next RETURNING table_id
)
SELECT pg_notify('harness', table_id::text) FROM added

-- name: announce
-- Workers that are idle look at once.
SELECT pg_notify('harness', %(payload)s)

-- name: insert_move
INSERT INTO harness.moves
    (table_id, stage, shard, lo, hi, base_version, schema_version, state, epoch, trigger, run_id, parent_move, parts,
     recall, rows, committed_at)
VALUES (%(table_id)s, %(stage)s, %(shard)s, %(lo)s, %(hi)s, %(base_version)s, %(schema_version)s, %(state)s, %(epoch)s,
        %(trigger)s, %(run_id)s, %(parent_move)s, %(parts)s, %(recall)s, %(rows)s,
        CASE WHEN %(state)s = 'COMMITTED' THEN clock_timestamp() END)
RETURNING *

-- name: reserve_move
-- Of an act without a claim: its metadata names the move, so the ledger has the row before any file is written.
INSERT INTO harness.moves (table_id, stage, shard, lo, hi, base_version, schema_version, state, epoch, trigger, run_id, error)
VALUES (%(table_id)s, %(stage)s, 0, '{}', '{}', %(base_version)s, %(schema_version)s, 'ABANDONED', 0, %(trigger)s, %(run_id)s,
        %(error)s)
RETURNING move_id, nonce::text AS nonce

-- name: open_move
SELECT * FROM harness.moves
WHERE table_id = %(table_id)s AND stage = %(stage)s AND shard = %(shard)s AND state IN ('PLANNED', 'QUARANTINED')
ORDER BY move_id DESC LIMIT 1

-- name: since_tier
-- Seconds, by this clock, since tier last moved something; where it never did, since the table was made. Versions of
-- other stages do not count: while relayouts follow each other, what is buffered waits all the same.
SELECT t.table_id, extract(epoch FROM clock_timestamp() - coalesce((
    SELECT m.committed_at FROM harness.moves m
    WHERE m.table_id = t.table_id AND m.stage = 'tier' AND m.state = 'COMMITTED' ORDER BY m.move_id DESC LIMIT 1
), t.created_at))::float8 AS since_tier_s
FROM harness.tables t WHERE t.table_id = ANY(%(tables)s)

-- name: moves
SELECT * FROM harness.moves WHERE table_id = %(table_id)s AND (%(stage)s::text IS NULL OR stage = %(stage)s)
ORDER BY move_id DESC LIMIT %(limit)s

-- name: lock_move
SELECT * FROM harness.moves WHERE move_id = %(move_id)s FOR NO KEY UPDATE

-- name: take_attempt
UPDATE harness.moves SET attempt = attempt + 1, epoch = %(epoch)s, run_id = %(run_id)s
WHERE move_id = %(move_id)s AND state = 'PLANNED' AND attempt = %(attempt)s
RETURNING *

-- name: close_move
-- The error that was noted last stays, behind the reason why the move is closed.
UPDATE harness.moves SET state = %(state)s, rows = coalesce(%(rows)s, rows), bytes = coalesce(%(bytes)s, bytes),
    error = nullif(concat_ws('; its last error: ', %(error)s::text, error), ''),
    committed_at = CASE WHEN %(state)s = 'COMMITTED' THEN clock_timestamp() END
WHERE move_id = %(move_id)s AND state IN ('PLANNED', 'QUARANTINED')

-- name: note_failure
UPDATE harness.moves SET failures = failures + %(counts)s, error = coalesce(%(error)s::text, error, %(nothing)s)
WHERE move_id = %(move_id)s AND state = 'PLANNED' AND attempt = %(attempt)s

-- name: claim
SELECT *, clock_timestamp() AS now FROM harness.claims
WHERE table_id = %(table_id)s AND stage = %(stage)s AND shard = %(shard)s

-- name: lock_claim
SELECT *, clock_timestamp() AS now FROM harness.claims
WHERE table_id = %(table_id)s AND stage = %(stage)s AND shard = %(shard)s FOR UPDATE

-- name: check_claim
SELECT *, clock_timestamp() AS now FROM harness.claims
WHERE table_id = %(table_id)s AND stage = %(stage)s AND shard = %(shard)s FOR KEY SHARE

-- name: insert_claim
INSERT INTO harness.claims (table_id, stage, shard, holder, epoch, lease_until)
VALUES (%(table_id)s, %(stage)s, %(shard)s, %(holder)s, 1 + harness.epochs_from(), clock_timestamp() + %(lease)s)
ON CONFLICT DO NOTHING
RETURNING *

-- name: take_claim
-- An epoch that a history gave which is over is not given again: each timeline has epochs of its own.
UPDATE harness.claims SET holder = %(holder)s, epoch = greatest(epoch, harness.epochs_from()) + 1, lease_until = clock_timestamp() + %(lease)s
WHERE table_id = %(table_id)s AND stage = %(stage)s AND shard = %(shard)s
RETURNING *

-- name: claim_all
-- Those of many claims that are free, as `insert_claim` and `take_claim` take one. What another session has locked is left
-- out, and so are the first claims of a table that is locked, as one that is being dropped: neither holds up the others.
WITH wanted AS (
    SELECT table_id, stage FROM unnest(%(tables)s::integer[], %(stages)s::text[]) a (table_id, stage)
), ended AS (
    SELECT c.table_id, c.stage, c.shard FROM harness.claims c JOIN wanted USING (table_id, stage)
    WHERE c.shard = 0 AND c.lease_until <= clock_timestamp()
    ORDER BY c.table_id, c.stage, c.shard FOR UPDATE OF c SKIP LOCKED
), taken AS (
    UPDATE harness.claims c SET holder = %(holder)s, epoch = greatest(c.epoch, harness.epochs_from()) + 1,
           lease_until = clock_timestamp() + %(lease)s
    FROM ended e WHERE (c.table_id, c.stage, c.shard) = (e.table_id, e.stage, e.shard)
    RETURNING c.*
), there AS (
    SELECT table_id FROM harness.tables WHERE table_id = ANY(%(tables)s)
    ORDER BY table_id FOR KEY SHARE SKIP LOCKED
), made AS (
    INSERT INTO harness.claims (table_id, stage, shard, holder, epoch, lease_until)
    SELECT w.table_id, w.stage, 0, %(holder)s, 1 + harness.epochs_from(), clock_timestamp() + %(lease)s
    FROM wanted w JOIN there USING (table_id)
    WHERE NOT EXISTS (SELECT FROM harness.claims c WHERE (c.table_id, c.stage, c.shard) = (w.table_id, w.stage, 0))
    ORDER BY w.table_id, w.stage
    ON CONFLICT DO NOTHING
    RETURNING *
)
SELECT * FROM taken UNION ALL SELECT * FROM made

-- name: renew_claim
UPDATE harness.claims SET lease_until = clock_timestamp() + %(lease)s
WHERE table_id = %(table_id)s AND stage = %(stage)s AND shard = %(shard)s
  AND holder = %(holder)s AND epoch = %(epoch)s AND lease_until > clock_timestamp()
RETURNING *

-- name: renew_claims
-- All of one holder, in the order in which whoever locks several takes them. One that another session holds is left out:
-- it must not hold up the others.
WITH mine AS (
    SELECT c.table_id, c.stage, c.shard FROM harness.claims c
    JOIN unnest(%(tables)s::integer[], %(stages)s::text[], %(shards)s::integer[], %(epochs)s::bigint[])
         AS a (table_id, stage, shard, epoch) USING (table_id, stage, shard, epoch)
    WHERE c.holder = %(holder)s AND c.lease_until > clock_timestamp()
    ORDER BY c.table_id, c.stage, c.shard FOR NO KEY UPDATE OF c SKIP LOCKED
)
UPDATE harness.claims c SET lease_until = clock_timestamp() + %(lease)s
FROM mine m WHERE (c.table_id, c.stage, c.shard) = (m.table_id, m.stage, m.shard)
RETURNING c.*

-- name: release_claims
WITH mine AS (
    SELECT c.table_id, c.stage, c.shard FROM harness.claims c
    JOIN unnest(%(tables)s::integer[], %(stages)s::text[]) AS a (table_id, stage) USING (table_id, stage)
    WHERE c.shard = 0 AND c.holder = %(holder)s AND c.lease_until > clock_timestamp()
    ORDER BY c.table_id, c.stage, c.shard FOR NO KEY UPDATE OF c
)
UPDATE harness.claims c SET lease_until = clock_timestamp()
FROM mine m WHERE (c.table_id, c.stage, c.shard) = (m.table_id, m.stage, m.shard)

-- name: release_claim
UPDATE harness.claims SET lease_until = clock_timestamp()
WHERE table_id = %(table_id)s AND stage = %(stage)s AND shard = %(shard)s AND holder = %(holder)s AND epoch = %(epoch)s

-- name: release_of_holder
UPDATE harness.claims SET lease_until = clock_timestamp()
WHERE table_id = %(table_id)s AND stage = %(stage)s AND shard = %(shard)s AND holder = %(holder)s
  AND lease_until > clock_timestamp()

-- name: count_violations
INSERT INTO harness.contract_violations AS v (table_id, partition, check_name, severity, records)
VALUES (%(table_id)s, %(partition)s, %(check_name)s, %(severity)s, %(records)s)
ON CONFLICT (table_id, partition, check_name, severity) DO UPDATE
SET records = v.records + excluded.records, last_at = clock_timestamp()

-- name: insert_quarantined
-- A revert lets tier read the same records of Kafka again: one that it refuses again, or now, is held.
INSERT INTO harness.quarantine AS q
    (table_id, partition, "offset", reason, detail, key, value, headers, kafka_ms, whole, key_bytes, value_bytes, key_sha256,
     value_sha256, refused_by)
VALUES (%(table_id)s, %(partition)s, %(offset)s, %(reason)s, %(detail)s, %(key)s, %(value)s, %(headers)s, %(kafka_ms)s,
        %(whole)s, %(key_bytes)s, %(value_bytes)s, %(key_sha256)s, %(value_sha256)s, ARRAY[%(move_id)s::bigint])
ON CONFLICT (table_id, partition, "offset") DO UPDATE
SET state = CASE WHEN q.dropped_at IS NULL THEN 'held' ELSE 'dropped' END, reason = EXCLUDED.reason,
    detail = EXCLUDED.detail, refused_by = coalesce(q.refused_by, '{}') || EXCLUDED.refused_by, digest = NULL

-- name: settle_taken
-- Records of [low, high) that were set aside once, and that the move has taken as rows. Of one that an earlier release set
-- aside the moves that read it before are those that refused it.
UPDATE harness.quarantine q
SET digest = NULL, state = 'replayed', settled_by = 'tier', settled_at = clock_timestamp(), refused_by = coalesce(q.refused_by, (
    SELECT array_agg(m.move_id) FROM harness.moves m
    WHERE m.table_id = q.table_id AND m.stage = 'tier' AND m.state = 'COMMITTED' AND m.move_id <> %(move_id)s
      AND (m.lo ->> q.partition::text)::bigint <= q."offset" AND (m.hi ->> q.partition::text)::bigint > q."offset"), '{}')
WHERE q.table_id = %(table_id)s AND q.partition = %(partition)s AND q."offset" >= %(low)s AND q."offset" < %(high)s
  AND NOT (coalesce(q.refused_by, '{}') @> ARRAY[%(move_id)s::bigint]) AND q.state <> 'replayed'

-- name: share_ingest
-- Whoever moves `buffer_hi` shares it; a schema change takes it alone.
SELECT pg_advisory_xact_lock_shared(1752330868, %(table_id)s)

-- name: advance_ingest
UPDATE harness.ingest_positions SET buffer_hi = %(hi)s
WHERE table_id = %(table_id)s AND partition = %(partition)s AND buffer_hi = %(lo)s

-- name: reach_ingest
-- `buffer: none`: after a revert the lake moves again what the table had taken already.
UPDATE harness.ingest_positions SET buffer_hi = greatest(buffer_hi, %(hi)s),
    leader_epoch = CASE WHEN %(hi)s >= buffer_hi THEN coalesce(%(epoch)s, leader_epoch) ELSE leader_epoch END
WHERE table_id = %(table_id)s AND partition = %(partition)s AND buffer_hi >= %(lo)s
