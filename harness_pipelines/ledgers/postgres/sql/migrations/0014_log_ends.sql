-- Where the logs begin and end, as whoever looked last found them: for those who plan work and who watch. Nothing that is
-- committed depends on it.
CREATE TABLE harness.log_ends (
    table_id  integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    partition integer NOT NULL,
    log_start bigint NOT NULL,
    log_end   bigint NOT NULL,
    seen_at   timestamptz NOT NULL,
    PRIMARY KEY (table_id, partition)
) WITH (fillfactor = 50);
GRANT SELECT ON harness.log_ends TO harness_reader;
GRANT INSERT, UPDATE ON harness.log_ends TO harness_worker;

-- Open and stuck moves of all tables are looked up every few seconds; committed ones are many.
CREATE INDEX held_moves ON harness.moves (table_id) WHERE state IN ('PLANNED', 'QUARANTINED');
