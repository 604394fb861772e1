-- What was said of a record before stays known, so that a revert can go by it.
-- refused_by: the moves of tier that set it aside (`buffer: none`: each time that the log is read again the record is
-- judged again); NULL: it was set aside by ingest or a replay, or by a release before this one.
-- dropped_at: it was given up; a replay that is redone and undone again leaves it so.
ALTER TABLE harness.quarantine ADD COLUMN refused_by bigint[], ADD COLUMN dropped_at timestamptz;
UPDATE harness.quarantine SET dropped_at = coalesce(settled_at, recorded_at) WHERE state = 'dropped';

-- Of each record that was ever set aside: is it a row of the head? The newest correction that is in effect says it;
-- without one the move that passed it: it refused the record, or took it.
CREATE VIEW harness.judged AS
SELECT q.table_id, q.partition, q."offset", q.state, q.dropped_at,
       CASE WHEN c.in_effect OR q.refused_by IS NULL THEN coalesce(c.is_row, false)
            ELSE q."offset" < l.stream_hi AND NOT EXISTS (
                SELECT FROM harness.moves m WHERE m.move_id = ANY(q.refused_by) AND m.undone_by IS NULL) END AS is_row
FROM harness.quarantine q
JOIN harness.lake_positions l USING (table_id, partition)
LEFT JOIN harness.corrected c USING (table_id, partition, "offset");
GRANT SELECT ON harness.judged TO harness_reader;

-- What reconcile took over from the lake, the buffer never held: no revert may count on it.
UPDATE harness.lake_positions l SET trim_floor = greatest(l.trim_floor, least(l.stream_hi, taken.hi))
FROM (SELECT m.table_id, h.key::int AS partition, max(h.value::bigint) AS hi
      FROM harness.moves m CROSS JOIN jsonb_each_text(m.hi) h
      WHERE m.stage = 'ingest' AND m.state = 'COMMITTED' AND m.trigger = 'reconcile' GROUP BY 1, 2) taken
WHERE l.table_id = taken.table_id AND l.partition = taken.partition;
