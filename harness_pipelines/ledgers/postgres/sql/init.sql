-- name: lock
SELECT pg_advisory_xact_lock(1752330864, 0)

-- name: without_limit
SET LOCAL statement_timeout = 0

-- name: create_migrations
CREATE TABLE IF NOT EXISTS public.harness_migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    digest     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)

-- name: applied
SELECT number, name, digest FROM public.harness_migrations ORDER BY number

-- name: record
INSERT INTO public.harness_migrations (number, name, digest) VALUES (%(number)s, %(name)s, %(digest)s)

-- name: session
SELECT current_setting('role') AS role, current_setting('lock_timeout') AS lock_timeout,
       current_setting('harness.direct', true) AS direct
