-- History that nothing needs is folded: moves into checkpoints, which keep their ranges, counts and digests; of versions and
-- events the number is kept. What people did (replays, reverts, changes of the schema, repairs) stays row by row.
CREATE TABLE harness.checkpoints (
    checkpoint     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id       integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    stage          text NOT NULL CHECK (stage IN ('ingest', 'tier', 'otree', 'compact')),
    kind           text NOT NULL CHECK (kind IN ('in effect', 'undone', 'abandoned')),
    schema_version integer NOT NULL,
    lo             jsonb NOT NULL,   -- by partition the lowest offset; {} of moves that are not in effect
    hi             jsonb NOT NULL,   -- by partition the highest one; the moves had every offset between them, once
    rows           bigint NOT NULL,  -- a move counts its rows over all partitions, and so does a checkpoint
    digest         jsonb,            -- by partition the sum of theirs modulo 2^64; NULL where they had none
    moves          bigint NOT NULL CHECK (moves > 0),
    first_move     bigint NOT NULL,
    last_move      bigint NOT NULL CHECK (first_move <= last_move),
    folded_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX checkpoints_of_table ON harness.checkpoints (table_id, stage, first_move);

-- Up to which version and event history is folded. Single rows below that are kept for those that need them.
CREATE TABLE harness.folds (
    table_id  integer PRIMARY KEY REFERENCES harness.tables ON DELETE CASCADE,
    version   bigint NOT NULL DEFAULT 0,
    versions  bigint NOT NULL DEFAULT 0, -- that were folded
    event     bigint NOT NULL DEFAULT 0,
    events    bigint NOT NULL DEFAULT 0, -- that were folded
    stream_hi jsonb NOT NULL DEFAULT '{}', -- by partition the highest of the versions that were folded
    folded_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- Where the views of a table are and were, and how many rows each stage brought that is in effect: kept where it changes.
CREATE TABLE harness.view_folders (
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    folder   text NOT NULL,
    PRIMARY KEY (table_id, folder)
);
CREATE TABLE harness.rows_brought (
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    stage    text NOT NULL,
    rows     bigint NOT NULL,
    PRIMARY KEY (table_id, stage)
) WITH (fillfactor = 50);
GRANT SELECT ON harness.checkpoints, harness.folds, harness.view_folders, harness.rows_brought TO harness_reader;

-- Only the last `/metadata/` of a path is the view's: a namespace or a folder of the warehouse may be named so too.
INSERT INTO harness.view_folders
SELECT DISTINCT table_id, regexp_replace(metadata, '/metadata/[^/]*$', '')
FROM harness.versions CROSS JOIN LATERAL (VALUES (stream_metadata), (batch_metadata)) AS of_view (metadata)
WHERE metadata IS NOT NULL;
INSERT INTO harness.rows_brought
SELECT table_id, stage, coalesce(sum(rows), 0) FROM harness.moves
WHERE stage IN ('tier', 'replay') AND state = 'COMMITTED' AND undone_by IS NULL GROUP BY table_id, stage;

CREATE FUNCTION harness.note_folders() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO harness.view_folders (table_id, folder)
    SELECT DISTINCT NEW.table_id, regexp_replace(m.metadata, '/metadata/[^/]*$', '')
    FROM (VALUES (NEW.stream_metadata), (NEW.batch_metadata)) AS m (metadata) WHERE m.metadata IS NOT NULL
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END;
$$;
CREATE TRIGGER note_folders AFTER INSERT ON harness.versions FOR EACH ROW EXECUTE FUNCTION harness.note_folders();

-- Not of ingest: its writers account in rows of their own, so that none waits for another.
CREATE FUNCTION harness.count_rows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before bigint := 0;
    after  bigint := CASE WHEN NEW.state = 'COMMITTED' AND NEW.undone_by IS NULL THEN coalesce(NEW.rows, 0) ELSE 0 END;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        before := CASE WHEN OLD.state = 'COMMITTED' AND OLD.undone_by IS NULL THEN coalesce(OLD.rows, 0) ELSE 0 END;
    END IF;
    IF before <> after THEN
        INSERT INTO harness.rows_brought AS r (table_id, stage, rows) VALUES (NEW.table_id, NEW.stage, after - before)
        ON CONFLICT (table_id, stage) DO UPDATE SET rows = r.rows + excluded.rows;
    END IF;
    RETURN NULL;
END;
$$;
CREATE TRIGGER count_new_rows AFTER INSERT ON harness.moves
FOR EACH ROW WHEN (NEW.stage IN ('tier', 'replay')) EXECUTE FUNCTION harness.count_rows();
CREATE TRIGGER count_changed_rows AFTER UPDATE ON harness.moves
FOR EACH ROW WHEN (NEW.stage IN ('tier', 'replay')) EXECUTE FUNCTION harness.count_rows();

-- For those that look a version up by its move, the newest commit of a stage, and what names a move that is to go.
CREATE INDEX versions_by_move ON harness.versions (move_id);
CREATE INDEX versions_by_time ON harness.versions (table_id, committed_at, version);
CREATE INDEX versions_of_reverts ON harness.versions (table_id, version) WHERE revert_of IS NOT NULL;
CREATE INDEX committed_moves ON harness.moves (table_id, stage, move_id) WHERE state = 'COMMITTED';
CREATE INDEX abandoned_moves ON harness.moves (table_id, move_id) WHERE state = 'ABANDONED';
CREATE INDEX undone_moves ON harness.moves (undone_by) WHERE undone_by IS NOT NULL;
CREATE INDEX child_moves ON harness.moves (parent_move) WHERE parent_move IS NOT NULL;
CREATE INDEX corrections_by_move ON harness.corrections (move_id);
CREATE INDEX quarantine_refused_by ON harness.quarantine (table_id) WHERE refused_by IS NOT NULL;

-- Fold the given versions: those that stay below *through* are all that are not named. HP020: one of them is needed, or the
-- fold does not go on from the one before.
CREATE FUNCTION harness.fold_versions(of_table integer, of_before bigint, through bigint, of_versions bigint[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone    bigint;
    highest jsonb;
BEGIN
    INSERT INTO harness.folds (table_id) VALUES (of_table) ON CONFLICT DO NOTHING;
    PERFORM FROM harness.folds f WHERE f.table_id = of_table AND f.version = of_before AND through >= of_before FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'history of table % is not folded up to version %', of_table, of_before USING ERRCODE = 'HP020';
    END IF;
    WITH removed AS (
        DELETE FROM harness.versions v USING harness.tables t
        WHERE v.table_id = of_table AND v.version = ANY(of_versions) AND t.table_id = of_table
          AND v.version < t.retained_from AND v.version <= through AND v.revert_of IS NULL
          AND v.committed_at < clock_timestamp() - interval '1 hour'
          AND v.version > (SELECT min(o.version) FROM harness.versions o WHERE o.table_id = of_table)
          AND NOT EXISTS (SELECT FROM harness.leases l WHERE l.table_id = of_table AND l.version = v.version)
          AND NOT EXISTS (SELECT FROM harness.snapshot_tables p WHERE p.table_id = of_table AND p.version = v.version)
          AND NOT EXISTS (SELECT FROM harness.mirrors m
                          WHERE m.table_id = of_table AND (m.version = v.version OR v.version = ANY(m.holds)))
          AND NOT EXISTS (SELECT FROM harness.cuts c WHERE c.table_id = of_table AND c.version = v.version)
          AND NOT EXISTS (SELECT FROM harness.named_cuts c WHERE c.table_id = of_table AND c.version = v.version)
          AND NOT EXISTS (SELECT FROM harness.moves m WHERE m.table_id = of_table AND m.state IN ('PLANNED', 'QUARANTINED')
                          AND m.base_version = v.version)
        RETURNING v.bounds
    )
    SELECT (SELECT count(*) FROM removed),
           (SELECT jsonb_object_agg(h.key, h.high) FROM (
               SELECT b.key, max((b.value ->> 'stream_hi')::bigint) AS high
               FROM removed r, jsonb_each(r.bounds) b GROUP BY b.key) h)
    INTO gone, highest;
    IF gone <> cardinality(of_versions) THEN
        RAISE EXCEPTION '% of % versions of table % are needed, or are gone', cardinality(of_versions) - gone,
            cardinality(of_versions), of_table USING ERRCODE = 'HP020';
    END IF;
    UPDATE harness.folds f
    SET version = through, versions = f.versions + gone, folded_at = clock_timestamp(), stream_hi = f.stream_hi || coalesce((
        SELECT jsonb_object_agg(h.key, greatest(h.value::bigint, (f.stream_hi ->> h.key)::bigint))
        FROM jsonb_each_text(highest) h), '{}')
    WHERE f.table_id = of_table;
    RETURN gone;
END;
$$;

-- Fold moves and checkpoints into one checkpoint, which is made of what is removed. The moves are of one stage, kind and
-- schema. HP020: one of them is needed, or those in effect do not lie side by side.
CREATE FUNCTION harness.fold_moves(of_table integer, of_moves bigint[], of_checkpoints bigint[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts bigint;
    kinds bigint;
    holes bigint;
    made  bigint;
BEGIN
    WITH removed AS (
        DELETE FROM harness.moves m
        WHERE m.table_id = of_table AND m.move_id = ANY(of_moves) AND m.stage IN ('ingest', 'tier', 'otree', 'compact')
          AND m.state IN ('COMMITTED', 'ABANDONED') AND m.trigger NOT IN ('accept-loss', 'accept-foreign', 'reconcile')
          AND m.recall IS NULL AND m.parts = '[]'
          AND coalesce(m.committed_at, m.planned_at) < clock_timestamp() - interval '1 hour'
          AND m.move_id <> ALL(ARRAY(
              SELECT unnest(q.refused_by) FROM harness.quarantine q
              WHERE q.table_id = of_table AND q.refused_by IS NOT NULL))
        RETURNING *
    ), dropped AS (
        DELETE FROM harness.checkpoints c WHERE c.table_id = of_table AND c.checkpoint = ANY(of_checkpoints) RETURNING *
    ), part AS (
        SELECT stage, CASE WHEN state = 'ABANDONED' THEN 'abandoned' WHEN undone_by IS NULL THEN 'in effect' ELSE 'undone' END
               AS kind, schema_version, lo, hi, coalesce(rows, 0) AS rows, digest::jsonb AS digest, 1::bigint AS moves,
               move_id AS first_move, move_id AS last_move
        FROM removed
        UNION ALL
        SELECT stage, kind, schema_version, lo, hi, rows, digest, moves, first_move, last_move FROM dropped
    ), ranges AS (
        SELECT l.key, min(l.value::bigint) AS low, max((p.hi ->> l.key)::bigint) AS high,
               sum((p.hi ->> l.key)::bigint - l.value::bigint) AS length
        FROM part p, jsonb_each_text(p.lo) l WHERE p.kind = 'in effect' GROUP BY l.key
    ), made AS (
        INSERT INTO harness.checkpoints
            (table_id, stage, kind, schema_version, lo, hi, rows, digest, moves, first_move, last_move)
        SELECT of_table, p.stage, p.kind, p.schema_version,
               coalesce((SELECT jsonb_object_agg(r.key, r.low) FROM ranges r), '{}'),
               coalesce((SELECT jsonb_object_agg(r.key, r.high) FROM ranges r), '{}'),
               sum(p.rows), CASE WHEN p.kind = 'in effect' AND bool_and(p.digest IS NOT NULL) THEN coalesce((
                   SELECT jsonb_object_agg(d.key, d.digest) FROM (
                       SELECT e.key, sum(e.value::numeric) % 18446744073709551616 AS digest
                       FROM part q, jsonb_each_text(q.digest) e GROUP BY e.key) d), '{}') END,
               sum(p.moves), min(p.first_move), max(p.last_move)
        FROM part p GROUP BY p.stage, p.kind, p.schema_version RETURNING checkpoint
    )
    SELECT (SELECT count(*) FROM part), (SELECT count(*) FROM made),
           (SELECT count(*) FROM ranges r WHERE r.high - r.low <> r.length), (SELECT max(m.checkpoint) FROM made m)
    INTO parts, kinds, holes, made;
    IF parts <> cardinality(of_moves) + cardinality(of_checkpoints) OR kinds <> 1 OR holes > 0 THEN
        RAISE EXCEPTION 'moves of table % are not to be folded: % of % there and not needed, % kinds, % partitions with holes',
            of_table, parts, cardinality(of_moves) + cardinality(of_checkpoints), kinds, holes USING ERRCODE = 'HP020';
    END IF;
    RETURN made;
END;
$$;

-- Fold the events up to *through*, but for those that begin a history: their numbers leave others out. HP020: a subscriber
-- has not dealt with them.
CREATE FUNCTION harness.fold_events(of_table integer, through bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone bigint;
BEGIN
    INSERT INTO harness.folds (table_id) VALUES (of_table) ON CONFLICT DO NOTHING;
    IF EXISTS (SELECT FROM harness.subscribers s WHERE s.table_id = of_table AND s.dealt_with < through)
       OR EXISTS (SELECT FROM harness.outbox o JOIN harness.folds f USING (table_id)
                  WHERE o.table_id = of_table AND o.seq > f.event AND o.seq <= through
                    AND (o.payload ->> 'version')::bigint > f.version) THEN
        RAISE EXCEPTION 'events of table % up to % are needed', of_table, through USING ERRCODE = 'HP020';
    END IF;
    WITH removed AS (
        DELETE FROM harness.outbox o
        WHERE o.table_id = of_table AND o.seq <= through AND o.event NOT IN ('history_lost', 'promoted') RETURNING o.seq
    )
    SELECT count(*) FROM removed INTO gone;
    UPDATE harness.folds f SET event = greatest(f.event, through), events = f.events + gone, folded_at = clock_timestamp()
    WHERE f.table_id = of_table;
    RETURN gone;
END;
$$;

GRANT SELECT, INSERT, UPDATE, DELETE ON harness.checkpoints TO harness_definer;
GRANT SELECT, INSERT, UPDATE ON harness.folds, harness.view_folders, harness.rows_brought TO harness_definer;
GRANT SELECT, DELETE ON harness.versions, harness.moves, harness.outbox TO harness_definer;
GRANT UPDATE ON harness.folds TO harness_definer;
GRANT SELECT ON harness.tables, harness.leases, harness.snapshot_tables, harness.mirrors, harness.cuts, harness.named_cuts,
    harness.quarantine, harness.subscribers TO harness_definer;
GRANT CREATE ON SCHEMA harness TO harness_definer; -- a function is given only to who could have made it there
ALTER FUNCTION harness.fold_versions OWNER TO harness_definer;
ALTER FUNCTION harness.fold_moves OWNER TO harness_definer;
ALTER FUNCTION harness.fold_events OWNER TO harness_definer;
ALTER FUNCTION harness.note_folders OWNER TO harness_definer;
ALTER FUNCTION harness.count_rows OWNER TO harness_definer;
REVOKE CREATE ON SCHEMA harness FROM harness_definer;
REVOKE ALL ON FUNCTION harness.fold_versions, harness.fold_moves, harness.fold_events, harness.note_folders, harness.count_rows
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION harness.fold_versions, harness.fold_moves, harness.fold_events TO harness_worker;
