-- How many records the filter of their table's transform did not take, counted in the transaction that passes them. Beside
-- the buffer: no foreign key. By partition, so that ingest of one never waits for another.
CREATE TABLE harness.filtered (
    table_id  integer NOT NULL,
    partition integer NOT NULL,
    records   bigint NOT NULL,
    PRIMARY KEY (table_id, partition)
) WITH (fillfactor = 50);
GRANT SELECT ON harness.filtered TO harness_reader;
GRANT INSERT, UPDATE ON harness.filtered TO harness_worker;
