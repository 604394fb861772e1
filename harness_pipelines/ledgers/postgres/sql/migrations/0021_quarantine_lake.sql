-- The bytes of records that were set aside may lie in an Iceberg table of the table's own. Where it is: its folder, which is
-- known before any file is in it, and the metadata file that was published last.
ALTER TABLE harness.tables ADD COLUMN quarantine_folder text, ADD COLUMN quarantine_metadata text;

-- Of a record whose bytes are there: no key, value and headers, but what audits and filters ask of them.
ALTER TABLE harness.quarantine
    ADD COLUMN in_lake boolean NOT NULL DEFAULT false,
    ADD COLUMN key_sha256 bytea, ADD COLUMN value_sha256 bytea;
CREATE INDEX quarantine_oldest ON harness.quarantine (table_id, recorded_at, partition, "offset") WHERE NOT in_lake;

CREATE VIEW harness.quarantine_in_postgres AS
SELECT q.*, coalesce(octet_length(key), 0)::bigint + coalesce(octet_length(value), 0) + pg_column_size(headers) AS bytes
FROM harness.quarantine q WHERE NOT q.in_lake;
GRANT SELECT ON harness.quarantine_in_postgres TO harness_reader;
