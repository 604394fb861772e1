-- What audits found whole in the lake: a later audit reads such a range again only when other files answer for it.
CREATE TABLE harness.audits (
    table_id   integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    partition  integer NOT NULL,
    low        bigint NOT NULL,
    high       bigint NOT NULL,
    rows       bigint NOT NULL,
    refused    bigint NOT NULL,
    digest     text NOT NULL,              -- of the rows, in any order; its definition is part of it (v1:...)
    evidence   text NOT NULL,              -- SHA-256 over the live files and quarantined records that answer for the range
    status     text NOT NULL,
    witness    text NOT NULL,
    version    bigint NOT NULL,
    audited_at timestamptz NOT NULL,
    PRIMARY KEY (table_id, partition, low),
    CHECK (low < high)
);
GRANT SELECT ON harness.audits TO harness_reader;
GRANT INSERT, DELETE ON harness.audits TO harness_worker;

-- As before, and the accounting row keeps the digest of the rows: JSON {partition: sum of the row digests v1, modulo
-- 2^64}. A commit without digests (an older worker) leaves the row without one for good.
CREATE OR REPLACE FUNCTION harness.advance_ingest(
    of_table integer, of_shard integer, ranges jsonb, decoded_with integer,
    of_move bigint, of_epoch bigint, of_run text, row_count bigint,
    OUT moved text, OUT move_id bigint, OUT holder text, OUT epoch bigint, OUT lease_until timestamptz, OUT now timestamptz
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    lows  jsonb;
    highs jsonb;
    sums  jsonb;
BEGIN
    WITH advanced AS (
        UPDATE harness.ingest_positions i
        SET buffer_hi = r.high, leader_epoch = coalesce(r.leader_epoch, i.leader_epoch)
        FROM jsonb_to_recordset(ranges) AS r (partition integer, low bigint, high bigint, leader_epoch integer)
        WHERE i.table_id = of_table AND i.partition = r.partition AND i.buffer_hi = r.low AND i.schema_version = decoded_with
        RETURNING i.partition
    )
    SELECT coalesce(string_agg(partition::text, ','), '') INTO moved FROM advanced;

    SELECT jsonb_object_agg(r.partition, r.low), jsonb_object_agg(r.partition, r.high),
           CASE WHEN bool_and(r.digest IS NOT NULL) THEN jsonb_object_agg(r.partition, r.digest) END
    INTO lows, highs, sums
    FROM jsonb_to_recordset(ranges) AS r (partition integer, low bigint, high bigint, digest numeric);
    UPDATE harness.moves m
    SET lo = lows || m.lo, hi = m.hi || highs, rows = m.rows + row_count, committed_at = clock_timestamp(),
        digest = (m.digest::jsonb || (
            SELECT jsonb_object_agg(s.key, (coalesce((m.digest::jsonb ->> s.key)::numeric, 0) + s.value::numeric)
                                           % 18446744073709551616)
            FROM jsonb_each_text(sums) s))::text
    WHERE m.move_id = of_move RETURNING m.move_id INTO move_id;
    IF move_id IS NULL THEN
        INSERT INTO harness.moves AS m
            (table_id, stage, shard, lo, hi, schema_version, state, epoch, trigger, run_id, rows, digest, committed_at)
        VALUES (of_table, 'ingest', of_shard, lows, highs, decoded_with, 'COMMITTED', of_epoch, 'log', of_run, row_count,
                sums::text, clock_timestamp())
        RETURNING m.move_id INTO move_id;
    END IF;

    SELECT c.holder, c.epoch, c.lease_until INTO holder, epoch, lease_until FROM harness.claims c
    WHERE c.table_id = of_table AND c.stage = 'ingest' AND c.shard = of_shard FOR KEY SHARE;
    now := clock_timestamp();
END;
$$;
