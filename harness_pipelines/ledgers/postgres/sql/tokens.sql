-- name: create
SELECT harness.token_create(%(name)s::text, %(hash)s::bytea, %(globs)s::text[], %(lasts)s::interval) AS token_id

-- name: all
-- With this session's clock, by which a token is over.
SELECT token_id, name, globs, created_at, created_by, expires_at, revoked_at, old_until,
       revoked_at IS NULL AND coalesce(expires_at > clock_timestamp(), true) AS valid
FROM harness.tokens WHERE %(name)s::text IS NULL OR name = %(name)s ORDER BY name

-- name: revoke
SELECT harness.token_revoke(%(name)s::text) AS there

-- name: rotate
SELECT harness.token_rotate(%(name)s::text, %(hash)s::bytea, %(lasts)s::interval, %(overlap)s::interval) AS done

-- name: check
SELECT given.hash, found.*, true AS valid
FROM unnest(%(hashes)s::bytea[]) AS given (hash), harness.token_check(given.hash) AS found
