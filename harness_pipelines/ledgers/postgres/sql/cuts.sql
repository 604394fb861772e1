-- name: newest
-- The table of a name, as `ledger/tables` has it, with the last cut, whether that is alive, and whether the folder of the newest
-- version's cuts is noted. And the state of the same instant, as `reads/look` has it: a load that finds that nothing has changed asks
-- for no more, and takes no lease.
SELECT t.table_id AS of_table, t.namespace, t.name, t.spec, t.cluster_id, t.topic, t.topic_id, t.stopped, t.retained_from,
       hashtextextended(t.spec::text, 0) AS spec_hash, h.history,
       c.is_alive, clock_timestamp() AS now, to_jsonb(v) AS head,
       (SELECT jsonb_object_agg(i.partition, jsonb_build_array(i.start, i.buffer_hi))
        FROM harness.ingest_positions i WHERE i.table_id = t.table_id) AS positions,
       (SELECT coalesce(jsonb_agg(to_jsonb(s) ORDER BY s.seq), '[]')
        FROM harness.segments s WHERE s.table_id = t.table_id AND s.state <> 'retired') AS segments,
       EXISTS (SELECT FROM harness.cut_folders d
               WHERE d.table_id = t.table_id AND d.folder = harness.cut_folder(t.name, v.stream_metadata)) AS is_noted,
       m.table_mark, m.state_mark,
       c.table_id, c.sequence, c.looked_at, c.published_at, c.served_at, c.until,
       greatest(c.sequence + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS following,
       c.snapshot_id, c.timestamp_ms, c.version, c.schema_version, c.bounds, c.metadata, c.chunks, c.parts, c.files
FROM harness.tables t
CROSS JOIN LATERAL (SELECT * FROM harness.versions WHERE table_id = t.table_id ORDER BY version DESC LIMIT 1) v
CROSS JOIN LATERAL harness.cut_marks(t, v::harness.versions) m
CROSS JOIN LATERAL ( -- NULL: its schemas are gone
    SELECT jsonb_agg(jsonb_build_object(
        'schema_version', schema_version, 'fields', fields, 'spec', spec, 'starts', starts
    ) ORDER BY schema_version) AS history
    FROM harness.schemas WHERE table_id = t.table_id
) h
LEFT JOIN LATERAL (
    SELECT *, until > clock_timestamp() AND retired_at IS NULL AND history = harness.history() AS is_alive
    FROM harness.cuts WHERE table_id = t.table_id ORDER BY sequence DESC LIMIT 1
) c ON true
WHERE t.namespace = %(namespace)s AND t.name = %(name)s

-- name: known_newest
-- No row where the newest cut of a table is another one than the one *known* (by the location of its metadata), or not alive. Else its
-- times alone, since nothing else of the newest row ever changes, and the marks by which the caller sees whether the table and its state
-- are what `cuts/newest` gave.
SELECT c.looked_at, c.published_at, c.served_at, c.until, clock_timestamp() AS now, v.stream_metadata,
       m.table_mark, m.state_mark
FROM harness.tables t
CROSS JOIN LATERAL (SELECT * FROM harness.versions WHERE table_id = t.table_id ORDER BY version DESC LIMIT 1) v
CROSS JOIN LATERAL harness.cut_marks(t, v::harness.versions) m
CROSS JOIN LATERAL (SELECT * FROM harness.cuts WHERE table_id = t.table_id ORDER BY sequence DESC LIMIT 1) c
WHERE t.namespace = %(namespace)s AND t.name = %(name)s
  AND c.metadata = %(known)s AND c.until > clock_timestamp() AND c.retired_at IS NULL AND c.history = harness.history()

-- name: prepare
-- NULL: of the newest version.
SELECT harness.cut_prepare(%(table_id)s::integer, %(version)s::bigint)

-- name: is_there
SELECT table_id FROM harness.tables WHERE table_id = %(table_id)s

-- name: publish
-- The row keeps the files from now on, so the maker's lease ends with the same commit.
SELECT looked_at, served_at, until, harness.lease_end(%(lease_id)s::uuid) FROM harness.cut_publish(
    %(table_id)s::integer, %(sequence)s::bigint, %(snapshot_id)s::bigint, %(timestamp_ms)s::bigint, %(version)s::bigint,
    %(schema_version)s::integer, %(bounds)s::jsonb, %(metadata)s::text, %(chunks)s::jsonb, %(parts)s::jsonb,
    %(files)s::text[], %(previous)s::bigint, %(lease_id)s::uuid, %(keep)s::interval)

-- name: serve
SELECT harness.cut_serve(%(table_id)s::integer, %(sequence)s::bigint, %(keep)s::interval) AS alive

-- name: retire
SELECT harness.cut_retire(%(table_id)s::integer, %(sequence)s::bigint) AS done

-- name: reached_versions
-- What has a row counts as alive: `upkeep/delete_ended` waits for a server that serves it just now.
SELECT v.* FROM harness.versions v
WHERE v.table_id = %(table_id)s AND v.version IN (
    SELECT c.version FROM harness.cuts c WHERE c.table_id = %(table_id)s AND c.files <> '{}'
    UNION SELECT n.version FROM harness.named_cuts n WHERE n.table_id = %(table_id)s)

-- name: reached_files
SELECT path FROM harness.cuts, unnest(files) AS path WHERE table_id = %(table_id)s
UNION SELECT path FROM harness.named_cuts, unnest(files) AS path WHERE table_id = %(table_id)s

-- name: pinned
SELECT c.*, c.sequence IS NOT NULL AS is_alive, found.slot
FROM harness.cut_pin(%(table_id)s::integer, %(seconds)s::integer, %(mine)s::bigint, %(slot)s::bigint) AS found
LEFT JOIN harness.cuts c ON c.table_id = %(table_id)s AND c.sequence = found.pinned

-- name: merged
SELECT b.key::integer AS partition, max((b.value ->> 'batch_hi')::bigint) AS batch_hi
FROM harness.versions v CROSS JOIN LATERAL jsonb_each(v.bounds) b
WHERE v.table_id = %(table_id)s AND v.version > %(above)s AND v.version < %(below)s GROUP BY b.key

-- name: known
-- A cut by its id, if it is alive: what an engine reports of may be of another server.
SELECT c.*, true AS is_alive FROM harness.cuts c
WHERE c.table_id = %(table_id)s AND c.snapshot_id = %(snapshot_id)s AND c.until > clock_timestamp()
  AND c.history = harness.history() ORDER BY c.sequence DESC LIMIT 1

-- name: known_named
SELECT c.*, '{}'::jsonb AS parts, true AS is_alive FROM harness.named_cuts c
WHERE c.table_id = %(table_id)s AND c.snapshot_id = %(snapshot_id)s AND c.until > clock_timestamp()
  AND c.history = harness.history()

-- name: named
-- The cut of the state that a snapshot pins, if one is alive; and what another one of it goes on from.
SELECT p.table_id AS of_table, p.version AS of_version, p.digest = harness.pin_digest(p) AS is_sound, f.is_noted, c.*,
       '{}'::jsonb AS parts, c.sequence IS NOT NULL AS is_alive, clock_timestamp() AS now,
       greatest((SELECT max(n.sequence) + 1 FROM harness.named_cuts n WHERE n.table_id = p.table_id),
                (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS following
FROM harness.snapshot_tables p
JOIN harness.tables t USING (table_id)
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM harness.cut_folders d
                   WHERE d.table_id = t.table_id AND d.folder = harness.cut_folder(t.name, v.stream_metadata)) AS is_noted
    FROM harness.versions v WHERE v.table_id = p.table_id AND v.version = p.version
) f
LEFT JOIN LATERAL (
    SELECT * FROM harness.named_cuts n
    WHERE n.table_id = p.table_id AND n.version = p.version AND n.bounds = harness.pin_cut(p.bounds)
      AND n.until > clock_timestamp() AND n.retired_at IS NULL AND n.history = harness.history()
    ORDER BY n.sequence DESC LIMIT 1
) c ON true
WHERE p.table_id = %(table_id)s AND p.name = %(name)s

-- name: tables_of
SELECT t.namespace || '.' || t.name AS table_name FROM harness.snapshot_tables p JOIN harness.tables t USING (table_id)
WHERE p.name = %(name)s ORDER BY table_name

-- name: publish_named
SELECT looked_at, served_at, until FROM harness.named_cut_publish(
    %(table_id)s::integer, %(sequence)s::bigint, %(snapshot_id)s::bigint, %(timestamp_ms)s::bigint, %(version)s::bigint,
    %(schema_version)s::integer, %(bounds)s::jsonb, %(metadata)s::text, %(chunks)s::jsonb, %(files)s::text[], %(lease_id)s::uuid,
    %(keep)s::interval)

-- name: serve_named
SELECT harness.named_cut_serve(%(table_id)s::integer, %(sequence)s::bigint, %(keep)s::interval) AS alive

-- name: retire_named
SELECT harness.named_cut_retire(%(table_id)s::integer, %(sequence)s::bigint) AS done
