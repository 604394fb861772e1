-- Ingest that pauses because the buffer is full, and what the buffer takes.

-- A table of which ingest pauses. Whoever ingests it writes the row when it pauses, and deletes it when it continues; a
-- successor goes on from there. `bytes`: what counted against the limit when it began.
CREATE TABLE harness.buffer_pauses (
    table_id  integer PRIMARY KEY REFERENCES harness.tables ON DELETE CASCADE,
    limited   text NOT NULL CHECK (limited IN ('table', 'server')),
    bytes     bigint NOT NULL,
    bytes_max bigint NOT NULL,
    since     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Bytes of segments on Postgres's disk, indexes included. Those that are retired lie there until they are dropped.
CREATE VIEW harness.buffer_use AS
SELECT g.table_id, sum(b.bytes)::bigint AS bytes, coalesce(sum(b.bytes) FILTER (WHERE g.state = 'retired'), 0)::bigint AS retired
FROM harness.segments g
CROSS JOIN LATERAL (
    SELECT coalesce(pg_total_relation_size(to_regclass(format('harness_buffer.%I', g.segment))), 0) AS bytes
) b
GROUP BY g.table_id;

GRANT SELECT ON harness.buffer_pauses, harness.buffer_use TO harness_reader;
GRANT INSERT, UPDATE, DELETE ON harness.buffer_pauses TO harness_worker;
