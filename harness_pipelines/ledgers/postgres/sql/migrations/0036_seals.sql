-- What was set aside and what was pinned is as it was written: each row has the digest of what it says. The harness's own
-- statements change a row with `digest = NULL`, and a trigger fills in the new one. A row that somebody changed beside them
-- keeps the old digest, whatever becomes of it later, and fsck names it.
ALTER TABLE harness.quarantine ADD COLUMN digest bytea;
ALTER TABLE harness.snapshot_tables ADD COLUMN digest bytea;

CREATE FUNCTION harness.refused_digest(r harness.quarantine) RETURNS bytea
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256(convert_to(jsonb_build_array(
        r.table_id, r.partition, r."offset", r.reason, r.detail, r.kafka_ms, r.schema_id, r.whole, r.in_lake, r.key_bytes,
        r.value_bytes, encode(r.key_sha256, 'hex'), encode(r.value_sha256, 'hex'), encode(sha256(r.key), 'hex'),
        encode(sha256(r.value), 'hex'), encode(sha256(convert_to(r.headers::text, 'UTF8')), 'hex'), r.state, r.settled_by,
        r.refused_by, extract(epoch FROM r.recorded_at)::text, extract(epoch FROM r.settled_at)::text,
        extract(epoch FROM r.dropped_at)::text
    )::text, 'UTF8'))
$$;
CREATE FUNCTION harness.pin_digest(r harness.snapshot_tables) RETURNS bytea
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256(convert_to(jsonb_build_array(r.name, r.table_id, r.version, r.bounds)::text, 'UTF8'))
$$;

UPDATE harness.quarantine q SET digest = harness.refused_digest(q);
UPDATE harness.snapshot_tables p SET digest = harness.pin_digest(p);
ALTER TABLE harness.quarantine ALTER COLUMN digest SET NOT NULL;
ALTER TABLE harness.snapshot_tables ALTER COLUMN digest SET NOT NULL;

CREATE FUNCTION harness.seal_refused() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.digest <> harness.refused_digest(OLD) THEN
        NEW.digest := OLD.digest; -- what is not as it was written stays so
    ELSE
        NEW.digest := harness.refused_digest(NEW);
    END IF;
    RETURN NEW;
END;
$$;
CREATE FUNCTION harness.seal_pin() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.digest := harness.pin_digest(NEW);
    RETURN NEW;
END;
$$;
CREATE TRIGGER seal_new BEFORE INSERT ON harness.quarantine FOR EACH ROW EXECUTE FUNCTION harness.seal_refused();
CREATE TRIGGER seal_changed BEFORE UPDATE ON harness.quarantine
FOR EACH ROW WHEN (NEW.digest IS NULL) EXECUTE FUNCTION harness.seal_refused();
CREATE TRIGGER seal_new BEFORE INSERT ON harness.snapshot_tables FOR EACH ROW EXECUTE FUNCTION harness.seal_pin();
GRANT UPDATE (digest) ON harness.quarantine TO harness_worker;

-- Times that no clock shows hold what they are on for ever, and drivers cannot read them.
UPDATE harness.claims SET lease_until = clock_timestamp() WHERE lease_until NOT BETWEEN '1970-01-01Z' AND '9000-01-01Z';
UPDATE harness.states SET lease_until = clock_timestamp() WHERE lease_until NOT BETWEEN '1970-01-01Z' AND '9000-01-01Z';
DELETE FROM harness.leases WHERE born NOT BETWEEN '1970-01-01Z' AND '9000-01-01Z' OR until < '1970-01-01Z';
ALTER TABLE harness.claims ADD CONSTRAINT claims_in_time CHECK (lease_until BETWEEN '1970-01-01Z' AND '9000-01-01Z');
ALTER TABLE harness.states ADD CONSTRAINT states_in_time CHECK (lease_until BETWEEN '1970-01-01Z' AND '9000-01-01Z');
ALTER TABLE harness.leases ADD CONSTRAINT leases_in_time CHECK (born BETWEEN '1970-01-01Z' AND '9000-01-01Z' AND until >= '1970-01-01Z');

-- Why the last delivery to a subscriber failed; a commit after it says that a later one arrived.
ALTER TABLE harness.states ADD COLUMN error text, ADD COLUMN error_at timestamptz;
CREATE FUNCTION harness.state_failed(of_state text, its_error text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE harness.states SET error = left(its_error, 2000), error_at = clock_timestamp() WHERE name = of_state;
    RETURN FOUND;
END;
$$;
-- Until when a state is held, in UTC whatever the session's time zone is, with the day.
CREATE OR REPLACE FUNCTION harness.state_hold(of_state text, by_holder uuid, lasting interval) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
            (SELECT to_char(lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') FROM harness.states WHERE name = of_state) USING ERRCODE = 'HP011';
    END IF;
    RETURN taken;
END;
$$;

CREATE OR REPLACE FUNCTION harness.state_drop(of_state text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held timestamptz;
BEGIN
    SELECT lease_until INTO held FROM harness.states WHERE name = of_state FOR UPDATE;
    IF held > clock_timestamp() THEN
        RAISE EXCEPTION 'state % is held until % UTC', of_state, to_char(held AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') USING ERRCODE = 'HP011';
    END IF;
    DELETE FROM harness.snapshots WHERE starts_with(name, 'state:' || of_state || ':');
    DELETE FROM harness.states WHERE name = of_state;
    RETURN held IS NOT NULL;
END;
$$;

GRANT CREATE ON SCHEMA harness TO harness_definer; -- a function is given only to who could have made it there
ALTER FUNCTION harness.state_failed OWNER TO harness_definer;
REVOKE CREATE ON SCHEMA harness FROM harness_definer;
REVOKE ALL ON FUNCTION harness.state_failed, harness.refused_digest, harness.pin_digest, harness.seal_refused, harness.seal_pin
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION harness.state_failed TO harness_consumer;
GRANT EXECUTE ON FUNCTION harness.refused_digest, harness.pin_digest TO harness_reader, harness_definer;

CREATE OR REPLACE VIEW harness.subscribers AS
SELECT t.table_id, s.name, c.checkpoint::bigint AS dealt_with, t.outbox_seq - c.checkpoint::bigint AS lag, c.committed_at,
       s.lease_until, CASE WHEN s.error_at > c.committed_at THEN s.error END AS error,
       CASE WHEN s.error_at > c.committed_at THEN s.error_at END AS error_at
FROM harness.states s
JOIN LATERAL (
    SELECT checkpoint, payload, committed_at FROM harness.state_commits k WHERE k.name = s.name ORDER BY k.seq DESC LIMIT 1
) c ON jsonb_typeof(c.payload) = 'object' AND c.checkpoint ~ '^[0-9]{1,18}$'
JOIN harness.tables t ON t.namespace || '.' || t.name = c.payload ->> 'events_of';

-- How large the buffer of a table was when somebody looked, twice: between the older look and now it grew.
CREATE TABLE harness.buffer_sizes (
    table_id  integer PRIMARY KEY REFERENCES harness.tables ON DELETE CASCADE,
    old_bytes bigint NOT NULL,
    old_at    timestamptz NOT NULL,
    new_bytes bigint NOT NULL,
    new_at    timestamptz NOT NULL
) WITH (fillfactor = 50);
GRANT SELECT ON harness.buffer_sizes TO harness_reader;
GRANT INSERT, UPDATE ON harness.buffer_sizes TO harness_worker;

-- A spec that cannot be read counts as one without rules: it holds up the look at no other table.
CREATE FUNCTION harness.spec_seconds(spec jsonb, at text[], otherwise float8) RETURNS float8
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN jsonb_typeof(spec #> at) = 'number' THEN least(abs((spec #> at)::numeric), 1e9)::float8 ELSE otherwise END
$$;
REVOKE ALL ON FUNCTION harness.spec_seconds FROM PUBLIC;
GRANT EXECUTE ON FUNCTION harness.spec_seconds TO harness_reader, harness_definer;

CREATE OR REPLACE VIEW harness.stage_work AS
WITH p AS (
    SELECT i.table_id, sum(greatest(e.log_end - i.buffer_hi, 0)) AS unread, sum(i.buffer_hi) AS buffer_at,
           sum(i.buffer_hi - l.stream_hi) AS buffered, sum(l.stream_hi) AS stream_at,
           sum(l.stream_hi - l.batch_hi) AS unmerged, sum(l.batch_hi) AS batch_at
    FROM harness.ingest_positions i
    JOIN harness.lake_positions l USING (table_id, partition)
    LEFT JOIN harness.log_ends e USING (table_id, partition)
    WHERE i.partition >= 0
    GROUP BY i.table_id
), rules AS (
    SELECT t.table_id, t.retained_from, coalesce(t.spec ->> 'buffer' = 'none', false) AS reads_directly,
           CASE WHEN t.spec ->> 'mode' = 'runs'
                THEN greatest(harness.spec_seconds(t.spec, '{tier,max_age}', 0), harness.spec_seconds(t.spec, '{freshness,lake}', 0) / 2)
                ELSE harness.spec_seconds(t.spec, '{tier,max_age}', 0) END AS tier_s,
           harness.spec_seconds(t.spec, '{freshness,lake}', 0) AS lake_s,
           -- A worker looks every minute, a run of Dagster every half hour.
           CASE WHEN t.spec ->> 'mode' = 'runs' THEN 1860 ELSE 60 END::float8 AS expire_s,
           make_interval(secs => harness.spec_seconds(t.spec, '{retention,versions}', 1e9)) AS versions,
           make_interval(secs => greatest(harness.spec_seconds(t.spec, '{retention,grace}', 1e9), 30)) AS grace
    FROM harness.tables t
), open_moves AS (
    -- And acts that people ask for, which have none: files that were there before them are not removed meanwhile.
    SELECT table_id, min(planned_at) AS planned_at FROM harness.moves
    WHERE state = 'PLANNED' OR state = 'ABANDONED' AND epoch = 0 AND planned_at > clock_timestamp() - interval '1 hour'
    GROUP BY table_id
)
SELECT r.table_id, CASE WHEN r.reads_directly THEN 'tier' ELSE 'ingest' END AS stage, 'records in the log' AS what,
       p.buffer_at::text AS marker, CASE WHEN r.reads_directly THEN r.tier_s ELSE 0 END AS allowed_s
FROM rules r JOIN p USING (table_id) WHERE p.unread > 0
UNION ALL
SELECT r.table_id, 'tier', 'records in the buffer', p.stream_at::text, r.tier_s
FROM rules r JOIN p USING (table_id) WHERE p.buffered > 0 AND NOT r.reads_directly
UNION ALL
SELECT r.table_id, 'otree', 'records to merge', p.batch_at::text, r.lake_s
FROM rules r JOIN p USING (table_id)
WHERE p.unmerged > 0 AND (
    SELECT v.batch_metadata IS NOT NULL FROM harness.versions v WHERE v.table_id = r.table_id ORDER BY v.version DESC LIMIT 1)
UNION ALL
SELECT m.table_id, m.stage, 'an open move', coalesce((
           SELECT c.move_id FROM harness.moves c
           WHERE c.table_id = m.table_id AND c.stage = m.stage AND c.state = 'COMMITTED' ORDER BY c.move_id DESC LIMIT 1
       )::text, ''),
       CASE WHEN bool_or(m.error IS NOT NULL OR m.state = 'QUARANTINED') THEN 0 WHEN m.stage = 'tier' THEN 120 ELSE 600 END
FROM harness.moves m WHERE m.state IN ('PLANNED', 'QUARANTINED') GROUP BY m.table_id, m.stage
UNION ALL
SELECT table_id, 'otree', 'a request to ' || act, min(recall)::text, 0
FROM harness.recalls WHERE state = 'asked' GROUP BY table_id, act
UNION ALL
SELECT table_id, 'otree', 'a request to recluster', min(request)::text, 0
FROM harness.reclusters WHERE ended_at IS NULL GROUP BY table_id
UNION ALL
SELECT table_id, 'events', 'events for ' || name, dealt_with::text, 0 FROM harness.subscribers WHERE lag > 0
UNION ALL
-- While a move of compact is open that is what waits.
SELECT w.table_id, w.stage, 'small files', coalesce((
           SELECT c.move_id FROM harness.moves c
           WHERE c.table_id = w.table_id AND c.stage = w.stage AND c.state = 'COMMITTED' ORDER BY c.move_id DESC LIMIT 1
       )::text, ''), r.tier_s
FROM harness.lake_work w JOIN rules r USING (table_id)
WHERE NOT EXISTS (
    SELECT FROM harness.moves m WHERE m.table_id = w.table_id AND m.stage = w.stage AND m.state IN ('PLANNED', 'QUARANTINED'))
UNION ALL
SELECT r.table_id, 'expire', 'files to remove', min(f.since)::text, r.expire_s
FROM rules r JOIN harness.condemned_files f USING (table_id) LEFT JOIN open_moves o USING (table_id)
WHERE f.since <= least(clock_timestamp() - r.grace, o.planned_at) GROUP BY r.table_id, r.expire_s
UNION ALL
SELECT r.table_id, 'expire', 'segments to drop', min(s.seq)::text, r.expire_s
FROM rules r JOIN harness.segments s USING (table_id)
WHERE s.state = 'retired' AND s.retired_at <= clock_timestamp() - r.grace GROUP BY r.table_id, r.expire_s
UNION ALL
-- Those that are superseded for longer than they are kept.
SELECT r.table_id, 'expire', 'versions to let go of', r.retained_from::text, r.expire_s
FROM rules r WHERE (
    SELECT v.committed_at FROM harness.versions v
    WHERE v.table_id = r.table_id AND v.version >= r.retained_from ORDER BY v.version LIMIT 1 OFFSET 1
) <= clock_timestamp() - r.versions;
