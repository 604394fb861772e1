-- Each schema of a table keeps the spec that it was published with, and by partition the first offset that is decoded
-- with it. A version counts the schemas that dropped a column: what is written after one answers for no read before.
ALTER TABLE harness.schemas ADD COLUMN spec jsonb, ADD COLUMN starts jsonb NOT NULL DEFAULT '{}';
UPDATE harness.schemas s SET spec = t.spec FROM harness.tables t WHERE t.table_id = s.table_id;
ALTER TABLE harness.schemas ALTER COLUMN spec SET NOT NULL;
ALTER TABLE harness.versions ADD COLUMN narrowed integer NOT NULL DEFAULT 0;

ALTER TABLE harness.moves DROP CONSTRAINT moves_stage_check;
ALTER TABLE harness.moves ADD CONSTRAINT moves_stage_check
    CHECK (stage IN ('ingest', 'tier', 'otree', 'compact', 'expire', 'revert', 'replay', 'evolve'));

-- As before, and commits share a lock that a schema change takes alone: it waits for those under way, in turn, and they
-- for it, where the rows of several partitions could be locked crosswise.
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
    PERFORM pg_advisory_xact_lock_shared(1752330868, of_table);
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
