-- name: open
SELECT * FROM harness.recalls WHERE table_id = ANY(%(tables)s) AND state = 'asked' ORDER BY recall

-- name: find
SELECT * FROM harness.recalls WHERE table_id = %(table_id)s AND recall = %(recall)s

-- name: lock
SELECT state FROM harness.recalls WHERE recall = %(recall)s FOR NO KEY UPDATE

-- name: ask
INSERT INTO harness.recalls (table_id, act, wanted, asked_by) VALUES (%(table_id)s, %(act)s, %(wanted)s, %(asked_by)s)
RETURNING *

-- name: end
UPDATE harness.recalls SET state = %(state)s, ended_at = clock_timestamp(), move_id = %(move_id)s, rows = %(rows)s,
    bytes = %(bytes)s, detail = %(detail)s
WHERE recall = %(recall)s

-- name: end_without_effect
-- By the attempt that is under way alone: a later one may publish what an earlier one found no way for. The move is
-- locked, so that nobody takes the next attempt until this is over.
WITH answering AS (
    SELECT recall FROM harness.moves
    WHERE move_id = %(move_id)s AND attempt = %(attempt)s AND state IN ('PLANNED', 'QUARANTINED') FOR NO KEY UPDATE
)
UPDATE harness.recalls r SET state = %(state)s, ended_at = clock_timestamp(), move_id = %(move_id)s, rows = 0, bytes = 0,
    detail = %(detail)s
FROM answering a WHERE r.recall = a.recall AND r.state = 'asked'

-- name: cancel
-- What a move has taken up is not given up under it.
UPDATE harness.recalls r SET state = 'cancelled', ended_at = clock_timestamp()
WHERE r.table_id = %(table_id)s AND r.state = 'asked' AND NOT EXISTS (
    SELECT FROM harness.moves m WHERE m.recall = r.recall AND m.state IN ('PLANNED', 'QUARANTINED'))
RETURNING r.recall
