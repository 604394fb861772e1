-- name: seams
-- Neighbouring committed ranges of a stage that leave a gap or overlap.
WITH ranges AS (
    SELECT m.move_id, m.stage, l.key::integer AS partition, l.value::bigint AS low, (m.hi ->> l.key)::bigint AS high
    FROM harness.moves m, jsonb_each_text(m.lo) l
    WHERE m.table_id = %(table_id)s AND m.state = 'COMMITTED' AND m.undone_by IS NULL AND m.stage IN ('ingest', 'tier')
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
FROM harness.moves WHERE table_id = %(table_id)s AND state = 'COMMITTED' AND undone_by IS NULL

-- name: repeatable_read
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: busy
-- Stages of a table that somebody works on now.
SELECT stage FROM harness.claims WHERE table_id = %(table_id)s AND lease_until > clock_timestamp()

-- name: last_committed
SELECT move_id, lo, hi, rows, bytes, committed_at FROM harness.moves
WHERE table_id = %(table_id)s AND stage = %(stage)s AND state = 'COMMITTED' ORDER BY committed_at DESC LIMIT 1
