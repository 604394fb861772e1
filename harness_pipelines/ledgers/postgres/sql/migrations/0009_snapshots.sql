-- Cuts that people gave a name: of one or several tables at one instant, readable until they are dropped.
CREATE TABLE harness.snapshots (
    name       text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE harness.snapshot_tables (
    name     text NOT NULL REFERENCES harness.snapshots ON DELETE CASCADE,
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    version  bigint NOT NULL,
    bounds   jsonb NOT NULL,   -- of the version, with buffer_hi as it was at that instant
    PRIMARY KEY (name, table_id),
    FOREIGN KEY (table_id, version) REFERENCES harness.versions (table_id, version)
);
CREATE INDEX snapshots_of_table ON harness.snapshot_tables (table_id);
GRANT SELECT ON harness.snapshots, harness.snapshot_tables TO harness_reader;
GRANT INSERT, DELETE ON harness.snapshots, harness.snapshot_tables TO harness_worker;
-- A merge of a keyed table may leave a layout of its own: those that nothing can read any more go with their versions.
GRANT DELETE ON harness.layouts TO harness_worker;
