-- name: highest_move
-- Moves of ingest write no file, and go on where nobody looks at the lake: by numbers that a restored ledger gives again.
SELECT coalesce(max(move_id), 0) AS move_id FROM harness.moves WHERE table_id = %(table_id)s AND stage <> 'ingest'

-- name: leases_over
SELECT lease_id::text AS lease_id, version, holder, until, until > clock_timestamp() AS ahead FROM harness.leases
WHERE table_id = %(table_id)s AND (until <= clock_timestamp() OR born <= clock_timestamp() - interval '24 hours'
                                   OR until > clock_timestamp() + interval '24 hours 1 minute')
ORDER BY born

-- name: end_leases_over
-- With cuts that were to last for longer than any may, since the clock was ahead.
WITH ahead AS (
    UPDATE harness.cuts SET until = clock_timestamp()
    WHERE table_id = %(table_id)s AND until > clock_timestamp() + interval '24 hours 1 minute'
), named_ahead AS (
    UPDATE harness.named_cuts SET until = clock_timestamp()
    WHERE table_id = %(table_id)s AND until > clock_timestamp() + interval '24 hours 1 minute'
)
DELETE FROM harness.leases
WHERE table_id = %(table_id)s AND (until <= clock_timestamp() OR born <= clock_timestamp() - interval '24 hours'
                                   OR until > clock_timestamp() + interval '24 hours 1 minute')

-- name: end_claims_ahead
-- Their holders, if there are any, are fenced by it as by any lease that ended.
UPDATE harness.claims SET lease_until = clock_timestamp()
WHERE table_id = %(table_id)s AND lease_until > clock_timestamp() + %(lease_max)s

-- name: raise_move_ids
-- Numbers that the lake has seen never come again.
SELECT harness.raise_move_ids(%(highest)s)

-- name: next_move_id
SELECT nextval(pg_get_serial_sequence('harness.moves', 'move_id')) AS move_id

-- name: reserve_foreign
-- The metadata names the move, so the ledger has its row before any file is written.
INSERT INTO harness.moves (table_id, stage, shard, lo, hi, base_version, schema_version, state, epoch, trigger, error)
VALUES (%(table_id)s, 'tier', 0, %(lo)s, %(hi)s, %(base_version)s, %(schema_version)s, 'ABANDONED', 0, 'accept-foreign',
        'the rows of another writer were not taken over')
RETURNING move_id

-- name: adopt_move
INSERT INTO harness.moves AS m
    (move_id, table_id, stage, shard, lo, hi, base_version, schema_version, state, attempt, epoch, trigger, rows, bytes,
     nonce, committed_at)
OVERRIDING SYSTEM VALUE
VALUES (%(move_id)s, %(table_id)s, %(stage)s, 0, %(lo)s, %(hi)s, %(base_version)s, %(schema_version)s, 'COMMITTED',
        %(attempt)s, 0, %(trigger)s, %(rows)s, %(bytes)s, coalesce(%(nonce)s::uuid, gen_random_uuid()), clock_timestamp())
ON CONFLICT (move_id) DO UPDATE
    SET state = 'COMMITTED', attempt = excluded.attempt, rows = excluded.rows, bytes = excluded.bytes,
        base_version = excluded.base_version, trigger = excluded.trigger, error = NULL, committed_at = clock_timestamp()
    WHERE m.table_id = excluded.table_id AND m.stage = excluded.stage AND m.lo = excluded.lo AND m.hi = excluded.hi
        AND (m.nonce IS NULL OR m.nonce = coalesce(%(nonce)s::uuid, m.nonce))
        AND (m.state = 'PLANNED' OR (m.state = 'ABANDONED' AND m.trigger = 'accept-foreign'))
RETURNING move_id

-- name: abandon_open
UPDATE harness.moves SET state = 'ABANDONED', error = coalesce(error, %(why)s)
WHERE table_id = %(table_id)s AND state IN ('PLANNED', 'QUARANTINED')

-- name: fence_all
UPDATE harness.claims SET epoch = epoch + 1, lease_until = least(lease_until, clock_timestamp())
WHERE table_id = %(table_id)s

-- name: set_stream_hi
INSERT INTO harness.lake_positions AS l (table_id, partition, start, stream_hi, batch_hi, trim_floor)
VALUES (%(table_id)s, %(partition)s, %(start)s, %(stream_hi)s, %(start)s, %(trim_floor)s)
ON CONFLICT (table_id, partition) DO UPDATE SET stream_hi = greatest(l.stream_hi, excluded.stream_hi),
    trim_floor = greatest(l.trim_floor, excluded.trim_floor)

-- name: set_batch_hi
UPDATE harness.lake_positions SET batch_hi = %(batch_hi)s WHERE table_id = %(table_id)s AND partition = %(partition)s

-- name: lock_ingest
-- So that no commit of ingest comes between what is compared and what is written.
SELECT partition, buffer_hi FROM harness.ingest_positions WHERE table_id = %(table_id)s ORDER BY partition FOR UPDATE

-- name: set_buffer_hi
INSERT INTO harness.ingest_positions AS i (table_id, partition, start, buffer_hi, schema_version)
VALUES (%(table_id)s, %(partition)s, %(start)s, %(buffer_hi)s, %(schema_version)s)
ON CONFLICT (table_id, partition) DO UPDATE
    SET buffer_hi = greatest(i.buffer_hi, excluded.buffer_hi), leader_epoch = NULL

-- name: accepted
-- Rows of other writers that were taken over, as ranges of the pseudo-partition; also by moves that the lake named.
SELECT move_id, (lo ->> '-1')::bigint AS low, (hi ->> '-1')::bigint AS high, rows FROM harness.moves
WHERE table_id = %(table_id)s AND trigger IN ('accept-foreign', 'reconcile') AND lo ? '-1' AND state = 'COMMITTED'
ORDER BY low

-- name: ledger_id
SELECT l.ledger_id::text AS ledger_id, l.epoch::text AS epoch, current_database() AS database,
       split_part(harness.history(), '/', 2)::int AS timeline,
       (SELECT c.system_identifier::text FROM pg_control_system() c) || '/' ||
       (SELECT d.oid::text FROM pg_database d WHERE d.datname = current_database()) AS instance
FROM harness.ledger l

-- name: new_epoch
UPDATE harness.ledger SET epoch = gen_random_uuid()
