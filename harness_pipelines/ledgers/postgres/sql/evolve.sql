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
