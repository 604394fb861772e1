-- name: server
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS version_text,
       current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS is_stand_by,
       current_setting('transaction_read_only') = 'on' AS is_read_only,
       current_setting('max_connections')::int AS connections_max,
       current_setting('superuser_reserved_connections')::int AS connections_reserved,
       (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL) AS connections,
       current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       extract(epoch FROM clock_timestamp())::float8 AS now_s,
       session_user::text AS login, current_database()::text AS database,
       r.rolsuper AS is_superuser, r.rolcreaterole AS creates_roles,
       pg_has_role(session_user, d.datdba, 'MEMBER') AS is_owner,
       has_database_privilege(session_user, d.oid, 'CREATE') AS creates_schemas
FROM pg_database d, pg_roles r
WHERE d.datname = current_database() AND r.rolname = session_user

-- name: has_ledger
SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'harness_migrations' AND relkind = 'r') AS has_ledger

-- name: show_pointer
INSERT INTO public.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
VALUES (%(catalog)s, %(namespace)s, %(name)s, %(metadata)s, 'TABLE')

-- name: pointer
SELECT metadata_location FROM public.iceberg_tables
WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = %(name)s

-- name: forget_pointer
DELETE FROM public.iceberg_tables
WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = %(name)s

-- name: lacks
-- What the role of the session needs and has not: one relation for each thing that it does. A right on a whole table
-- is one on each column; of a table that is not there NULL is said, which names nothing.
SELECT needed.what || ' on ' || needed.object AS lacks
FROM (VALUES
    ('harness_reader', 'SELECT', 'public.harness_migrations'),
    ('harness_reader', 'SELECT', 'harness.tables'),
    ('harness_reader', 'SELECT', 'harness.versions'),
    ('harness_reader', 'SELECT', 'public.iceberg_tables'),
    ('harness_worker', 'SELECT', 'harness.tables'),
    ('harness_worker', 'INSERT', 'harness.versions'),
    ('harness_worker', 'INSERT', 'harness.moves'),
    ('harness_worker', 'UPDATE', 'harness.moves'),
    ('harness_worker', 'UPDATE', 'harness.claims'),
    ('harness_worker', 'INSERT', 'harness.outbox'),
    ('harness_worker', 'UPDATE', 'public.iceberg_tables'),
    ('harness_spark', 'SELECT', 'harness_pins.iceberg_tables'),
    ('harness_spark', 'SELECT', 'public.iceberg_tables'),
    ('harness_spark', 'UPDATE', 'public.iceberg_tables')
) AS needed (role, what, object)
WHERE needed.role = current_user AND NOT has_any_column_privilege(to_regclass(needed.object), needed.what)
ORDER BY 1

-- name: idle_holders
-- Sessions with a lock of the harness and without a transaction, which each session has for as long as one is open. The
-- harness takes such locks for a transaction alone, so that they are not its own. Of other logins no more is shown.
SELECT a.pid, a.usename AS login, a.application_name AS application
FROM pg_stat_activity a
WHERE a.datname = current_database()
  AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'advisory'
              AND l.classid::bigint BETWEEN 1752330864 AND 1752330870)
  AND NOT EXISTS (SELECT FROM pg_locks t WHERE t.pid = a.pid AND t.locktype = 'virtualxid')
ORDER BY a.pid
