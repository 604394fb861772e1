-- Records that were put back from quarantine: rows at coordinates that the bounds had passed. In effect while their move
-- is (`moves.undone_by`). Append-only.
CREATE TABLE harness.corrections (
    table_id  integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    version   bigint NOT NULL,                 -- the first that has the row
    partition integer NOT NULL,
    "offset"  bigint NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('added')),
    digest    text NOT NULL,                   -- of the row, as audits know it
    decoder   text,                            -- digest of the spec that decoded it, if it was not the table's
    move_id   bigint NOT NULL REFERENCES harness.moves,
    PRIMARY KEY (table_id, version, partition, "offset")
);
CREATE INDEX corrections_by_offset ON harness.corrections (table_id, partition, "offset");
GRANT SELECT ON harness.corrections TO harness_reader;
GRANT INSERT ON harness.corrections TO harness_worker;

-- When the record was produced, in ms since 1970 (-1: the log does not say); NULL for those of earlier releases.
ALTER TABLE harness.quarantine ADD COLUMN kafka_ms bigint;
ALTER TABLE harness.quarantine ADD CONSTRAINT quarantine_state CHECK (state IN ('held', 'replayed', 'dropped'));
ALTER TABLE harness.quarantine ADD COLUMN settled_by text, ADD COLUMN settled_at timestamptz; -- who dropped it, and when
GRANT UPDATE (state, settled_by, settled_at) ON harness.quarantine TO harness_worker;

ALTER TABLE harness.moves DROP CONSTRAINT moves_stage_check;
ALTER TABLE harness.moves ADD CONSTRAINT moves_stage_check
    CHECK (stage IN ('ingest', 'tier', 'otree', 'compact', 'expire', 'revert', 'replay'));
