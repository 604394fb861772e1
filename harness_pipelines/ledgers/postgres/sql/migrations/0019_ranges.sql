-- A range of records is decoded anew: rows are replaced, removed (their records are held from then on) or added, and a
-- record that was neither a row nor held may be held from then on (refused).
ALTER TABLE harness.corrections DROP CONSTRAINT corrections_kind_check;
ALTER TABLE harness.corrections ALTER COLUMN digest DROP NOT NULL;
ALTER TABLE harness.corrections ADD COLUMN was text;  -- digest of the row that stood there
ALTER TABLE harness.corrections ADD CONSTRAINT corrections_kind_check CHECK (
    CASE kind WHEN 'added' THEN digest IS NOT NULL AND was IS NULL
              WHEN 'replaced' THEN digest IS NOT NULL AND was IS NOT NULL
              WHEN 'removed' THEN digest IS NULL AND was IS NOT NULL
              WHEN 'refused' THEN digest IS NULL AND was IS NULL
              ELSE false END
);
GRANT UPDATE (reason, detail) ON harness.quarantine TO harness_worker;

-- What became of each record that was ever corrected: the newest correction that is in effect says whether it is a row,
-- and where none is, what it was before the first one.
CREATE VIEW harness.corrected AS
SELECT c.table_id, c.partition, c."offset",
       (array_agg(c.kind ORDER BY c.version))[1] IN ('replaced', 'removed') AS was_row,
       CASE WHEN bool_or(m.undone_by IS NULL)
            THEN (array_agg(c.kind ORDER BY c.version DESC) FILTER (WHERE m.undone_by IS NULL))[1] IN ('added', 'replaced')
            ELSE (array_agg(c.kind ORDER BY c.version))[1] IN ('replaced', 'removed') END AS is_row,
       (array_agg(c.digest ORDER BY c.version DESC) FILTER (WHERE m.undone_by IS NULL))[1] AS digest,
       (array_agg(c.was ORDER BY c.version) FILTER (WHERE m.undone_by IS NULL))[1] AS was,
       max(c.version) FILTER (WHERE m.undone_by IS NULL) AS version,
       bool_or(m.undone_by IS NULL) AS in_effect
FROM harness.corrections c JOIN harness.moves m ON m.move_id = c.move_id
GROUP BY c.table_id, c.partition, c."offset";
GRANT SELECT ON harness.corrected TO harness_reader;
