"""A long history of a table, planted into its ledger by a few statements: years of it in some seconds."""

from __future__ import annotations

from datetime import timedelta

from harness_pipelines.drivers.postgres import Connection

#: Each step has a move of ingest, one of tier with its version, and its event. The last ones are of this moment.
_STEPS = """
WITH base AS (
    SELECT nextval('harness.moves_move_id_seq') AS move,
           (SELECT max(version) FROM harness.versions WHERE table_id = %(t)s) AS version,
           (SELECT outbox_seq FROM harness.tables WHERE table_id = %(t)s) AS event
), steps AS (
    SELECT i, clock_timestamp() - (%(steps)s - i) * %(gap)s::interval AS at, base.*,
           (SELECT jsonb_object_agg(p, (i - 1) * %(rows)s) FROM generate_series(0, %(partitions)s - 1) p) AS lo,
           (SELECT jsonb_object_agg(p, i * %(rows)s) FROM generate_series(0, %(partitions)s - 1) p) AS hi
    FROM generate_series(%(folded)s + 1, %(steps)s) i, base
), ingest AS (
    INSERT INTO harness.moves (move_id, table_id, stage, shard, lo, hi, schema_version, state, epoch, trigger, rows,
                               digest, planned_at, committed_at)
    OVERRIDING SYSTEM VALUE
    SELECT move + 2 * i, %(t)s, 'ingest', 0, lo, hi, 1, 'COMMITTED', 1, 'log', %(rows)s * %(partitions)s,
           (SELECT jsonb_object_agg(p, (i * 1234567890123456789::numeric + p::numeric) %% 18446744073709551616)::text
            FROM jsonb_object_keys(lo) p), at, at
    FROM steps
), tier AS (
    INSERT INTO harness.moves (move_id, table_id, stage, shard, lo, hi, base_version, schema_version, state, epoch,
                               trigger, rows, planned_at, committed_at)
    OVERRIDING SYSTEM VALUE
    SELECT move + 2 * i + 1, %(t)s, 'tier', 0, lo, hi, version + i - 1, 1, 'COMMITTED', 1, 'age',
           %(rows)s * %(partitions)s, at, at
    FROM steps
), versions AS (
    INSERT INTO harness.versions (table_id, version, stream_metadata, stream_snapshot, schema_version, bounds, move_id,
                                  committed_at)
    SELECT %(t)s, version + i, 'file:///planted/t/metadata/' || i || '.metadata.json', i, 1, (
        SELECT jsonb_object_agg(p, jsonb_build_object(
            'start', 0, 'batch_hi', 0, 'stream_hi', i * %(rows)s, 'buffer_hi', i * %(rows)s))
        FROM jsonb_object_keys(lo) p), move + 2 * i + 1, at
    FROM steps
), told AS (
    INSERT INTO harness.outbox (table_id, seq, event, payload)
    SELECT %(t)s, event + i, 'published', jsonb_build_object('version', version + i, 'move', move + 2 * i + 1)
    FROM steps
)
UPDATE harness.tables SET outbox_seq = outbox_seq + %(steps)s,
    retained_from = greatest((SELECT max(version) - 50 FROM base) + %(steps)s, 1)
WHERE table_id = %(t)s
"""
#: What expire leaves of the steps before them: a checkpoint of each stage, and how far history is folded.
_FOLDED = (
    """
WITH base AS (SELECT max(move_id) - 2 * %(steps)s - 1 AS move FROM harness.moves), parts AS (
    SELECT jsonb_object_agg(p, 0) AS lo, jsonb_object_agg(p, %(folded)s::bigint * %(rows)s) AS hi, jsonb_object_agg(p, (
               %(folded)s::numeric * (%(folded)s + 1) / 2 * 1234567890123456789 + %(folded)s::numeric * p
           )::numeric(60) %% 18446744073709551616) AS digest
    FROM generate_series(0, %(partitions)s - 1) p
)
INSERT INTO harness.checkpoints
    (table_id, stage, kind, schema_version, lo, hi, rows, digest, moves, first_move, last_move)
SELECT %(t)s, stage, 'in effect', 1, lo, hi, %(folded)s::bigint * %(rows)s * %(partitions)s,
       CASE stage WHEN 'ingest' THEN digest END, %(folded)s, move + 2 + beside, move + 2 * %(folded)s + beside
FROM base, parts, (VALUES ('ingest', 0), ('tier', 1)) AS s (stage, beside)""",
    """
INSERT INTO harness.folds (table_id, version, versions, event, events, stream_hi)
SELECT %(t)s, v.first + %(folded)s, %(folded)s, t.outbox_seq - %(steps)s + %(folded)s,
       t.outbox_seq - %(steps)s + %(folded)s, (
           SELECT jsonb_object_agg(p, %(folded)s::bigint * %(rows)s) FROM generate_series(0, %(partitions)s - 1) p)
FROM harness.tables t, (SELECT min(version) AS first FROM harness.versions WHERE table_id = %(t)s) v
WHERE t.table_id = %(t)s""",
    """
DELETE FROM harness.outbox o USING harness.folds f
WHERE o.table_id = %(t)s AND f.table_id = %(t)s AND o.seq <= f.event""",
)
#: Without triggers, which would change one row of a counter again and again in one transaction.
_BEFORE = ("SET LOCAL session_replication_role = replica", "SET LOCAL statement_timeout = 0")
_AFTER = (
    """
UPDATE harness.versions SET committed_at = clock_timestamp() - %(steps)s * %(gap)s::interval
WHERE table_id = %(t)s AND move_id IS NULL""",
    "INSERT INTO harness.rows_brought VALUES (%(t)s, 'tier', %(steps)s::bigint * %(rows)s * %(partitions)s)",
    "INSERT INTO harness.view_folders VALUES (%(t)s, 'file:///planted/t') ON CONFLICT DO NOTHING",
    "SET LOCAL session_replication_role = origin",
    "SELECT setval('harness.moves_move_id_seq', (SELECT max(move_id) FROM harness.moves))",
    "UPDATE harness.ingest_positions SET buffer_hi = %(steps)s::bigint * %(rows)s WHERE table_id = %(t)s",
    "UPDATE harness.lake_positions SET stream_hi = %(steps)s::bigint * %(rows)s WHERE table_id = %(t)s",
    "UPDATE harness.lake_positions SET trim_floor = stream_hi WHERE table_id = %(t)s",
)


def plant(
    connection: Connection,
    table_id: int,
    *,
    steps: int,
    gap: timedelta,
    rows: int = 10,
    partitions: int = 2,
    folded: int = 0,
) -> None:
    """Give a table without rows *steps* moves of ingest and of tier, one each *gap*, up to now. As the owner.

    The first *folded* of them are checkpoints, as expire leaves them: years are planted in no time.
    """
    given = {"t": table_id, "steps": steps, "gap": gap, "rows": rows, "partitions": partitions, "folded": folded}
    for statement in (*_BEFORE, _STEPS, *_AFTER, *(_FOLDED if folded else ())):
        connection.execute(statement, given)
