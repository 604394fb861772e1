-- name: of_table
SELECT t.history, harness.history() AS ours FROM harness.tables t WHERE t.table_id = %(table_id)s

-- name: known
-- Those of the given moves that the ledger has, or has noted as lost; nonce NULL: made before there were any.
SELECT move_id, nonce::text AS nonce FROM harness.moves WHERE table_id = %(table_id)s AND move_id = ANY(%(move_ids)s)
UNION ALL
SELECT move_id, nonce FROM harness.lost_moves WHERE table_id = %(table_id)s AND move_id = ANY(%(move_ids)s)
UNION ALL
-- Of what was folded the numbers alone are known.
SELECT w.move_id, NULL FROM unnest(%(move_ids)s::bigint[]) AS w (move_id)
WHERE EXISTS (SELECT FROM harness.checkpoints c
              WHERE c.table_id = %(table_id)s AND w.move_id BETWEEN c.first_move AND c.last_move)
  AND NOT EXISTS (SELECT FROM harness.moves m WHERE m.move_id = w.move_id)

-- name: nonce
SELECT nonce::text AS nonce FROM harness.moves WHERE move_id = %(move_id)s

-- name: note_lost
INSERT INTO harness.lost_moves (table_id, move_id, nonce)
SELECT %(table_id)s, w.move_id, w.nonce
FROM unnest(%(move_ids)s::bigint[], %(nonces)s::text[]) AS w (move_id, nonce)
ON CONFLICT DO NOTHING

-- name: insert_move
-- Stands for the version whose number lies behind every one that was given out before.
INSERT INTO harness.moves
    (table_id, stage, shard, lo, hi, base_version, schema_version, state, epoch, trigger, rows, bytes, committed_at)
VALUES (%(table_id)s, 'tier', 0, '{}', '{}', %(base_version)s, %(schema_version)s, 'COMMITTED', 0, 'reconcile', 0, 0,
        clock_timestamp())
RETURNING move_id

-- name: raise_outbox
UPDATE harness.tables SET outbox_seq = greatest(outbox_seq, %(below)s) WHERE table_id = %(table_id)s

-- name: begin
UPDATE harness.tables SET history = harness.history() WHERE table_id = %(table_id)s
