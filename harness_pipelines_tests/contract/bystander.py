"""A table that nobody touches: it has something of everything. A statement that forgets whose rows it means hits it.

It is there while every test over the real stores runs, and must be as it was afterwards. What a statement reads of it
by mistake shows too: it is stopped, its versions and schemas have higher numbers, its moves are open, its claims held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness_pipelines_tests.contract.stores_rig import RealRig

_MAKE = """
INSERT INTO harness.schemas (table_id, schema_version, fields, spec, starts)
    SELECT table_id, 9, '[]', spec, starts FROM harness.schemas WHERE table_id = %(t)s;
INSERT INTO harness.versions
    SELECT (jsonb_populate_record(v, jsonb_build_object('version', n, 'revert_of', r))).*
    FROM harness.versions v, (VALUES (2, 1), (3, NULL), (1000, NULL)) AS w (n, r)
    WHERE table_id = %(t)s AND version = 1;
UPDATE harness.lake_positions SET stream_hi = partition * 10, batch_hi = partition * 5 WHERE table_id = %(t)s;
UPDATE harness.ingest_positions SET buffer_hi = partition * 10, schema_version = 9 WHERE table_id = %(t)s;
INSERT INTO harness.claims (table_id, stage, shard, holder, epoch, lease_until)
    SELECT %(t)s, stage, shard, gen_random_uuid(), 1000, clock_timestamp() + interval '10 days'
    FROM unnest(ARRAY['ingest', 'tier', 'otree', 'compact', 'expire']) AS stage, generate_series(0, 1) AS shard;
INSERT INTO harness.recalls (table_id, act, wanted, asked_by) VALUES (%(t)s, 'recall', '', 'nobody');
INSERT INTO harness.moves (table_id, stage, shard, lo, hi, base_version, schema_version, state, epoch, trigger,
                           planned_at, recall, rows, error)
    SELECT %(t)s, stage, 0, '{"0": 0}', '{"0": 100}', 1, 1, state, 0, 'rows', clock_timestamp() - age,
           CASE WHEN stage = 'otree' THEN currval(pg_get_serial_sequence('harness.recalls', 'recall')) END, 1, 'none'
    FROM (VALUES ('tier', 'PLANNED', interval '3 hours'), ('otree', 'PLANNED', interval '3 hours'),
                 ('compact', 'QUARANTINED', interval '3 hours'), ('tier', 'COMMITTED', interval '3 hours'),
                 ('replay', 'ABANDONED', interval '1 minute')) AS w (stage, state, age);
INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, value, headers, kafka_ms, state)
    SELECT %(t)s, p, o, 'malformed', 'no JSON', '{', '[]', 0, CASE WHEN o = 19 THEN 'replayed' ELSE 'held' END
    FROM generate_series(0, 1) AS p, generate_series(0, 19) AS o;
INSERT INTO harness.corrections (table_id, version, partition, "offset", kind, digest, move_id)
    SELECT %(t)s, 2, 0, o, 'added', 'd', max(move_id) FROM harness.moves, generate_series(0, 9) AS o GROUP BY o;
INSERT INTO harness.audits (table_id, partition, low, high, rows, refused, digest, evidence, status, witness, version,
                            audited_at)
    SELECT %(t)s, p, 0, 100, 100, 0, 'd', 'e', 'agrees', 'kafka', 1, clock_timestamp() FROM generate_series(0, 1) AS p;
INSERT INTO harness.leases (lease_id, table_id, version, bounds, holder, until, born)
    SELECT gen_random_uuid(), %(t)s, 1, '{}', 'nobody', clock_timestamp() + lasts,
           clock_timestamp() - interval '2 hours'
    FROM unnest(ARRAY[interval '20 hours', interval '-1 hour']) AS lasts;
INSERT INTO harness.condemned_files (table_id, path, bytes, since)
    VALUES (%(t)s, 'file:///nowhere/bystander.parquet', 1, clock_timestamp() - interval '1 day');
INSERT INTO harness.segments (segment, table_id, seq, state, schema_version, max_hi, closed_at, retired_at)
    SELECT concat('bystander_', %(t)s::int, '_', n), %(t)s, n, state, 1, '{}', clock_timestamp() - interval '1 day',
           clock_timestamp()
    FROM (VALUES (1, 'retired'), (2, 'closed'), (3, 'open')) AS w (n, state);
INSERT INTO harness.overlays (segment, table_id, move_id, attempt, schema_version)
    SELECT concat('bystander_', %(t)s::int, '_recalled'), %(t)s, max(move_id), 1, 1 FROM harness.moves;
INSERT INTO harness.reclusters (table_id, paths, upto, rebuild) VALUES (%(t)s, '[]', 1, false);
INSERT INTO harness.layouts (table_id, version, tree, digest, clustered) SELECT %(t)s, n, '{}', 'd', '{}'
    FROM unnest(ARRAY[1, 2, 1000]) AS n;
INSERT INTO harness.snapshots (name) VALUES (concat('bystander_', %(t)s::int));
INSERT INTO harness.snapshot_tables (name, table_id, version, bounds)
    VALUES (concat('bystander_', %(t)s::int), %(t)s, 1, '{}');
INSERT INTO harness.mirrors (table_id, catalog, version, holds, registered, names, uuids, trouble, trouble_since,
                             looked_at)
    VALUES (%(t)s, 'lakehouse', 1, '{1}', '{file:///nowhere/r.metadata.json}', '{file:///nowhere/n.metadata.json}',
            '{"stream": "of another table"}', 'away', clock_timestamp() - interval '1 day', clock_timestamp());
INSERT INTO harness.filtered (table_id, partition, records) VALUES (%(t)s, 0, 1);
INSERT INTO harness.contract_violations (table_id, partition, check_name, severity, records)
    VALUES (%(t)s, 0, 'positive', 'warn', 1);
UPDATE harness.tables SET stopped = 'nobody works on it', stopped_stage = 'tier', quarantine_folder = 'file:///nowhere/q',
    outbox_seq = 500 WHERE table_id = %(t)s
"""
_OF_TABLES = """
SELECT table_name FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
WHERE table_schema = 'harness' AND column_name = 'table_id' AND table_type = 'BASE TABLE' ORDER BY table_name
"""


class Bystander:
    """The table, and what it was like when it was made."""

    def __init__(self, rig: RealRig) -> None:
        self._rig = rig
        self._tables = [str(row["table_name"]) for row in rig.ask(_OF_TABLES)]
        self._make()

    def _make(self) -> None:
        self.table = self._rig.table(partitions=3)
        for statement in _MAKE.split(";\n"):
            self._rig.ask(statement, {"t": self.table.table_id})
        self._was = self._now()

    def assert_untouched(self) -> None:
        """Nothing of it is another than it was."""
        now = self._now()
        touched = {name: rows for name, rows in now.items() if rows != self._was[name]}
        if touched:  # one test is blamed, not all that follow; and these find something of everything again
            self._make()
        assert not touched, f"rows of another table were touched: {touched}"

    def _now(self) -> Mapping[str, str]:
        """{table of the ledger: its rows as text}; when a file was condemned some tests change for all tables."""
        each = " UNION ALL ".join(
            f"SELECT '{name}' AS name, coalesce(string_agg((to_jsonb(r) - 'since')::text, E'\\n' "
            f"ORDER BY to_jsonb(r)::text), '') AS rows FROM harness.{name} r WHERE table_id = %(t)s"
            for name in self._tables
        )
        return {str(row["name"]): str(row["rows"]) for row in self._rig.ask(each, {"t": self.table.table_id})}
