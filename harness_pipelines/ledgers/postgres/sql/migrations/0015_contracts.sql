-- How often records broke a check of their table's contract, counted in the transaction that takes or sets them aside. Beside
-- the buffer: no foreign key. By partition, so that ingest of one never waits for another.
CREATE TABLE harness.contract_violations (
    table_id   integer NOT NULL,
    partition  integer NOT NULL,
    check_name text NOT NULL,
    severity   text NOT NULL CHECK (severity IN ('quarantine', 'warn')),
    records    bigint NOT NULL,
    first_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (table_id, partition, check_name, severity)
) WITH (fillfactor = 50);
GRANT SELECT ON harness.contract_violations TO harness_reader;
GRANT INSERT, UPDATE ON harness.contract_violations TO harness_worker;
