-- Cuts: what a read sees, written down as one snapshot of Iceberg, so that any engine reads it. A reader's login publishes
-- and serves them, by functions. The row of a cut keeps its files and its version's from expire; it holds no row of the buffer.

-- Where servers put files for the cuts of a table, known before a file is there. A table that none served has no row.
CREATE TABLE harness.cut_folders (
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    folder   text NOT NULL CHECK (octet_length(folder) <= 4096),
    PRIMARY KEY (table_id, folder)
);

CREATE TABLE harness.cuts (
    table_id       integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    sequence       bigint NOT NULL CHECK (sequence > 0),
    snapshot_id    bigint NOT NULL CHECK (snapshot_id > 0),
    timestamp_ms   bigint NOT NULL CHECK (timestamp_ms BETWEEN 0 AND 221845392000000), -- the year 9000
    version        bigint NOT NULL,
    schema_version integer NOT NULL,
    bounds         jsonb NOT NULL CHECK (jsonb_typeof(bounds) = 'object'),
    metadata       text NOT NULL,
    chunks         jsonb NOT NULL CHECK (jsonb_typeof(chunks) = 'array'),  -- of the last cut: the next one names them again
    parts          jsonb NOT NULL CHECK (jsonb_typeof(parts) = 'object'),  -- as the chunks
    files          text[] NOT NULL,            -- all that it names in the folders of cuts
    number         bigint NOT NULL,            -- how many cuts of the table there were, with this one
    history        text NOT NULL DEFAULT harness.history(), -- that it was published in
    made_by        name NOT NULL DEFAULT session_user,
    looked_at      timestamptz NOT NULL DEFAULT clock_timestamp(), -- it shows all that was there then
    published_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    served_at      timestamptz NOT NULL,
    until          timestamptz NOT NULL,
    replaced_at    timestamptz,                -- when the next one was published
    retired_at     timestamptz,                -- when a server found that a file of it is lost: no other server shows it
    PRIMARY KEY (table_id, sequence),
    CONSTRAINT cuts_last_a_day CHECK (until <= served_at + interval '24 hours'),
    CONSTRAINT cuts_in_time CHECK (
        served_at BETWEEN '1970-01-01Z' AND '9000-01-01Z' AND until >= '1970-01-01Z'
        AND looked_at BETWEEN '1970-01-01Z' AND '9000-01-01Z' AND published_at BETWEEN '1970-01-01Z' AND '9000-01-01Z'
        AND coalesce(replaced_at BETWEEN '1970-01-01Z' AND '9000-01-01Z', true)
        AND coalesce(retired_at BETWEEN '1970-01-01Z' AND '9000-01-01Z', true)),
    CONSTRAINT cuts_are_small CHECK ( -- as `protocol.cuts` has it
        cardinality(files) <= 1000 AND octet_length(array_to_string(files, '')) <= 262144
        AND octet_length(bounds::text) <= 1048576 AND octet_length(parts::text) <= 1048576
        AND octet_length(chunks::text) <= 16777216)
) WITH (fillfactor = 70);
-- The cut after a retired one may be of the same state, and an id says which rows a cut has.
CREATE UNIQUE INDEX cuts_have_one_id ON harness.cuts (table_id, snapshot_id) WHERE retired_at IS NULL;

-- Cuts of named snapshots. Each is of the version and the bounds that a snapshot pins, so it never changes: it is made once and
-- given out again. None follows on another one, and no cut of `harness.cuts` follows on one of these.
CREATE TABLE harness.named_cuts (
    table_id       integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    sequence       bigint NOT NULL CHECK (sequence > 0),
    snapshot_id    bigint NOT NULL CHECK (snapshot_id > 0),
    timestamp_ms   bigint NOT NULL CHECK (timestamp_ms BETWEEN 0 AND 221845392000000),
    version        bigint NOT NULL,
    schema_version integer NOT NULL,
    bounds         jsonb NOT NULL CHECK (jsonb_typeof(bounds) = 'object'),
    metadata       text NOT NULL,
    chunks         jsonb NOT NULL CHECK (jsonb_typeof(chunks) = 'array'),  -- with the sizes that they were written with
    files          text[] NOT NULL,
    history        text NOT NULL DEFAULT harness.history(),
    made_by        name NOT NULL DEFAULT session_user,
    looked_at      timestamptz NOT NULL,
    published_at   timestamptz NOT NULL,
    served_at      timestamptz NOT NULL,
    until          timestamptz NOT NULL,
    retired_at     timestamptz,
    PRIMARY KEY (table_id, sequence),
    CONSTRAINT named_cuts_last_a_day CHECK (until <= served_at + interval '24 hours'),
    CONSTRAINT named_cuts_in_time CHECK (
        served_at BETWEEN '1970-01-01Z' AND '9000-01-01Z' AND until >= '1970-01-01Z'
        AND looked_at BETWEEN '1970-01-01Z' AND '9000-01-01Z' AND published_at BETWEEN '1970-01-01Z' AND '9000-01-01Z'
        AND coalesce(retired_at BETWEEN '1970-01-01Z' AND '9000-01-01Z', true)),
    CONSTRAINT named_cuts_are_small CHECK ( -- as those above
        cardinality(files) <= 1000 AND octet_length(array_to_string(files, '')) <= 262144
        AND octet_length(bounds::text) <= 1048576 AND octet_length(chunks::text) <= 16777216)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX named_cuts_have_one_id ON harness.named_cuts (table_id, snapshot_id);

GRANT SELECT ON harness.cuts, harness.named_cuts, harness.cut_folders TO harness_reader, harness_definer;
GRANT SELECT ON harness.log_ends TO harness_definer;
GRANT INSERT ON harness.cut_folders TO harness_definer;
GRANT INSERT, UPDATE, DELETE ON harness.cuts, harness.named_cuts TO harness_definer;
GRANT UPDATE, DELETE ON harness.cuts, harness.named_cuts TO harness_worker;

-- The folder beside that of the view whose metadata file is given. Its name cannot be another table's, since that folder's
-- name is only this one's.
CREATE FUNCTION harness.cut_folder(its_name text, its_metadata text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT regexp_replace(folder, '/[^/]*$', '') || '/' || its_name || '__fresh-'
        || left(encode(sha256(convert_to(folder, 'UTF8')), 'hex'), 8)
    FROM regexp_replace(its_metadata, '/metadata/[^/]*$', '') AS folder
$$;

-- Note the folder that cuts of a version are put in, before any file is; NULL: of the newest one.
CREATE FUNCTION harness.cut_prepare(of_table integer, of_version bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1752330865, of_table); -- a drop that is under way ends first
    INSERT INTO harness.cut_folders (table_id, folder)
    SELECT t.table_id, harness.cut_folder(t.name, v.stream_metadata)
    FROM harness.tables t
    CROSS JOIN LATERAL (
        SELECT * FROM harness.versions n WHERE n.table_id = of_table AND (of_version IS NULL OR n.version = of_version)
        ORDER BY n.version DESC LIMIT 1
    ) v
    WHERE t.table_id = of_table ON CONFLICT DO NOTHING;
END;
$$;

-- What is wrong with the bounds of a cut of *of_version*, which comes after the cut *last*; NULL: nothing. What a number is
-- is asked of its text, before it is taken for one.
CREATE FUNCTION harness.cut_bounds_wrong(of_table integer, of_version bigint, its_bounds jsonb, last harness.cuts) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buffered boolean := (SELECT spec ->> 'buffer' IS DISTINCT FROM 'none' FROM harness.tables WHERE table_id = of_table);
    wrong    record;
BEGIN
    SELECT n.key AS partition, n.value AS cut, i.buffer_hi INTO wrong
    FROM jsonb_each(its_bounds) n
    LEFT JOIN harness.ingest_positions i ON i.table_id = of_table AND i.partition::text = n.key
    WHERE i.partition IS NULL OR NOT CASE WHEN n.value::text ~ '^\[\d{1,18}, \d{1,18}, \d{1,18}, \d{1,18}\]$' THEN
        (n.value ->> 0)::bigint <= (n.value ->> 1)::bigint AND (n.value ->> 1)::bigint <= (n.value ->> 2)::bigint
        AND (n.value ->> 2)::bigint <= (n.value ->> 3)::bigint AND (NOT buffered OR (n.value ->> 3)::bigint <= i.buffer_hi)
        ELSE false END
    LIMIT 1;
    IF FOUND THEN
        RETURN format('partition %s: %s are no bounds, or end above what is ingested (%s)', left(wrong.partition, 40),
            left(wrong.cut::text, 200), coalesce(wrong.buffer_hi::text, 'nothing'));
    END IF;
    IF last.history <> harness.history() THEN -- of what the table had before a restore nothing is asked
        RETURN NULL;
    END IF;
    -- The merged state of a keyed table ends at batch_hi, which a revert or a batch view that is begun again lowers.
    -- Without a buffer the ledger does not know the end of the log. A cut that ends above what a worker found a minute
    -- after it was published was never true: what follows may end lower, but not below that.
    SELECT o.key AS partition, o.value ->> 3 AS was, its_bounds -> o.key ->> 3 AS high INTO wrong FROM jsonb_each(last.bounds) o
    LEFT JOIN harness.log_ends e ON NOT buffered AND e.table_id = of_table AND e.partition::text = o.key
        AND e.seen_at > last.published_at + interval '1 minute' AND e.log_end < (o.value ->> 3)::bigint
    WHERE coalesce((its_bounds -> o.key ->> 3)::bigint, -1) < coalesce(e.log_end, (o.value ->> 3)::bigint)
      AND NOT coalesce(of_version > last.version AND o.value -> 3 = o.value -> 1
                       AND its_bounds -> o.key -> 3 = its_bounds -> o.key -> 1, false)
    LIMIT 1;
    RETURN CASE WHEN FOUND THEN format('partition %s ends at offset %s, that of the last cut at %s', wrong.partition,
        coalesce(wrong.high, 'none'), wrong.was) END;
END;
$$;

-- What is wrong with the chunks and parts of a cut, from which other servers go on; NULL: nothing. What the lake says of a
-- file is text here: who cannot read it retires the cut.
CREATE FUNCTION harness.cut_parts_wrong(its_sequence bigint, its_chunks jsonb, its_parts jsonb, its_files text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong text;
BEGIN
    IF jsonb_typeof(its_chunks) <> 'array' OR jsonb_typeof(its_parts) <> 'object' THEN
        RETURN 'chunks are a list and parts an object';
    END IF;
    SELECT left(c::text, 200) INTO wrong FROM jsonb_array_elements(its_chunks) c
    WHERE NOT coalesce(CASE WHEN jsonb_typeof(c) = 'object' THEN
        c - '{bytes,entry,held,maker,path,ranges,read_as,rows,sequence}'::text[] = '{}'
        AND coalesce((c -> 'held')::text ~ '^\d{1,18}$', true) AND coalesce(jsonb_typeof(c -> 'read_as') = 'string', true)
        AND jsonb_typeof(c -> 'path') = 'string' AND c ->> 'path' = ANY (its_files)
        AND jsonb_typeof(c -> 'maker') = 'string' AND jsonb_typeof(c -> 'entry') = 'string'
        AND (c -> 'rows')::text ~ '^\d{1,18}$' AND (c -> 'bytes')::text ~ '^\d{1,18}$'
        AND CASE WHEN (c -> 'sequence')::text ~ '^\d{1,19}$' THEN (c ->> 'sequence')::numeric <= its_sequence ELSE false END
        AND CASE WHEN jsonb_typeof(c -> 'ranges') = 'object' THEN NOT EXISTS (
            SELECT FROM jsonb_each(c -> 'ranges') r
            WHERE NOT CASE WHEN r.key ~ '^(0|-?[1-9]\d{0,8})$' AND r.value::text ~ '^\[\d{1,18}, \d{1,18}\]$'
                THEN (r.value ->> 0)::bigint <= (r.value ->> 1)::bigint ELSE false END) ELSE false END
        ELSE false END, false)
    LIMIT 1;
    IF FOUND THEN
        RETURN format('%s is no chunk of files of the cut', wrong);
    END IF;
    SELECT left(format('%s: %s', p.key, p.value), 200) INTO wrong FROM jsonb_each(its_parts) p
    WHERE NOT coalesce(CASE WHEN jsonb_typeof(p.value) = 'object' THEN
        p.value - '{key,manifests}'::text[] = '{}' AND jsonb_typeof(p.value -> 'key') = 'string' AND jsonb_typeof(p.value -> 'manifests') = 'string'
        ELSE false END, false)
    LIMIT 1;
    RETURN CASE WHEN FOUND THEN format('%s is no part of a cut', wrong) END;
END;
$$;

-- As it was, but that a lease is born when its transaction began: so whatever was there by then its statement sees. The time of
-- the statement does not do, since its snapshot is taken when it is bound, and that time is from when it is executed.
CREATE OR REPLACE FUNCTION harness.lease_take(
    its_id uuid, of_table integer, of_version bigint, its_bounds jsonb, its_holder text, lasts interval
) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    began timestamptz := transaction_timestamp();
    ends timestamptz := least(clock_timestamp() + lasts, began + interval '24 hours');
BEGIN
    INSERT INTO harness.leases (lease_id, table_id, version, bounds, holder, until, born, taken_by)
    VALUES (its_id, of_table, of_version, its_bounds, its_holder, ends, began, session_user);
    RETURN ends;
END;
$$;

-- When the state was looked at that a cut is of, which is to be published: the time of its maker's lease. What is asked of every
-- cut, chained or named; the table's locks are held from here on. HP001, HP017, HP022: as for `cut_publish`.
CREATE FUNCTION harness.cut_checked(
    of_table integer, its_sequence bigint, its_snapshot bigint, its_timestamp bigint, of_version bigint, of_schema integer,
    its_bounds jsonb, its_metadata text, its_chunks jsonb, its_parts jsonb, its_files text[], of_lease uuid, lasts interval
) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    looked_at timestamptz;
    wrong     text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a cut is published in a transaction that is READ COMMITTED' USING ERRCODE = 'HP017';
    ELSIF num_nulls(of_table, its_sequence, its_snapshot, its_timestamp, of_version, of_schema, its_bounds, its_metadata, its_chunks,
                    its_parts, its_files, of_lease, lasts) > 0 OR jsonb_typeof(its_bounds) <> 'object'
       OR array_ndims(its_files) IS DISTINCT FROM 1 OR its_snapshot <= 0 OR its_timestamp < 0 THEN
        RAISE EXCEPTION 'a value of the cut % is missing, or of another kind', coalesce(its_snapshot::text, 'NULL')
            USING ERRCODE = 'HP017';
    END IF;
    wrong := harness.cut_parts_wrong(its_sequence, its_chunks, its_parts, its_files);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'HP017';
    END IF;
    PERFORM pg_advisory_xact_lock_shared(1752330865, of_table); -- what expire decides later sees the cut
    PERFORM pg_advisory_xact_lock(1752330871, of_table);
    PERFORM FROM harness.tables t WHERE t.table_id = of_table;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the table is not there any more' USING ERRCODE = 'HP022';
    END IF;
    SELECT l.born INTO looked_at FROM harness.leases l
    WHERE l.lease_id = of_lease AND l.table_id = of_table AND l.version = of_version AND l.until > clock_timestamp()
      AND l.born > clock_timestamp() - interval '2 minutes' AND l.taken_by = session_user;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease % of version % is over, or older than two minutes', of_lease, of_version USING ERRCODE = 'HP001';
    END IF;
    PERFORM FROM harness.versions v
    WHERE v.table_id = of_table AND v.version = of_version AND v.schema_version = of_schema;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'version % has another schema than %', of_version, of_schema USING ERRCODE = 'HP017';
    END IF;
    IF NOT coalesce(its_metadata = ANY (its_files), false) THEN
        RAISE EXCEPTION 'the metadata file % is not among the files', its_metadata USING ERRCODE = 'HP017';
    END IF;
    SELECT f INTO wrong FROM unnest(its_files) f WHERE f IS NULL OR NOT EXISTS (
        SELECT FROM harness.cut_folders d WHERE d.table_id = of_table AND starts_with(f, d.folder || '/')
        AND substr(f, length(d.folder) + 1) ~ '^/(data|metadata)/[A-Za-z0-9_=,-][A-Za-z0-9_=,.-]*$') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% lies in no folder for cuts of this table', coalesce(wrong, 'NULL') USING ERRCODE = 'HP017';
    END IF;
    RETURN looked_at;
END;
$$;

-- Publish a cut whose files are written, as the one after the cut with the sequence *after*. A cut that is over or retired is
-- followed by one that was made after any larger number, since `cuts/newest` counts on from it by the clock. HP001: the lease of the
-- maker is over, or was taken more than two minutes ago: expire may take its files for orphans. HP016: another cut came
-- first, or the version is gone. HP017: a value that no server of the harness writes. HP018: too many cuts are alive.
-- HP022: the table was dropped.
CREATE FUNCTION harness.cut_publish(
    of_table integer, its_sequence bigint, its_snapshot bigint, its_timestamp bigint, of_version bigint, of_schema integer,
    its_bounds jsonb, its_metadata text, its_chunks jsonb, its_parts jsonb, its_files text[],
    "after" bigint, of_lease uuid, lasts interval, OUT looked_at timestamptz, OUT served_at timestamptz, OUT until timestamptz
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last     harness.cuts;
    is_alive boolean;
    first    bigint;
    wrong    text;
    now_ms   bigint;
BEGIN
    looked_at := harness.cut_checked(of_table, its_sequence, its_snapshot, its_timestamp, of_version, of_schema, its_bounds,
                                     its_metadata, its_chunks, its_parts, its_files, of_lease, lasts);
    PERFORM FROM harness.tables t JOIN harness.versions v USING (table_id)
    WHERE t.table_id = of_table AND v.version = of_version AND v.version >= t.retained_from;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'version % is not retained any more', of_version USING ERRCODE = 'HP016';
    END IF;

    SELECT * INTO last FROM harness.cuts c WHERE c.table_id = of_table ORDER BY c.sequence DESC LIMIT 1;
    is_alive := coalesce(
        last.until > clock_timestamp() AND last.retired_at IS NULL AND last.history = harness.history(), false);
    IF last.sequence IS NOT NULL AND (
        "after" IS NULL OR is_alive AND "after" <> last.sequence OR NOT is_alive AND "after" <= last.sequence
    ) THEN
        RAISE EXCEPTION 'the newest cut is %, this one was made after %', coalesce(last.sequence::text, 'none'),
            coalesce("after"::text, 'none') USING ERRCODE = 'HP016';
    ELSIF of_version < last.version THEN
        RAISE EXCEPTION 'the newest cut is of version %, this one of version %', last.version, of_version
            USING ERRCODE = 'HP016';
    END IF;
    wrong := harness.cut_bounds_wrong(of_table, of_version, its_bounds, last);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'HP016';
    END IF;

    -- A number near the end would leave none for the cuts after it. A clock that was set back leaves the next one.
    now_ms := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    IF its_sequence <= greatest(last.sequence, "after") OR its_sequence > greatest(last.sequence, now_ms) + 86400000
       OR its_timestamp <= last.timestamp_ms OR its_timestamp > greatest(last.timestamp_ms + 1, now_ms + 60000) THEN
        RAISE EXCEPTION 'sequence % and timestamp % do not follow on % and %', its_sequence, its_timestamp,
            greatest(last.sequence, "after"), last.timestamp_ms USING ERRCODE = 'HP017';
    END IF;

    SELECT c.number INTO first FROM harness.cuts c WHERE c.table_id = of_table ORDER BY c.sequence LIMIT 1;
    IF last.number - first >= 9999 THEN -- some of them may be over, where expire has not run for long
        DELETE FROM harness.cuts c
        WHERE c.table_id = of_table AND c.until <= clock_timestamp() AND c.sequence < last.sequence;
        IF (SELECT count(*) FROM harness.cuts c WHERE c.table_id = of_table) >= 10000 THEN
            RAISE EXCEPTION '10000 cuts are alive' USING ERRCODE = 'HP018';
        END IF;
    END IF;
    DELETE FROM harness.cuts c WHERE c.table_id = of_table AND c.snapshot_id = its_snapshot AND c.retired_at IS NULL
        AND (c.until <= clock_timestamp() OR c.history <> harness.history());
    IF EXISTS (SELECT FROM harness.cuts c
               WHERE c.table_id = of_table AND c.snapshot_id = its_snapshot AND c.retired_at IS NULL) THEN
        RAISE EXCEPTION 'cut % is there already', its_snapshot USING ERRCODE = 'HP016';
    END IF;
    UPDATE harness.cuts c SET chunks = '[]', parts = '{}', replaced_at = clock_timestamp()
    WHERE c.table_id = of_table AND c.sequence = last.sequence;

    served_at := clock_timestamp();
    until := served_at + least(greatest(lasts, interval '0'), interval '24 hours');
    INSERT INTO harness.cuts (table_id, sequence, snapshot_id, timestamp_ms, version, schema_version, bounds, metadata, chunks,
                              parts, files, number, looked_at, published_at, served_at, until)
    VALUES (of_table, its_sequence, its_snapshot, its_timestamp, of_version, of_schema, its_bounds, its_metadata, its_chunks,
            its_parts, its_files, coalesce(last.number, 0) + 1, looked_at, served_at, served_at, until);
END;
$$;

-- Keep the files of a cut for *lasts* from now on, by at most a day after the next one came. It is written only where that is
-- more than a second later than what is promised already, by whatever server. false: it is over, or retired.
CREATE FUNCTION harness.cut_serve(of_table integer, its_sequence bigint, lasts interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    began timestamptz := clock_timestamp();
BEGIN
    UPDATE harness.cuts SET served_at = began, until = least(
        began + least(lasts, interval '24 hours'), replaced_at + interval '24 hours')
    WHERE table_id = of_table AND sequence = its_sequence AND until > clock_timestamp() AND retired_at IS NULL
      AND history = harness.history()
      AND until < least(began + least(lasts, interval '24 hours'), replaced_at + interval '24 hours') - interval '1 second';
    RETURN FOUND OR EXISTS (
        SELECT FROM harness.cuts WHERE table_id = of_table AND sequence = its_sequence AND until > clock_timestamp()
        AND retired_at IS NULL AND history = harness.history());
END;
$$;

-- Let no server show the newest cut again, nor go on from its files, one of which is lost or damaged. Its numbers count, and
-- its files stay until its time ends, since engines may be reading those that are sound. false: another one of the table was retired
-- less than a minute ago. A server that cannot see the files of others would else have all of them made again for ever.
CREATE FUNCTION harness.cut_retire(of_table integer, its_sequence bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1752330865, of_table);
    PERFORM pg_advisory_xact_lock(1752330871, of_table); -- what is being published after it, is or is not
    PERFORM FROM harness.cuts c
    WHERE c.table_id = of_table AND c.sequence <> its_sequence
      AND c.retired_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp();
    IF FOUND THEN
        RETURN false;
    END IF;
    UPDATE harness.cuts c SET retired_at = clock_timestamp(), chunks = '[]', parts = '{}'
    WHERE c.table_id = of_table AND c.sequence = its_sequence AND c.retired_at IS NULL
      AND NOT EXISTS (SELECT FROM harness.cuts n WHERE n.table_id = of_table AND n.sequence > its_sequence);
    RETURN true;
END;
$$;

-- The bounds of a pin as a cut has them.
CREATE FUNCTION harness.pin_cut(its_bounds jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_object_agg(b.key, jsonb_build_array(
        b.value -> 'start', b.value -> 'batch_hi', b.value -> 'stream_hi', b.value -> 'buffer_hi')), '{}')
    FROM jsonb_each(its_bounds) b
$$;

-- Whether a named snapshot pins this state of a table.
CREATE FUNCTION harness.is_pinned(of_table integer, of_version bigint, its_bounds jsonb) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM harness.snapshot_tables p WHERE p.table_id = of_table AND p.version = of_version
        AND harness.pin_cut(p.bounds) = its_bounds AND p.digest = harness.pin_digest(p))
$$;

-- Publish the cut of a state that a named snapshot pins. HP016: no snapshot pins it, or there is such a cut already. Others: as
-- `cut_publish`, but HP018: a thousand are alive.
CREATE FUNCTION harness.named_cut_publish(
    of_table integer, its_sequence bigint, its_snapshot bigint, its_timestamp bigint, of_version bigint, of_schema integer,
    its_bounds jsonb, its_metadata text, its_chunks jsonb, its_files text[], of_lease uuid, lasts interval,
    OUT looked_at timestamptz, OUT served_at timestamptz, OUT until timestamptz
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_ms bigint;
    last   bigint;
BEGIN
    looked_at := harness.cut_checked(of_table, its_sequence, its_snapshot, its_timestamp, of_version, of_schema, its_bounds,
                                     its_metadata, its_chunks, '{}', its_files, of_lease, lasts);
    IF NOT harness.is_pinned(of_table, of_version, its_bounds) THEN
        RAISE EXCEPTION 'no named snapshot pins version % with these bounds', of_version USING ERRCODE = 'HP016';
    END IF;
    PERFORM FROM harness.named_cuts c
    WHERE c.table_id = of_table AND c.version = of_version AND c.bounds = its_bounds AND c.until > clock_timestamp()
      AND c.retired_at IS NULL AND c.history = harness.history();
    IF FOUND THEN
        RAISE EXCEPTION 'there is a cut of this state of version % already', of_version USING ERRCODE = 'HP016';
    END IF;
    now_ms := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    SELECT max(c.sequence) INTO last FROM harness.named_cuts c WHERE c.table_id = of_table;
    IF EXISTS (SELECT FROM harness.named_cuts c WHERE c.table_id = of_table
               AND (c.sequence = its_sequence OR c.snapshot_id = its_snapshot)) THEN
        RAISE EXCEPTION 'there is another cut with sequence % or snapshot %', its_sequence, its_snapshot USING ERRCODE = 'HP016';
    ELSIF its_sequence > greatest(last, now_ms) + 86400000 OR its_timestamp > now_ms + 60000 THEN
        RAISE EXCEPTION 'sequence % and timestamp % are far ahead', its_sequence, its_timestamp USING ERRCODE = 'HP017';
    END IF;
    IF (SELECT count(*) FROM harness.named_cuts c WHERE c.table_id = of_table) >= 1000 THEN
        DELETE FROM harness.named_cuts c WHERE c.table_id = of_table AND c.until <= clock_timestamp();
        IF NOT FOUND THEN
            RAISE EXCEPTION '1000 cuts of named snapshots are alive' USING ERRCODE = 'HP018';
        END IF;
    END IF;
    served_at := clock_timestamp();
    until := served_at + least(greatest(lasts, interval '0'), interval '24 hours');
    INSERT INTO harness.named_cuts (table_id, sequence, snapshot_id, timestamp_ms, version, schema_version, bounds, metadata,
                                    chunks, files, looked_at, published_at, served_at, until)
    VALUES (of_table, its_sequence, its_snapshot, its_timestamp, of_version, of_schema, its_bounds, its_metadata, its_chunks,
            its_files, looked_at, served_at, served_at, until);
END;
$$;

-- As `cut_serve`. false, too: no snapshot pins its state any more; its files stay for as long as was promised before.
CREATE FUNCTION harness.named_cut_serve(of_table integer, its_sequence bigint, lasts interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    began timestamptz := clock_timestamp();
BEGIN
    UPDATE harness.named_cuts SET served_at = began, until = began + least(lasts, interval '24 hours')
    WHERE table_id = of_table AND sequence = its_sequence AND until > clock_timestamp() AND retired_at IS NULL
      AND history = harness.history() AND until < began + least(lasts, interval '24 hours') - interval '1 second'
      AND harness.is_pinned(of_table, version, bounds);
    RETURN FOUND OR EXISTS (
        SELECT FROM harness.named_cuts WHERE table_id = of_table AND sequence = its_sequence AND until > clock_timestamp()
        AND retired_at IS NULL AND history = harness.history() AND harness.is_pinned(of_table, version, bounds));
END;
$$;

-- As `cut_retire`: the next load makes another cut of that state.
CREATE FUNCTION harness.named_cut_retire(of_table integer, its_sequence bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1752330865, of_table);
    PERFORM pg_advisory_xact_lock(1752330871, of_table);
    PERFORM FROM harness.named_cuts c
    WHERE c.table_id = of_table AND c.retired_at > clock_timestamp() - interval '1 minute' AND c.sequence <> its_sequence;
    IF FOUND THEN
        RETURN false;
    END IF;
    UPDATE harness.named_cuts c SET retired_at = clock_timestamp()
    WHERE c.table_id = of_table AND c.sequence = its_sequence AND c.retired_at IS NULL;
    RETURN true;
END;
$$;

-- Secrets by which an engine asks for tables, as their digests alone.
CREATE TABLE harness.tokens (
    token_id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text NOT NULL UNIQUE CHECK (name ~ '^[a-z][a-z0-9_.-]{0,62}$'),
    hash       bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32), -- SHA-256 of 32 random bytes
    old_hash   bytea UNIQUE CHECK (octet_length(old_hash) = 32), -- of the secret before the last rotation
    old_until  timestamptz,                    -- up to when that one is good, too
    globs      text[] NOT NULL CHECK (cardinality(globs) BETWEEN 1 AND 100 AND array_position(globs, NULL) IS NULL
                                      AND octet_length(array_to_string(globs, '')) <= 16384),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by name NOT NULL DEFAULT session_user,
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT tokens_in_time CHECK (
        created_at BETWEEN '1970-01-01Z' AND '9000-01-01Z' AND coalesce(old_until BETWEEN '1970-01-01Z' AND '9000-01-01Z', true)
        AND coalesce(expires_at BETWEEN '1970-01-01Z' AND '9000-01-01Z', true)
        AND coalesce(revoked_at BETWEEN '1970-01-01Z' AND '9000-01-01Z', true))
);
GRANT SELECT, INSERT, UPDATE ON harness.tokens TO harness_definer;
GRANT SELECT (token_id, name, globs, created_at, created_by, expires_at, revoked_at, old_until) ON harness.tokens
    TO harness_worker;

-- NULL: the name is taken. HP019: there are 10000 already.
CREATE FUNCTION harness.token_create(its_name text, its_hash bytea, its_globs text[], lasts interval) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made integer;
BEGIN
    IF (SELECT count(*) FROM harness.tokens) >= 10000 THEN
        RAISE EXCEPTION 'there are 10000 tokens' USING ERRCODE = 'HP019';
    END IF;
    INSERT INTO harness.tokens (name, hash, globs, expires_at) VALUES (its_name, its_hash, its_globs, clock_timestamp() + lasts)
    ON CONFLICT (name) DO NOTHING RETURNING token_id INTO made;
    RETURN made;
END;
$$;

-- What is revoked stays so. false: there is no token of the name.
CREATE FUNCTION harness.token_revoke(its_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE harness.tokens SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE name = its_name;
    RETURN FOUND;
END;
$$;

-- Another secret for a token, which lasts from now on. The one before is good for some more time, but for no longer than it
-- was; the one before that is not. false: there is no token of the name, or it was revoked.
CREATE FUNCTION harness.token_rotate(its_name text, its_hash bytea, lasts interval, overlap interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    began timestamptz := clock_timestamp();
BEGIN
    UPDATE harness.tokens SET hash = its_hash, old_hash = hash, old_until = least(began + overlap, expires_at),
        expires_at = began + lasts
    WHERE name = its_name AND revoked_at IS NULL;
    RETURN FOUND;
END;
$$;

-- The token of a secret, by the digest, if it is valid now: who has no secret learns of no token. It expires when this secret
-- does.
CREATE FUNCTION harness.token_check(its_hash bytea)
RETURNS TABLE (token_id integer, name text, globs text[], created_at timestamptz, created_by name, expires_at timestamptz,
               revoked_at timestamptz, old_until timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.token_id, t.name, t.globs, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.old_until
    FROM harness.tokens t
    WHERE t.hash = its_hash AND t.revoked_at IS NULL AND coalesce(t.expires_at > clock_timestamp(), true)
    UNION ALL
    SELECT t.token_id, t.name, t.globs, t.created_at, t.created_by, t.old_until, t.revoked_at, t.old_until
    FROM harness.tokens t WHERE t.old_hash = its_hash AND t.revoked_at IS NULL AND t.old_until > clock_timestamp()
$$;

-- Which cut all loads of a window get that want one cut for some seconds. A window has a number by the ledger's clock.
CREATE TABLE harness.cut_pins (
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    seconds  integer NOT NULL CHECK (seconds BETWEEN 1 AND 300), -- how long a window is
    slot     bigint NOT NULL,                  -- number of the last window that a load began in
    sequence bigint NOT NULL,                  -- of the first cut that was given out in it
    PRIMARY KEY (table_id, seconds)
);
GRANT SELECT ON harness.cut_pins TO harness_reader;
GRANT SELECT, INSERT, UPDATE ON harness.cut_pins TO harness_definer;

-- The sequence of the cut of the window *slot*, or of a later one, if it is alive; and that window, which is the one of now where
-- none is given. Where there is no such cut, *mine* is it, for all loads after this one; but never one that is older than that of
-- the window before. A load asks for the window that it began in: what it has found is no older than that, but the window may be
-- over by now. A window that has not come is of a clock that was set back.
CREATE FUNCTION harness.cut_pin(
    of_table integer, its_seconds integer, mine bigint, INOUT slot bigint, OUT pinned bigint
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    now_slot bigint := floor(extract(epoch FROM clock_timestamp()) / its_seconds);
    of_load  bigint := least(cut_pin.slot, now_slot); -- the least one that is not NULL
BEGIN
    IF EXISTS (SELECT FROM harness.cuts c WHERE c.table_id = of_table AND c.sequence = mine AND c.retired_at IS NULL) THEN
        INSERT INTO harness.cut_pins AS p (table_id, seconds, slot, sequence) VALUES (of_table, its_seconds, of_load, mine)
        ON CONFLICT (table_id, seconds) DO UPDATE SET slot = excluded.slot, sequence = CASE
            WHEN harness.cut_is_alive(of_table, p.sequence) THEN greatest(p.sequence, excluded.sequence)
            ELSE excluded.sequence END
        WHERE p.slot < excluded.slot OR p.slot > now_slot OR NOT harness.cut_is_alive(of_table, p.sequence);
    END IF;
    cut_pin.slot := of_load;
    cut_pin.pinned := (
        SELECT p.sequence FROM harness.cut_pins p
        WHERE p.table_id = of_table AND p.seconds = its_seconds AND p.slot BETWEEN of_load AND now_slot
          AND harness.cut_is_alive(of_table, p.sequence));
END;
$$;

CREATE FUNCTION harness.cut_is_alive(of_table integer, its_sequence bigint) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM harness.cuts c WHERE c.table_id = of_table AND c.sequence = its_sequence
                   AND c.until > clock_timestamp() AND c.history = harness.history() AND c.retired_at IS NULL)
$$;

GRANT CREATE ON SCHEMA harness TO harness_definer; -- a function is given only to who could have made it there
ALTER FUNCTION harness.cut_prepare OWNER TO harness_definer;
ALTER FUNCTION harness.cut_publish OWNER TO harness_definer;
ALTER FUNCTION harness.cut_serve OWNER TO harness_definer;
ALTER FUNCTION harness.cut_retire OWNER TO harness_definer;
ALTER FUNCTION harness.named_cut_publish OWNER TO harness_definer;
ALTER FUNCTION harness.named_cut_serve OWNER TO harness_definer;
ALTER FUNCTION harness.named_cut_retire OWNER TO harness_definer;
ALTER FUNCTION harness.token_create OWNER TO harness_definer;
ALTER FUNCTION harness.token_revoke OWNER TO harness_definer;
ALTER FUNCTION harness.token_rotate OWNER TO harness_definer;
ALTER FUNCTION harness.cut_pin OWNER TO harness_definer;
ALTER FUNCTION harness.token_check OWNER TO harness_definer;
REVOKE CREATE ON SCHEMA harness FROM harness_definer;
REVOKE ALL ON FUNCTION harness.cut_folder, harness.cut_bounds_wrong, harness.cut_parts_wrong, harness.cut_prepare,
    harness.cut_publish, harness.cut_serve, harness.cut_retire, harness.token_create, harness.token_revoke, harness.token_check,
    harness.cut_checked, harness.pin_cut, harness.is_pinned, harness.named_cut_publish, harness.named_cut_serve,
    harness.named_cut_retire FROM PUBLIC;
GRANT EXECUTE ON FUNCTION harness.pin_cut TO harness_reader, harness_definer;
GRANT EXECUTE ON FUNCTION harness.cut_checked, harness.is_pinned TO harness_definer;
GRANT EXECUTE ON FUNCTION harness.named_cut_publish, harness.named_cut_serve, harness.named_cut_retire TO harness_reader;
GRANT EXECUTE ON FUNCTION harness.cut_folder TO harness_reader, harness_definer;
GRANT EXECUTE ON FUNCTION harness.cut_bounds_wrong, harness.cut_parts_wrong TO harness_definer;
GRANT EXECUTE ON FUNCTION harness.cut_prepare, harness.cut_publish, harness.cut_serve, harness.cut_retire, harness.token_check
    TO harness_reader;
GRANT EXECUTE ON FUNCTION harness.token_create, harness.token_revoke TO harness_worker;
REVOKE ALL ON FUNCTION harness.token_rotate, harness.cut_pin, harness.cut_is_alive FROM PUBLIC;
GRANT EXECUTE ON FUNCTION harness.token_rotate TO harness_worker;
GRANT EXECUTE ON FUNCTION harness.cut_pin TO harness_reader;
GRANT EXECUTE ON FUNCTION harness.cut_is_alive TO harness_definer;
