-- name: reserve_move
-- The ledger knows of the change before any file is written.
INSERT INTO harness.moves (table_id, stage, shard, lo, hi, base_version, schema_version, state, epoch, trigger, error)
VALUES (%(table_id)s, 'evolve', 0, '{}', '{}', NULL, %(schema_version)s, 'ABANDONED', 0, %(trigger)s,
        'the change did not take effect')
RETURNING move_id, nonce::text AS nonce

-- name: record_move
UPDATE harness.moves SET base_version = %(base_version)s, schema_version = %(schema_version)s, state = 'COMMITTED',
    error = NULL, rows = 0, committed_at = clock_timestamp()
WHERE table_id = %(table_id)s AND move_id = %(move_id)s AND state = 'ABANDONED'

-- name: hold_ingest
-- Ingest commits share it.
SELECT pg_advisory_xact_lock(1752330868, %(table_id)s)

-- name: set_schema
UPDATE harness.ingest_positions SET schema_version = %(schema_version)s WHERE table_id = %(table_id)s
RETURNING partition, buffer_hi

-- name: forget_signed
DELETE FROM harness.audits WHERE table_id = %(table_id)s
