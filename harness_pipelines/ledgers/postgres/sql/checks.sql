-- name: seams
-- Neighbouring committed ranges of a stage that leave a gap or overlap. A checkpoint is one range without a gap.
WITH spans AS (
    SELECT move_id, stage, lo, hi FROM harness.moves
    WHERE table_id = %(table_id)s AND state = 'COMMITTED' AND undone_by IS NULL AND stage IN ('ingest', 'tier')
    UNION ALL
    SELECT last_move, stage, lo, hi FROM harness.checkpoints
    WHERE table_id = %(table_id)s AND kind = 'in effect' AND stage IN ('ingest', 'tier')
), ranges AS (
    SELECT m.move_id, m.stage, l.key::integer AS partition, l.value::bigint AS low, (m.hi ->> l.key)::bigint AS high
    FROM spans m, jsonb_each_text(m.lo) l
), ordered AS (
    SELECT *, lag(high) OVER (PARTITION BY stage, partition ORDER BY low, high) AS before FROM ranges
)
SELECT o.move_id, o.stage, o.partition, o.low, o.before
FROM ordered o JOIN harness.ingest_positions i ON i.table_id = %(table_id)s AND i.partition = o.partition
WHERE o.low <> coalesce(o.before, i.start)
ORDER BY o.stage, o.partition, o.low LIMIT 20

-- name: moved_rows
-- One statement, so that all of it is of one instant.
SELECT coalesce(sum(rows) FILTER (WHERE stage = 'ingest'), 0)::bigint AS ingested,
       coalesce(sum(rows) FILTER (WHERE stage = 'tier' AND NOT lo ? '-1'), 0)::bigint AS tiered
FROM (
    SELECT stage, lo, rows FROM harness.moves WHERE table_id = %(table_id)s AND state = 'COMMITTED' AND undone_by IS NULL
    UNION ALL
    SELECT stage, lo, rows FROM harness.checkpoints WHERE table_id = %(table_id)s AND kind = 'in effect'
) m

-- name: repeatable_read
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: busy
-- Stages of a table that somebody works on now.
SELECT stage FROM harness.claims WHERE table_id = %(table_id)s AND lease_until > clock_timestamp()

-- name: last_committed
-- Writers of ingest account in rows of their own, so its last commit is not always that of the newest row.
SELECT * FROM (
    SELECT move_id, lo, hi, rows, bytes, committed_at FROM harness.moves
    WHERE table_id = %(table_id)s AND stage = %(stage)s AND state = 'COMMITTED' ORDER BY move_id DESC LIMIT 16
) newest ORDER BY committed_at DESC LIMIT 1
