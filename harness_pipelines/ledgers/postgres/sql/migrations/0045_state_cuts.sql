-- A consumer may be far ahead in one partition, and in another one behind what is merged, so that an older version is pinned.
-- That version has to show what lies between its stream view and the offsets, for as long as it is pinned.
GRANT SELECT ON harness.schemas, harness.corrections, harness.lake_positions TO harness_definer;

-- Whether it does: by the stream view of the first later version that reaches that far, or by the buffer until there is one.
-- Neither may have rows of a later schema there, nor may the view have records that were corrected.
CREATE FUNCTION harness.shows_cut(of_table integer, of_version bigint, of_offsets jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pinned     harness.versions;
    partitions integer[];
    lows       bigint[];
    highs      bigint[];
    answer     bigint;
BEGIN
    SELECT * INTO STRICT pinned FROM harness.versions v WHERE v.table_id = of_table AND v.version = of_version;
    SELECT array_agg(c.partition), array_agg(c.low), array_agg(c.high) INTO partitions, lows, highs
    FROM (
        SELECT i.partition, coalesce((pinned.bounds -> i.partition::text ->> 'stream_hi')::bigint, i.start) AS low,
               coalesce((of_offsets ->> i.partition::text)::bigint, i.start) AS high
        FROM harness.ingest_positions i WHERE i.table_id = of_table AND i.partition >= 0
    ) c;
    IF NOT EXISTS (SELECT FROM unnest(lows, highs) AS c (low, high) WHERE c.low < c.high) THEN
        RETURN true;
    END IF;
    SELECT v.version INTO answer FROM harness.versions v
    WHERE v.table_id = of_table AND v.version > of_version AND v.narrowed = pinned.narrowed AND NOT EXISTS (
        SELECT FROM unnest(partitions, highs) AS c (partition, high)
        WHERE coalesce((v.bounds -> c.partition::text ->> 'stream_hi')::bigint, -1) < c.high)
    ORDER BY v.version LIMIT 1;
    RETURN NOT EXISTS (
        SELECT FROM unnest(partitions, lows, highs) AS c (partition, low, high)
        WHERE c.low < c.high AND (
            EXISTS (
                SELECT FROM harness.schemas s WHERE s.table_id = of_table AND s.schema_version > pinned.schema_version
                AND coalesce((s.starts ->> c.partition::text)::bigint, 0) < c.high)
            OR EXISTS (
                SELECT FROM harness.corrections x WHERE x.table_id = of_table AND x.partition = c.partition
                AND x."offset" >= c.low AND x."offset" < c.high AND x.version <= coalesce(answer, x.version))
            OR answer IS NULL AND EXISTS (
                SELECT FROM harness.lake_positions l JOIN harness.tables t USING (table_id)
                WHERE l.table_id = of_table AND l.partition = c.partition AND l.trim_floor > c.low
                AND t.spec ->> 'buffer' IS DISTINCT FROM 'none')));
END;
$$;
REVOKE ALL ON FUNCTION harness.shows_cut FROM PUBLIC;
GRANT EXECUTE ON FUNCTION harness.shows_cut TO harness_definer;

-- Record that all of *of_sources* below its offsets is in the consumer's state; returns the number of the commit. The
-- hold is lengthened by *lasting*. HP012: the hold is over. HP013: no such table or partition, or an offset below its
-- start. HP014: an offset that ingest has not come to. HP015: a keyed table of which no version shows the cut.
CREATE OR REPLACE FUNCTION harness.state_commit(
    of_state text, by_holder uuid, of_epoch bigint, lasting interval,
    of_sources jsonb, its_checkpoint text, its_payload jsonb DEFAULT '{}', its_sink jsonb DEFAULT 'null'
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number  bigint;
    pin     text;
    source  record;
    wrong   record;
    pinned  record;
    shows   boolean;
BEGIN
    PERFORM FROM harness.states WHERE name = of_state FOR UPDATE;
    PERFORM harness.state_renew(of_state, by_holder, of_epoch, lasting);
    FOR source IN
        SELECT t.table_id FROM jsonb_object_keys(of_sources) s JOIN harness.tables t ON t.namespace || '.' || t.name = s
        ORDER BY t.table_id
    LOOP -- what expire decides later sees the pins
        PERFORM pg_advisory_xact_lock_shared(1752330865, source.table_id);
    END LOOP;
    number := coalesce((SELECT max(seq) FROM harness.state_commits WHERE name = of_state), 0) + 1;
    pin := 'state:' || of_state || ':' || number;
    INSERT INTO harness.snapshots (name) VALUES (pin);
    FOR source IN
        SELECT s.key AS name, s.value AS offsets, t.table_id, t.retained_from,
               jsonb_array_length(CASE jsonb_typeof(t.spec -> 'key') WHEN 'array' THEN t.spec -> 'key' ELSE '[]' END) > 0 AS keyed
        FROM jsonb_each(of_sources) s LEFT JOIN harness.tables t ON t.namespace || '.' || t.name = s.key
    LOOP
        IF source.table_id IS NULL THEN
            RAISE EXCEPTION 'state %: there is no table %', of_state, source.name USING ERRCODE = 'HP013';
        END IF;
        SELECT o.key AS partition, o.value AS "offset", i.start, i.buffer_hi INTO wrong
        FROM jsonb_each_text(source.offsets) o
        LEFT JOIN harness.ingest_positions i ON i.table_id = source.table_id AND i.partition = o.key::integer
        WHERE i.partition IS NULL OR o.value::bigint < i.start OR o.value::bigint > i.buffer_hi LIMIT 1;
        IF FOUND AND wrong."offset"::bigint > wrong.buffer_hi THEN
            RAISE EXCEPTION 'state %: % partition % is ingested up to offset %, not yet up to %', of_state, source.name,
                wrong.partition, wrong.buffer_hi, wrong."offset" USING ERRCODE = 'HP014';
        ELSIF FOUND THEN
            RAISE EXCEPTION 'state %: % has no partition %, or none that begins at or below offset %', of_state,
                source.name, wrong.partition, wrong."offset" USING ERRCODE = 'HP013';
        END IF;
        -- The newest version that is merged no further; where it does not show the cut, an older one has less. Of an append
        -- table the newest of all does, cut at the offsets.
        SELECT v.version, v.bounds INTO pinned FROM harness.versions v
        WHERE v.table_id = source.table_id AND v.version >= source.retained_from AND NOT EXISTS (
            SELECT FROM jsonb_each(v.bounds) b WHERE b.key::integer >= 0 AND (b.value ->> 'batch_hi')::bigint
                > coalesce((source.offsets ->> b.key)::bigint, (b.value ->> 'start')::bigint))
        ORDER BY v.version DESC LIMIT 1;
        shows := CASE WHEN FOUND THEN harness.shows_cut(source.table_id, pinned.version, source.offsets) ELSE false END;
        IF NOT shows AND source.keyed THEN
            RAISE EXCEPTION 'state %: no retained version of % shows its rows as of these offsets, they are merged beyond them',
                of_state, source.name USING ERRCODE = 'HP015';
        ELSIF NOT shows THEN
            SELECT v.version, v.bounds INTO STRICT pinned FROM harness.versions v
            WHERE v.table_id = source.table_id ORDER BY v.version DESC LIMIT 1;
        END IF;
        INSERT INTO harness.snapshot_tables (name, table_id, version, bounds)
        SELECT pin, source.table_id, pinned.version, jsonb_object_agg(i.partition, jsonb_build_object(
            'start', i.start, 'buffer_hi', i.high,
            'batch_hi', least(coalesce((pinned.bounds -> i.partition::text ->> 'batch_hi')::bigint, i.start), i.high),
            'stream_hi', least(coalesce((pinned.bounds -> i.partition::text ->> 'stream_hi')::bigint, i.start), i.high)))
        FROM (
            SELECT partition, start, CASE WHEN partition < 0 THEN buffer_hi -- adopted rows are in every cut
                ELSE coalesce((source.offsets ->> partition::text)::bigint, start) END AS high
            FROM harness.ingest_positions WHERE table_id = source.table_id
        ) i;
    END LOOP;
    -- Who resolved the commit before this one may still be about to read it.
    DELETE FROM harness.snapshots s
    WHERE starts_with(s.name, 'state:' || of_state || ':') AND s.name NOT IN (pin, 'state:' || of_state || ':' || number - 1)
      AND NOT EXISTS (SELECT FROM harness.snapshot_tables p JOIN harness.leases l USING (table_id, version) WHERE p.name = s.name);
    DELETE FROM harness.state_commits WHERE name = of_state AND seq <= number - 1000;
    INSERT INTO harness.state_commits
    VALUES (of_state, number, of_epoch, its_checkpoint, its_payload, its_sink, of_sources, clock_timestamp());
    RETURN number;
END;
$$;
