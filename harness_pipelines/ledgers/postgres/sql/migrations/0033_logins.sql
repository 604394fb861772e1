-- Segments are no worker's own. Who owns a table may give it triggers, rules and row policies, which run with the rights of
-- whoever writes or reads it. A role without login owns all segments, and workers make and drop them by functions. Spark
-- has a role of its own: it reads segments and moves pointers of the catalog.
DO $$
DECLARE
    found text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'harness_spark') THEN
        CREATE ROLE harness_spark NOLOGIN;
    END IF;
    WITH inside AS (SELECT oid, relkind FROM pg_class WHERE relnamespace = 'harness_buffer'::regnamespace),
    traps (class, oid) AS (
        SELECT 'pg_class'::regclass, oid FROM inside WHERE relkind NOT IN ('r', 'i')
        UNION ALL SELECT 'pg_trigger'::regclass, oid FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM inside)
        UNION ALL SELECT 'pg_rewrite'::regclass, oid FROM pg_rewrite WHERE ev_class IN (SELECT oid FROM inside)
        UNION ALL SELECT 'pg_policy'::regclass, oid FROM pg_policy WHERE polrelid IN (SELECT oid FROM inside)
        UNION ALL SELECT 'pg_class'::regclass, indexrelid FROM pg_index
        WHERE indrelid IN (SELECT oid FROM inside) AND (indexprs IS NOT NULL OR indpred IS NOT NULL)
        UNION ALL SELECT 'pg_class'::regclass, inhrelid FROM pg_inherits
        WHERE inhrelid IN (SELECT oid FROM inside) OR inhparent IN (SELECT oid FROM inside)
        UNION ALL SELECT 'pg_attrdef'::regclass, oid FROM pg_attrdef -- a number: recalled rows from before they had a schema
        WHERE adrelid IN (SELECT oid FROM inside) AND pg_get_expr(adbin, adrelid) !~ '^[0-9]+$'
        UNION ALL SELECT 'pg_constraint'::regclass, oid FROM pg_constraint
        WHERE connamespace = 'harness_buffer'::regnamespace AND contype <> 'n'
        UNION ALL SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE pronamespace = 'harness_buffer'::regnamespace
        UNION ALL SELECT 'pg_operator'::regclass, oid FROM pg_operator WHERE oprnamespace = 'harness_buffer'::regnamespace
        UNION ALL SELECT 'pg_type'::regclass, oid FROM pg_type
        WHERE typnamespace = 'harness_buffer'::regnamespace AND typtype <> 'c' AND typcategory <> 'A'
    )
    SELECT string_agg(pg_describe_object(class, oid, 0), ', ') INTO found FROM traps;
    IF found IS NOT NULL THEN
        RAISE EXCEPTION 'somebody made in the schema harness_buffer what is no segment of the harness: %', found
            USING HINT = 'Nothing was changed. Look at it, drop it, and run harness init again.';
    END IF;
END;
$$;

GRANT USAGE, CREATE ON SCHEMA harness_buffer TO harness_definer;
DO $$
DECLARE
    segment regclass;
BEGIN
    FOR segment IN SELECT oid FROM pg_class WHERE relnamespace = 'harness_buffer'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO harness_definer', segment);
        EXECUTE format('GRANT SELECT ON %s TO harness_reader, harness_spark', segment);
        EXECUTE format('GRANT INSERT ON %s TO harness_worker', segment);
    END LOOP;
END;
$$;
REVOKE CREATE ON SCHEMA harness_buffer FROM harness_worker;
ALTER DEFAULT PRIVILEGES FOR ROLE harness_worker IN SCHEMA harness_buffer REVOKE SELECT ON TABLES FROM harness_reader;
ALTER DEFAULT PRIVILEGES FOR ROLE harness_definer IN SCHEMA harness_buffer GRANT SELECT ON TABLES TO harness_reader, harness_spark;
ALTER DEFAULT PRIVILEGES FOR ROLE harness_definer IN SCHEMA harness_buffer GRANT INSERT ON TABLES TO harness_worker;

-- The name of a segment, or of a table of recalled rows. Raises 42501 for any other name.
CREATE FUNCTION harness.segment_name(wanted text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF wanted !~ '^(seg_[0-9]+_[0-9]+|ovl_[0-9]+_[0-9]+_[0-9]+)$' THEN
        RAISE EXCEPTION '% is no name of a segment', wanted USING ERRCODE = '42501';
    END IF;
    RETURN format('harness_buffer.%I', wanted);
END;
$$;

-- *columns* are pairs of name and type, in order; the types are those that a segment has and no others.
CREATE FUNCTION harness.segment_make(wanted text, columns jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one jsonb;
    parts text[] := '{}';
BEGIN
    FOR one IN SELECT value FROM jsonb_array_elements(columns) LOOP
        IF (one ->> 1) !~ '^((integer|bigint|text|json)( NOT NULL)?|boolean|real|double precision|timestamptz|bytea|uuid|numeric\([0-9]{1,3},[0-9]{1,3}\))$' THEN
            RAISE EXCEPTION '% is no type of a segment', one ->> 1 USING ERRCODE = '42501';
        END IF;
        parts := parts || format('%I %s', one ->> 0, one ->> 1);
    END LOOP;
    EXECUTE format('CREATE TABLE %s (%s) WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false)',
                   harness.segment_name(wanted), array_to_string(parts, ', '));
END;
$$;

-- An index of the given kind over columns; it may be there.
CREATE FUNCTION harness.segment_index(wanted text, suffix text, kind text, columns text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF kind NOT IN ('btree', 'hash') OR suffix NOT IN ('coordinates', 'key') THEN
        RAISE EXCEPTION '% % is no index of a segment', kind, suffix USING ERRCODE = '42501';
    END IF;
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s USING %s (%s)', wanted || '_' || suffix, harness.segment_name(wanted),
                   kind, (SELECT string_agg(format('%I', name), ', ') FROM unnest(columns) name));
END;
$$;

CREATE FUNCTION harness.segment_statistics(wanted text, columns text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('ANALYZE %s (%s)', harness.segment_name(wanted),
                   (SELECT string_agg(format('%I', name), ', ') FROM unnest(columns) name));
END;
$$;

-- Only what was retired, or what no row names.
CREATE FUNCTION harness.segment_drop(wanted text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM harness.segments WHERE segment = wanted AND state <> 'retired')
       OR EXISTS (SELECT FROM harness.overlays WHERE segment = wanted AND retired_at IS NULL) THEN
        RAISE EXCEPTION 'segment % is not retired', wanted USING ERRCODE = '42501';
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS %s', harness.segment_name(wanted));
END;
$$;
GRANT SELECT ON harness.segments, harness.overlays TO harness_definer;

-- A session that reads segments asks for its lease, and for nothing else of the ledger.
ALTER FUNCTION harness.require_lease SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
GRANT USAGE ON SCHEMA harness, harness_buffer, public TO harness_spark;
GRANT SELECT ON public.iceberg_tables, public.iceberg_namespace_properties TO harness_spark;
GRANT UPDATE (metadata_location, previous_metadata_location) ON public.iceberg_tables TO harness_spark;

GRANT CREATE ON SCHEMA harness TO harness_definer; -- a function is given only to who could have made it there
ALTER FUNCTION harness.segment_make OWNER TO harness_definer;
ALTER FUNCTION harness.segment_index OWNER TO harness_definer;
ALTER FUNCTION harness.segment_statistics OWNER TO harness_definer;
ALTER FUNCTION harness.segment_drop OWNER TO harness_definer;
ALTER FUNCTION harness.require_lease OWNER TO harness_definer;
REVOKE CREATE ON SCHEMA harness FROM harness_definer;

-- Functions that run with the caller's rights are for who works with the ledger.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN SELECT oid FROM pg_proc WHERE NOT prosecdef AND pronamespace = 'harness'::regnamespace LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', one);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO harness_reader, harness_definer', one);
    END LOOP;
END;
$$;
REVOKE ALL ON FUNCTION harness.require_lease, harness.segment_make, harness.segment_index, harness.segment_statistics,
    harness.segment_drop FROM PUBLIC;
GRANT EXECUTE ON FUNCTION harness.require_lease TO harness_reader, harness_spark;
GRANT EXECUTE ON FUNCTION harness.segment_make, harness.segment_index, harness.segment_statistics, harness.segment_drop
    TO harness_worker;
