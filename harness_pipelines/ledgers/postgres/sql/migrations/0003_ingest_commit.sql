-- The end of an ingest commit in one round trip and in this order: bounds advance where they are what the rows were
-- read from, the accounting row of the holder is extended or begun, and the claim is looked at last, after all waiting.
-- Nothing is judged here: the caller compares what it gets back and rolls back.
CREATE FUNCTION harness.advance_ingest(
    of_table integer, of_shard integer, ranges jsonb, decoded_with integer,
    of_move bigint, of_epoch bigint, of_run text, row_count bigint,
    OUT moved text, OUT move_id bigint, OUT holder text, OUT epoch bigint, OUT lease_until timestamptz, OUT now timestamptz
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    lows  jsonb;
    highs jsonb;
BEGIN
    WITH advanced AS (
        UPDATE harness.ingest_positions i
        SET buffer_hi = r.high, leader_epoch = coalesce(r.leader_epoch, i.leader_epoch)
        FROM jsonb_to_recordset(ranges) AS r (partition integer, low bigint, high bigint, leader_epoch integer)
        WHERE i.table_id = of_table AND i.partition = r.partition AND i.buffer_hi = r.low AND i.schema_version = decoded_with
        RETURNING i.partition
    )
    SELECT coalesce(string_agg(partition::text, ','), '') INTO moved FROM advanced;

    SELECT jsonb_object_agg(r.partition, r.low), jsonb_object_agg(r.partition, r.high) INTO lows, highs
    FROM jsonb_to_recordset(ranges) AS r (partition integer, low bigint, high bigint);
    UPDATE harness.moves m
    SET lo = lows || m.lo, hi = m.hi || highs, rows = m.rows + row_count, committed_at = clock_timestamp()
    WHERE m.move_id = of_move RETURNING m.move_id INTO move_id;
    IF move_id IS NULL THEN
        INSERT INTO harness.moves AS m
            (table_id, stage, shard, lo, hi, schema_version, state, epoch, trigger, run_id, rows, committed_at)
        VALUES (of_table, 'ingest', of_shard, lows, highs, decoded_with, 'COMMITTED', of_epoch, 'log', of_run, row_count,
                clock_timestamp())
        RETURNING m.move_id INTO move_id;
    END IF;

    SELECT c.holder, c.epoch, c.lease_until INTO holder, epoch, lease_until FROM harness.claims c
    WHERE c.table_id = of_table AND c.stage = 'ingest' AND c.shard = of_shard FOR KEY SHARE;
    now := clock_timestamp();
END;
$$;
