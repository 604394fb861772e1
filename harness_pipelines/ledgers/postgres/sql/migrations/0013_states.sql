-- Where consumers are, with what they keep elsewhere. A commit pins a cut of every table that agrees with it, as a
-- named snapshot does. The functions are all that a consumer needs, in any language; they run with their owner's rights.
CREATE TABLE harness.states (
    name        text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_.-]{0,62}$'),
    holder      uuid NOT NULL,
    epoch       bigint NOT NULL,           -- strictly larger with every hold
    lease_until timestamptz NOT NULL
);
CREATE TABLE harness.state_commits (
    name         text NOT NULL REFERENCES harness.states ON DELETE CASCADE,
    seq          bigint NOT NULL,          -- without gaps
    epoch        bigint NOT NULL,
    checkpoint   text NOT NULL,            -- the consumer's own name of it
    payload      jsonb NOT NULL,           -- the consumer's own, never looked at
    sink         jsonb NOT NULL,           -- version or snapshot of what the consumer wrote, never looked at
    sources      jsonb NOT NULL,           -- {"namespace.name": {"partition": next offset}}
    committed_at timestamptz NOT NULL,
    PRIMARY KEY (name, seq)
);

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'harness_consumer') THEN
        CREATE ROLE harness_consumer NOLOGIN;
    END IF;
END;
$$;
GRANT harness_reader TO harness_consumer;
GRANT harness_consumer TO harness_worker;
GRANT SELECT ON harness.states, harness.state_commits TO harness_reader;

-- Take a state for some time; returns the epoch. HP011: somebody holds it.
CREATE FUNCTION harness.state_hold(of_state text, by_holder uuid, lasting interval) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    taken bigint;
BEGIN
    INSERT INTO harness.states AS s (name, holder, epoch, lease_until)
    VALUES (of_state, by_holder, 1, clock_timestamp() + lasting)
    ON CONFLICT (name) DO UPDATE
    SET holder = by_holder, epoch = s.epoch + 1, lease_until = clock_timestamp() + lasting
    WHERE s.lease_until <= clock_timestamp()
    RETURNING s.epoch INTO taken;
    IF taken IS NULL THEN
        RAISE EXCEPTION 'state % is held by another one until % UTC', of_state,
            (SELECT to_char(lease_until, 'HH24:MI:SS') FROM harness.states WHERE name = of_state) USING ERRCODE = 'HP011';
    END IF;
    RETURN taken;
END;
$$;

-- Lengthen a hold, or end it with an interval of 0. HP012: it is over.
CREATE FUNCTION harness.state_renew(of_state text, by_holder uuid, of_epoch bigint, lasting interval) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    UPDATE harness.states SET lease_until = clock_timestamp() + lasting
    WHERE name = of_state AND holder = by_holder AND epoch = of_epoch AND lease_until > clock_timestamp();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'state %: the hold of epoch % is over; nothing was written', of_state, of_epoch USING ERRCODE = 'HP012';
    END IF;
END;
$$;

-- Record that all of *of_sources* below its offsets is in the consumer's state; returns the number of the commit. The
-- hold is lengthened by *lasting*. HP012: the hold is over. HP013: no such table or partition, or an offset below its
-- start. HP014: an offset that ingest has not come to. HP015: a keyed table that is merged beyond an offset.
CREATE FUNCTION harness.state_commit(
    of_state text, by_holder uuid, of_epoch bigint, lasting interval,
    of_sources jsonb, its_checkpoint text, its_payload jsonb DEFAULT '{}', its_sink jsonb DEFAULT 'null'
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    number  bigint;
    pin     text;
    source  record;
    wrong   record;
    pinned  record;
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
        -- The newest version that is merged no further; of an append table any will do, cut at the offsets.
        SELECT v.version, v.bounds INTO pinned FROM harness.versions v
        WHERE v.table_id = source.table_id AND v.version >= source.retained_from AND NOT EXISTS (
            SELECT FROM jsonb_each(v.bounds) b WHERE b.key::integer >= 0 AND (b.value ->> 'batch_hi')::bigint
                > coalesce((source.offsets ->> b.key)::bigint, (b.value ->> 'start')::bigint))
        ORDER BY v.version DESC LIMIT 1;
        IF NOT FOUND AND source.keyed THEN
            RAISE EXCEPTION 'state %: no retained version of % shows its rows as of these offsets, they are merged beyond them',
                of_state, source.name USING ERRCODE = 'HP015';
        ELSIF NOT FOUND THEN
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

-- Forget a state and let go of what it pins. HP011: somebody holds it.
CREATE FUNCTION harness.state_drop(of_state text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    held timestamptz;
BEGIN
    SELECT lease_until INTO held FROM harness.states WHERE name = of_state FOR UPDATE;
    IF held > clock_timestamp() THEN
        RAISE EXCEPTION 'state % is held until % UTC', of_state, to_char(held, 'HH24:MI:SS') USING ERRCODE = 'HP011';
    END IF;
    DELETE FROM harness.snapshots WHERE starts_with(name, 'state:' || of_state || ':');
    DELETE FROM harness.states WHERE name = of_state;
    RETURN held IS NOT NULL;
END;
$$;

REVOKE ALL ON FUNCTION harness.state_hold, harness.state_renew, harness.state_commit, harness.state_drop FROM PUBLIC;
GRANT EXECUTE ON FUNCTION harness.state_hold, harness.state_renew, harness.state_commit, harness.state_drop TO harness_consumer;
