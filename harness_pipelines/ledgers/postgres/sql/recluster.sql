-- name: open
SELECT request AS request_id, paths, upto, rebuild FROM harness.reclusters
WHERE table_id = %(table_id)s AND ended_at IS NULL ORDER BY request

-- name: is_open
-- After lost history another request may have the number.
SELECT ended_at IS NULL AS is_open, cancelled FROM harness.reclusters
WHERE table_id = %(table_id)s AND request = %(request_id)s AND upto = %(upto)s

-- name: ask
INSERT INTO harness.reclusters (table_id, paths, upto, rebuild)
VALUES (%(table_id)s, %(paths)s, %(upto)s, %(rebuild)s)
RETURNING request AS request_id, paths, upto, rebuild

-- name: end
UPDATE harness.reclusters SET ended_at = clock_timestamp(), cancelled = %(cancelled)s
WHERE table_id = %(table_id)s AND request = %(request_id)s AND upto = %(upto)s AND ended_at IS NULL

-- name: leave_out
INSERT INTO harness.left_out (move_id, table_id, files, error)
VALUES (%(move_id)s, %(table_id)s, %(files)s, %(error)s) ON CONFLICT DO NOTHING

-- name: left_out
SELECT move_id, files, error FROM harness.left_out WHERE table_id = %(table_id)s ORDER BY move_id

-- name: forget_left_out
DELETE FROM harness.left_out WHERE table_id = %(table_id)s
