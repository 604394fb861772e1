-- What fsck reads. All of it but the lease runs in one REPEATABLE READ transaction, so it is of one instant.

-- name: tables
-- Not `ledger/tables`: a table whose schema rows are gone is looked at as well.
SELECT namespace || '.' || name AS name FROM harness.tables
WHERE %(name)s::text IS NULL OR namespace || '.' || name = %(name)s ORDER BY namespace, name

-- name: hold
-- A lease on the head, whatever state the rest is in: what fsck looks at is not removed meanwhile.
WITH head AS MATERIALIZED (
    SELECT gen_random_uuid() AS lease_id, t.table_id, max(v.version) AS version
    FROM harness.tables t JOIN harness.versions v USING (table_id) WHERE t.namespace || '.' || t.name = %(name)s
    GROUP BY t.table_id
)
SELECT lease_id, table_id, harness.lease_take(lease_id, table_id, version, '{}', 'fsck', %(lease)s::interval) FROM head

-- name: table
SELECT table_id, namespace, name, spec, cluster_id, topic, topic_id, outbox_seq, retained_from, stopped,
       clock_timestamp() AS now,
       ARRAY(SELECT d.folder FROM harness.cut_folders d WHERE d.table_id = t.table_id ORDER BY d.folder) AS cut_folders
FROM harness.tables t WHERE namespace || '.' || name = %(name)s

-- name: positions
SELECT partition, l.start AS lake_start, l.stream_hi, l.batch_hi, l.trim_floor,
       i.start AS ingest_start, i.buffer_hi, i.schema_version
FROM (SELECT * FROM harness.lake_positions WHERE table_id = %(table_id)s) l
FULL JOIN (SELECT * FROM harness.ingest_positions WHERE table_id = %(table_id)s) i USING (partition)
ORDER BY partition

-- name: versions
SELECT version, stream_metadata, stream_snapshot, batch_metadata, batch_snapshot, layout, schema_version, bounds,
       overlays, narrowed, revert_of, move_id, committed_at
FROM harness.versions WHERE table_id = %(table_id)s ORDER BY version

-- name: reach
SELECT view, path, first, last FROM harness.reach WHERE table_id = %(table_id)s

-- name: layouts
-- Those that a retained version names.
SELECT version, tree, digest, clustered FROM harness.layouts l
WHERE table_id = %(table_id)s AND EXISTS (
    SELECT FROM harness.versions v JOIN harness.tables t USING (table_id)
    WHERE v.table_id = l.table_id AND v.layout = l.version AND v.version >= t.retained_from)
ORDER BY version

-- name: moves
SELECT move_id, stage, shard, lo, hi, base_version, schema_version, state, attempt, epoch, trigger, rows, error,
       undone_by, planned_at
FROM harness.moves WHERE table_id = %(table_id)s ORDER BY move_id

-- name: checkpoints
SELECT checkpoint, stage, kind, schema_version, lo, hi, rows, moves, first_move, last_move, folded_at
FROM harness.checkpoints WHERE table_id = %(table_id)s ORDER BY stage, first_move

-- name: folded
SELECT version, versions, event, events, stream_hi, folded_at FROM harness.folds WHERE table_id = %(table_id)s

-- name: schemas
SELECT schema_version, fields FROM harness.schemas WHERE table_id = %(table_id)s ORDER BY schema_version

-- name: segments
SELECT s.*, to_regclass('harness_buffer.' || quote_ident(s.segment)) IS NOT NULL AS stored
FROM harness.segments s WHERE s.table_id = %(table_id)s ORDER BY s.seq

-- name: claims
SELECT stage, shard, holder::text AS holder, epoch, lease_until, lease_until > clock_timestamp() AS alive
FROM harness.claims WHERE table_id = %(table_id)s

-- name: leases
SELECT version, holder, born, until, until > clock_timestamp() AS alive FROM harness.leases
WHERE table_id = %(table_id)s AND holder <> 'fsck'

-- name: cuts
SELECT sequence, number, snapshot_id, timestamp_ms, version, bounds, metadata, chunks, history,
       until > clock_timestamp() AS alive, retired_at IS NOT NULL AS retired
FROM harness.cuts WHERE table_id = %(table_id)s ORDER BY sequence

-- name: cut_files
SELECT path, bool_or(retired_at IS NULL) AS served FROM (
    SELECT table_id, files, until, retired_at FROM harness.cuts
    UNION ALL SELECT table_id, files, until, retired_at FROM harness.named_cuts
) c, unnest(files) AS path
WHERE table_id = %(table_id)s AND until > clock_timestamp() GROUP BY path

-- name: named_cuts
-- Those that servers give out.
SELECT sequence, snapshot_id, version, bounds, metadata FROM harness.named_cuts
WHERE table_id = %(table_id)s AND until > clock_timestamp() AND retired_at IS NULL AND history = harness.history()
ORDER BY sequence

-- name: buffered_bytes
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint AS bytes FROM harness.segments s
JOIN pg_class c ON c.relname = s.segment AND c.relnamespace = 'harness_buffer'::regnamespace
WHERE s.table_id = %(table_id)s AND s.state <> 'retired'

-- name: outbox
SELECT count(*) AS events, coalesce(min(seq), 0) AS first,
       greatest(max(seq), (SELECT event FROM harness.folds WHERE table_id = %(table_id)s), 0) AS last
FROM harness.outbox WHERE table_id = %(table_id)s

-- name: outbox_gaps
-- An event that begins a history says which numbers are left out. Folded ones are counted.
SELECT before + 1 AS low, seq AS high FROM (
    SELECT o.seq, o.event, lag(o.seq, 1, coalesce(f.event, 0)) OVER (ORDER BY o.seq) AS before
    FROM harness.outbox o LEFT JOIN harness.folds f USING (table_id)
    WHERE o.table_id = %(table_id)s AND o.seq > coalesce(f.event, 0)
) s WHERE seq <> before + 1 AND event NOT IN ('history_lost', 'promoted') ORDER BY seq LIMIT %(limit)s

-- name: begun
-- The versions with which a history begins, each with the number before it from which on numbers are left out.
SELECT (payload ->> 'version')::bigint AS version, (payload ->> 'from')::bigint AS left_out FROM harness.outbox
WHERE table_id = %(table_id)s AND event IN ('history_lost', 'promoted')

-- name: quarantined
-- Records that are set aside or given up, per partition: those that the lake answers for, and those of the buffer.
SELECT q.partition, count(*) FILTER (WHERE q."offset" < l.stream_hi) AS lake,
       count(*) FILTER (WHERE q."offset" >= l.stream_hi) AS buffer
FROM harness.quarantine q
JOIN harness.lake_positions l USING (table_id, partition)
JOIN harness.ingest_positions i USING (table_id, partition)
WHERE q.table_id = %(table_id)s AND q.state <> 'replayed' AND q."offset" >= l.start AND q."offset" < i.buffer_hi
GROUP BY q.partition

-- name: filtered
-- Records that the transform's filter left out, per partition: they are offsets without a row.
SELECT partition, records::bigint AS records FROM harness.filtered WHERE table_id = %(table_id)s

-- name: corrected
-- By coordinate what a correction that is in effect changed: rows more or less, and whether a row of the files is hidden.
SELECT partition, "offset", is_row::int - was_row::int AS rows, was_row AS hides FROM harness.corrected
WHERE table_id = %(table_id)s AND in_effect ORDER BY partition, "offset"

-- name: unsettled
-- Records that are rows again and still set aside, or the other way round.
SELECT partition, "offset", state FROM harness.judged
WHERE table_id = %(table_id)s AND (state = 'replayed') <> is_row
ORDER BY partition, "offset" LIMIT %(limit)s

-- name: quarantined_outside
SELECT q.partition, q."offset" FROM harness.quarantine q
LEFT JOIN harness.ingest_positions i USING (table_id, partition)
WHERE q.table_id = %(table_id)s AND (i.partition IS NULL OR q."offset" < i.start OR q."offset" >= i.buffer_hi)
ORDER BY q.partition, q."offset" LIMIT %(limit)s

-- name: sealed
-- Of the records behind the given one, as many as have so many bytes: whether each is as it was written.
WITH page AS MATERIALIZED (
    SELECT partition, "offset" FROM (
        SELECT partition, "offset", sum(bytes) OVER (ORDER BY partition, "offset") - bytes AS before FROM (
            SELECT partition, "offset", coalesce(octet_length(key), 0)::bigint + coalesce(octet_length(value), 0)
                   + pg_column_size(headers) AS bytes
            FROM harness.quarantine
            WHERE table_id = %(table_id)s AND (partition, "offset") > (%(partition)s::int, %(offset)s::bigint)
            ORDER BY partition, "offset" LIMIT %(records)s
        ) f
    ) o WHERE before < %(bytes)s
)
SELECT q.partition, q."offset", q.digest = harness.refused_digest(q) AS whole
FROM harness.quarantine q JOIN page USING (partition, "offset")
WHERE q.table_id = %(table_id)s ORDER BY q.partition, q."offset"

-- name: pins_changed
-- Snapshots whose bounds or version are not those that they were made with.
SELECT p.name, p.version FROM harness.snapshot_tables p
WHERE p.table_id = %(table_id)s AND p.digest <> harness.pin_digest(p) ORDER BY p.name LIMIT %(limit)s

-- name: moved
-- By partition the offsets of records whose bytes are in the lake, eight bytes each: there may be many.
SELECT partition, string_agg(int8send("offset"), ''::bytea ORDER BY "offset") AS offsets FROM harness.quarantine
WHERE table_id = %(table_id)s AND in_lake GROUP BY partition

-- name: waiting
-- {rows}: the rows of the named segments. What only the buffer answers for, per partition.
SELECT r.partition, count(*) AS rows FROM ({rows}) r
JOIN harness.lake_positions l ON l.table_id = %(table_id)s AND l.partition = r.partition
JOIN harness.ingest_positions i ON i.table_id = %(table_id)s AND i.partition = r.partition
WHERE r."offset" >= l.stream_hi AND r."offset" < i.buffer_hi GROUP BY r.partition

-- name: kept
-- From the given offset of each partition on: what a revert would count on.
SELECT r.partition, count(*) AS rows FROM ({rows}) r
JOIN unnest(%(partitions)s::int[], %(lows)s::bigint[]) AS w (partition, low) ON w.partition = r.partition
JOIN harness.ingest_positions i ON i.table_id = %(table_id)s AND i.partition = r.partition
WHERE r."offset" >= w.low AND r."offset" < i.buffer_hi GROUP BY r.partition

-- name: doubled
SELECT r.partition, r."offset", count(*) AS rows FROM ({rows}) r
JOIN harness.lake_positions l ON l.table_id = %(table_id)s AND l.partition = r.partition
WHERE r."offset" >= l.stream_hi GROUP BY 1, 2 HAVING count(*) > 1 ORDER BY 1, 2 LIMIT %(limit)s

-- name: uncommitted
-- Rows of a partition that the table does not have, or outside what ingest committed.
SELECT r.segment, r.partition, min(r."offset") AS first, max(r."offset") AS last, count(*) AS rows FROM ({rows}) r
LEFT JOIN harness.ingest_positions i ON i.table_id = %(table_id)s AND i.partition = r.partition
WHERE i.partition IS NULL OR r."offset" < i.start OR r."offset" >= i.buffer_hi
GROUP BY 1, 2 ORDER BY 1, 2 LIMIT %(limit)s

-- name: refused_twice
-- Coordinates that are in quarantine and in the buffer, but for rows that a replay removed from the lake: the buffer's are
-- leftovers, which no read of the head sees.
SELECT q.partition, q."offset" FROM harness.quarantine q
JOIN ({rows}) r ON r.partition = q.partition AND r."offset" = q."offset"
WHERE q.table_id = %(table_id)s AND q.state <> 'replayed'
  AND NOT EXISTS (
      SELECT FROM harness.corrected c
      WHERE c.table_id = q.table_id AND c.partition = q.partition AND c."offset" = q."offset" AND c.was_row
  )
ORDER BY 1, 2 LIMIT %(limit)s
