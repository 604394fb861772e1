-- name: note
-- Nothing is published before the ledger's commit, which comes later: with it on the disk, so is this.
WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS said)
INSERT INTO harness.file_digests (path, bytes, tail, digest)
SELECT f.path, f.bytes, f.tail, f.digest
FROM unnest(%(paths)s::text[], %(bytes)s::bigint[], %(tails)s::bigint[], %(digests)s::bytea[])
    AS f (path, bytes, tail, digest), quick
ON CONFLICT (path) DO NOTHING

-- name: of
SELECT path, bytes, tail, digest FROM harness.file_digests WHERE path = ANY(%(paths)s)

-- name: below
SELECT path FROM harness.file_digests WHERE starts_with(path, %(start)s)
