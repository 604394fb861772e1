-- History is given once. A move has a nonce, which its metadata file names too: where the lake names a pair of number and
-- nonce that the ledger does not have, the ledger lost a part of its history. Moves from before have none.
ALTER TABLE harness.moves ADD COLUMN nonce uuid;
ALTER TABLE harness.moves ALTER COLUMN nonce SET DEFAULT gen_random_uuid();

-- What the lake names of a history that is over, as reconcile found it.
CREATE TABLE harness.lost_moves (
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    move_id  bigint NOT NULL,
    nonce    text NOT NULL, -- '' of a move from before there were nonces
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (table_id, move_id, nonce)
);
GRANT SELECT ON harness.lost_moves TO harness_reader;

-- Which history this server writes: it changes when a stand-by is promoted, or a backup is recovered. The control file
-- names the new timeline only after a checkpoint, so a primary is asked where it writes.
CREATE FUNCTION harness.history() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    system text := (SELECT system_identifier::text FROM pg_control_system());
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN system || '/' || (SELECT timeline_id::text FROM pg_control_checkpoint());
    END IF;
    RETURN system || '/' || (('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint)::text;
END;
$$;

-- The history that the table was last compared with its lake in. Commits of versions ask for it under the table's lock.
ALTER TABLE harness.tables ADD COLUMN history text;
UPDATE harness.tables SET history = harness.history();
ALTER TABLE harness.tables ALTER COLUMN history SET DEFAULT harness.history();

CREATE FUNCTION harness.require_history(known text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF known IS DISTINCT FROM harness.history() THEN
        RAISE EXCEPTION 'the table was last compared with its lake in history %, this server writes %', known, harness.history()
            USING ERRCODE = 'HP002';
    END IF;
    RETURN true;
END;
$$;

-- The epochs of claims on this server's timeline lie above: 0 on the first one, 2^32 on the second, ...
CREATE FUNCTION harness.epochs_from() RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (split_part(harness.history(), '/', 2)::bigint - 1) << 32
$$;

-- As before, but for the accounting row: it is the holder's own, whatever other move was given its number since.
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
    WHERE m.move_id = of_move AND m.table_id = of_table AND m.stage = 'ingest' AND m.shard = of_shard
      AND m.epoch = of_epoch
    RETURNING m.move_id INTO move_id;
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
