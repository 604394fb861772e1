-- name: count
-- Every five minutes, from the first move of the day before the newest that was counted: a table's older moves are not
-- read again. The first time it is the last 10,000 moves of each stage, so that a ledger of years does not wait. What was
-- counted never becomes less: old moves may be gone.
INSERT INTO harness.daily_costs AS c (table_id, day, stage, moves, records, bytes, first_move, counted_at)
SELECT t.table_id, m.day, s.stage, m.moves, m.records, m.bytes, m.first_move, clock_timestamp()
FROM harness.tables t
CROSS JOIN LATERAL (
    SELECT min(k.first_move) AS first_move, max(k.counted_at) AS counted_at FROM (
        SELECT min(d.first_move) AS first_move, max(d.counted_at) AS counted_at FROM harness.daily_costs d
        WHERE d.table_id = t.table_id AND d.first_move IS NOT NULL GROUP BY d.day ORDER BY d.day DESC LIMIT 2
    ) k
) k
CROSS JOIN (VALUES ('ingest'), ('tier'), ('otree'), ('compact'), ('replay'), ('revert'), ('evolve')) s (stage)
CROSS JOIN LATERAL ( -- for each stage, so that the index leads to the first move
    SELECT (c.committed_at AT TIME ZONE 'UTC')::date AS day, count(*) AS moves, coalesce(sum(c.rows), 0) AS records,
           coalesce(sum(c.bytes), 0) AS bytes, min(c.move_id) AS first_move
    FROM harness.moves c
    WHERE c.table_id = t.table_id AND c.stage = s.stage AND c.move_id >= coalesce(k.first_move, (
              SELECT o.move_id FROM harness.moves o WHERE o.table_id = t.table_id AND o.stage = s.stage
              ORDER BY o.move_id DESC LIMIT 1 OFFSET 10000
          ), 0) AND c.state = 'COMMITTED'
    GROUP BY 1
) m
WHERE t.namespace || '.' || t.name = ANY(%(tables)s)
    AND (k.counted_at IS NULL OR k.counted_at < clock_timestamp() - make_interval(secs => %(every_s)s))
ON CONFLICT (table_id, day, stage) DO UPDATE
SET moves = greatest(c.moves, excluded.moves), records = greatest(c.records, excluded.records),
    bytes = greatest(c.bytes, excluded.bytes), counted_at = excluded.counted_at,
    first_move = least(c.first_move, excluded.first_move)

-- name: forget
DELETE FROM harness.daily_costs c USING harness.tables t
WHERE t.table_id = c.table_id AND t.namespace || '.' || t.name = ANY(%(tables)s)
    AND c.day < (clock_timestamp() AT TIME ZONE 'UTC')::date - %(days)s::integer

-- name: add
INSERT INTO harness.daily_costs AS c (table_id, day, stage, taken_bytes, cpu_s)
SELECT t.table_id, (clock_timestamp() AT TIME ZONE 'UTC')::date, g.stage, g.taken_bytes, g.cpu_s
FROM unnest(%(names)s::text[], %(stages)s::text[], %(taken)s::bigint[], %(cpu_s)s::float8[])
     AS g (name, stage, taken_bytes, cpu_s)
JOIN harness.tables t ON t.namespace || '.' || t.name = g.name
ORDER BY t.table_id, g.stage
ON CONFLICT (table_id, day, stage) DO UPDATE
SET taken_bytes = c.taken_bytes + excluded.taken_bytes, cpu_s = c.cpu_s + excluded.cpu_s

-- name: days
SELECT t.namespace || '.' || t.name AS name, c.day, c.stage, c.moves, c.records, c.bytes, c.taken_bytes, c.cpu_s
FROM harness.daily_costs c JOIN harness.tables t USING (table_id)
WHERE t.namespace || '.' || t.name = ANY(%(tables)s)
    AND c.day > (clock_timestamp() AT TIME ZONE 'UTC')::date - %(days)s::integer
ORDER BY 1, 2 DESC, 3
