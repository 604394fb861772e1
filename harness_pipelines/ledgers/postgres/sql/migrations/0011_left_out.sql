-- Relayouts that failed in every attempt. While all of its files are there no relayout takes them together again, so
-- that merges do not wait for it; a request of a person forgets them.
CREATE TABLE harness.left_out (
    move_id  bigint PRIMARY KEY REFERENCES harness.moves ON DELETE CASCADE,
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    files    jsonb NOT NULL,                    -- paths of what the move took
    error    text NOT NULL,
    since    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX left_out_of_table ON harness.left_out (table_id);
GRANT SELECT ON harness.left_out TO harness_reader;
GRANT INSERT, DELETE ON harness.left_out TO harness_worker;
