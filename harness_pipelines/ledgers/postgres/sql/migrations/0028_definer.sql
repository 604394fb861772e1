-- Who calls a function that runs with its owner's rights never chooses what a name in it means, and gets no more than the
-- function needs: temporary objects are looked up last, and the owner is a role without login that has a few rights.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'harness_definer') THEN
        CREATE ROLE harness_definer NOLOGIN;
    END IF;
END;
$$;
GRANT harness_definer TO CURRENT_USER;

GRANT USAGE ON SCHEMA harness TO harness_definer;
GRANT SELECT ON harness.tables, harness.versions, harness.ingest_positions TO harness_definer;
GRANT SELECT, INSERT, UPDATE, DELETE ON harness.states, harness.leases TO harness_definer;
GRANT SELECT, INSERT, DELETE ON harness.state_commits, harness.snapshots TO harness_definer;
GRANT SELECT, INSERT ON harness.snapshot_tables TO harness_definer;

GRANT CREATE ON SCHEMA harness TO harness_definer; -- a function is given only to who could have made it there
DO $$
DECLARE
    definer regprocedure;
BEGIN
    FOR definer IN SELECT oid FROM pg_proc WHERE prosecdef AND pronamespace = 'harness'::regnamespace LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', definer);
        EXECUTE format('ALTER FUNCTION %s OWNER TO harness_definer', definer);
    END LOOP;
END;
$$;
REVOKE CREATE ON SCHEMA harness FROM harness_definer;

-- Before version 15 everybody may make objects there, which the owner's sessions would find.
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
