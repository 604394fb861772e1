-- Least rights: readers read and keep leases; workers also write, but never change what is append-only.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'harness_reader') THEN
        CREATE ROLE harness_reader NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'harness_worker') THEN
        CREATE ROLE harness_worker NOLOGIN;
    END IF;
END;
$$;
GRANT harness_reader TO harness_worker;
GRANT harness_worker TO CURRENT_USER;

GRANT USAGE ON SCHEMA harness, harness_buffer, public TO harness_reader;
GRANT CREATE ON SCHEMA harness_buffer TO harness_worker;
GRANT SELECT ON ALL TABLES IN SCHEMA harness TO harness_reader;
GRANT SELECT ON public.iceberg_tables, public.iceberg_namespace_properties TO harness_reader;
GRANT INSERT, UPDATE, DELETE ON harness.leases TO harness_reader;

GRANT INSERT, UPDATE ON harness.tables, harness.moves, harness.lake_positions, harness.claims,
    harness.ingest_positions, harness.segments, harness.quarantine TO harness_worker;
GRANT INSERT ON harness.schemas, harness.versions, harness.outbox TO harness_worker;
GRANT INSERT, UPDATE, DELETE ON harness.condemned_files TO harness_worker;
GRANT DELETE ON harness.segments, harness.claims TO harness_worker;
GRANT INSERT, UPDATE, DELETE ON public.iceberg_tables, public.iceberg_namespace_properties TO harness_worker;

ALTER DEFAULT PRIVILEGES FOR ROLE harness_worker IN SCHEMA harness_buffer GRANT SELECT ON TABLES TO harness_reader;
