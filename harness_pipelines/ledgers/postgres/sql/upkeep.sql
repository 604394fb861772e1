-- name: delete_ended
-- Leases and cuts whose time is over; each waits for one that is prolonged just now. Of the last cut the numbers stay, since
-- those of the next one go on from them.
WITH over AS (
    DELETE FROM harness.cuts WHERE table_id = %(table_id)s AND until <= clock_timestamp()
    AND sequence < (SELECT max(sequence) FROM harness.cuts WHERE table_id = %(table_id)s)
), last AS (
    UPDATE harness.cuts SET files = '{}', chunks = '[]', parts = '{}' WHERE table_id = %(table_id)s AND until <= clock_timestamp()
    AND files <> '{}' AND sequence = (SELECT max(sequence) FROM harness.cuts WHERE table_id = %(table_id)s)
), named AS (
    DELETE FROM harness.named_cuts WHERE table_id = %(table_id)s AND until <= clock_timestamp()
)
DELETE FROM harness.leases WHERE table_id = %(table_id)s AND until <= clock_timestamp()

-- name: leased_versions
-- With the bounds that they are read with: of a pin, which may be gone by now, the lease has all four of a partition.
SELECT DISTINCT v.*, CASE WHEN jsonb_path_exists(l.bounds, '$.* ? (@.type() == "object")') THEN l.bounds ELSE v.bounds END
    AS read_bounds
FROM harness.versions v JOIN harness.leases l USING (table_id, version) WHERE v.table_id = %(table_id)s

-- name: versions_of
SELECT v.* FROM harness.versions v WHERE v.table_id = %(table_id)s AND v.version = ANY(%(versions)s)

-- name: has_version
SELECT version FROM harness.versions WHERE table_id = %(table_id)s AND version = %(version)s

-- name: versions_above
SELECT v.* FROM harness.versions v
WHERE v.table_id = %(table_id)s AND v.version > %(above)s ORDER BY v.version LIMIT %(limit)s

-- name: versions_settled
-- The last version that is older than the grace, and all after it; all that are retained, where there is none.
SELECT v.* FROM harness.versions v
WHERE v.table_id = %(table_id)s AND v.version >= coalesce((
    SELECT s.version FROM harness.versions s
    WHERE s.table_id = %(table_id)s AND s.version >= %(first)s AND s.committed_at <= clock_timestamp() - %(grace)s
    ORDER BY s.version DESC LIMIT 1), %(first)s) ORDER BY v.version

-- name: kept_from
-- The first version from *first* on that was the head less than *retention* ago, as `kept_versions` has it: the one before the
-- first that is younger; without one the head.
SELECT coalesce((
    SELECT k.version FROM harness.versions k
    WHERE k.table_id = %(table_id)s AND k.version >= %(first)s AND k.version < (
        SELECT y.version FROM harness.versions y
        WHERE y.table_id = %(table_id)s AND y.committed_at > %(now)s::timestamptz - %(retention)s AND y.version > (
            SELECT min(o.version) FROM harness.versions o WHERE o.table_id = %(table_id)s AND o.version >= %(first)s)
        ORDER BY y.version LIMIT 1)
    ORDER BY k.version DESC LIMIT 1
), (SELECT max(h.version) FROM harness.versions h WHERE h.table_id = %(table_id)s)) AS version

-- name: overlays_in_reach
SELECT DISTINCT v.overlays FROM harness.versions v
WHERE v.table_id = %(table_id)s AND (v.version >= %(first)s OR v.version = ANY(%(versions)s)) AND v.overlays <> '[]'

-- name: open_bases
SELECT base_version FROM harness.moves WHERE table_id = %(table_id)s AND state = 'PLANNED' AND base_version IS NOT NULL

-- name: oldest_open_move
-- Acts that people ask for (replay, evolve, revert, accept-foreign) have no claim and no open move: epoch 0, and abandoned
-- until they commit. What they write is left alone for an hour, as what an open move writes whose claim has ended.
SELECT least((
    SELECT min(planned_at) FROM harness.moves WHERE table_id = %(table_id)s AND state = 'PLANNED'
), (
    SELECT min(planned_at) FROM harness.moves WHERE table_id = %(table_id)s AND state = 'ABANDONED' AND epoch = 0
        AND planned_at > clock_timestamp() - interval '1 hour'
)) AS planned_at

-- name: moves_by_id
SELECT move_id, attempt, state FROM harness.moves WHERE move_id = ANY(%(move_ids)s)

-- name: set_trim_floor
UPDATE harness.lake_positions p SET trim_floor = greatest(p.trim_floor, least(f.floor, p.stream_hi))
FROM unnest(%(partitions)s::integer[], %(floors)s::bigint[]) AS f (partition, floor)
WHERE p.table_id = %(table_id)s AND p.partition = f.partition

-- name: set_retained_from
UPDATE harness.tables SET retained_from = greatest(retained_from, %(retained_from)s) WHERE table_id = %(table_id)s

-- name: forget_layouts
-- Those that only versions name which nobody can read, go back to, or build on any more.
DELETE FROM harness.layouts l
WHERE l.table_id = %(table_id)s AND l.version <> ALL(ARRAY(
    SELECT v.layout FROM harness.versions v WHERE v.table_id = %(table_id)s AND v.layout IS NOT NULL AND (
        v.version >= %(retained_from)s
        OR v.version IN (SELECT version FROM harness.leases WHERE table_id = %(table_id)s)
        OR v.version IN (SELECT version FROM harness.snapshot_tables WHERE table_id = %(table_id)s)
        OR v.version IN (
            SELECT base_version FROM harness.moves m WHERE m.table_id = %(table_id)s AND m.state = 'PLANNED'))))

-- name: abandon_orphaned
UPDATE harness.moves m SET state = 'ABANDONED', error = coalesce(m.error, 'no live claim for an hour')
WHERE m.table_id = %(table_id)s AND m.state = 'PLANNED' AND m.planned_at < clock_timestamp() - interval '1 hour'
  AND NOT EXISTS (
    SELECT FROM harness.claims c WHERE c.table_id = m.table_id AND c.stage = m.stage AND c.shard = m.shard
      AND c.lease_until > clock_timestamp() - interval '1 hour')

-- name: folders
-- Where the views are and were: reconcile begins a batch view that cannot go on in its own folder, and another engine may
-- change the location of a view.
SELECT folder FROM harness.view_folders WHERE table_id = %(table_id)s ORDER BY folder

-- name: made_in
-- Metadata files in the folders that the views of a table were made in, as version 1 has them.
SELECT stream_metadata, coalesce(batch_metadata, stream_metadata) AS batch_metadata FROM harness.versions
WHERE table_id = %(table_id)s ORDER BY version LIMIT 1

-- name: neighbours
-- Where the other tables of the database are, whoever made them.
SELECT metadata_location FROM public.iceberg_tables WHERE metadata_location IS NOT NULL
  AND NOT (catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = ANY(%(views)s))

-- name: condemn
INSERT INTO harness.condemned_files (table_id, path, bytes)
SELECT %(table_id)s, path, bytes FROM unnest(%(paths)s::text[], %(bytes)s::bigint[]) AS f (path, bytes)
ON CONFLICT DO NOTHING

-- name: pardon
-- What a holder has begun to remove stays condemned: it may sleep before it does, for less than the hour that acts have.
DELETE FROM harness.condemned_files f
WHERE table_id = %(table_id)s AND NOT EXISTS (SELECT FROM unnest(%(paths)s::text[]) AS p (path) WHERE p.path = f.path)
  AND coalesce(removing_since <= clock_timestamp() - interval '1 hour', true)

-- name: begin_removal
UPDATE harness.condemned_files SET removing_since = clock_timestamp()
WHERE table_id = %(table_id)s AND path = ANY(%(paths)s) RETURNING path

-- name: ripe_in
-- Seconds until the oldest of what waits to be removed has waited for its grace; NULL: nothing waits.
SELECT extract(epoch FROM least(
    (SELECT min(since) FROM harness.condemned_files WHERE table_id = %(table_id)s),
    (SELECT min(retired_at) FROM harness.segments WHERE table_id = %(table_id)s AND state = 'retired')
) + %(grace)s - clock_timestamp())::float8 AS seconds

-- name: ripe
-- Condemned for a grace, and before the oldest open move was planned: whatever the storage's clock says of its age, a
-- file that such a move writes was not there then. Both times are of this one clock. So for a server: what it
-- writes is in a cut within a time that no grace shortens, or in none.
SELECT path, bytes FROM harness.condemned_files
WHERE table_id = %(table_id)s AND since <= clock_timestamp() - CASE
    WHEN EXISTS (SELECT FROM harness.cut_folders d WHERE d.table_id = %(table_id)s)
    THEN greatest(%(grace)s, %(cuts_take)s) ELSE %(grace)s END AND since <= coalesce(least((
    SELECT min(planned_at) FROM harness.moves m WHERE m.table_id = %(table_id)s AND m.state = 'PLANNED'
), (
    SELECT min(planned_at) FROM harness.moves m WHERE m.table_id = %(table_id)s AND m.state = 'ABANDONED'
        AND m.epoch = 0 AND m.planned_at > clock_timestamp() - interval '1 hour'
)), clock_timestamp()) ORDER BY since, path

-- name: condemned_of
SELECT path, removing_since FROM harness.condemned_files WHERE table_id = %(table_id)s AND path = ANY(%(paths)s) ORDER BY path LIMIT 1

-- name: forget_files
WITH noted AS (DELETE FROM harness.file_digests WHERE path = ANY(%(paths)s))
DELETE FROM harness.condemned_files WHERE table_id = %(table_id)s AND path = ANY(%(paths)s)
