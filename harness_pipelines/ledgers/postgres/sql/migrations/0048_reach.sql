-- What versions reach in the lake, as expire read it from their metadata, which never changes: one row for each run of
-- versions that have a file. So a version adds rows for what it added, and ends rows of what it took away, and nothing is read
-- again to know what the versions in reach need.
CREATE TABLE harness.reach (
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    view     text NOT NULL,
    path     text NOT NULL, -- as the metadata spells it
    kind     text NOT NULL CHECK (kind IN ('metadata', 'list', 'manifest', 'file')),
    first    bigint NOT NULL, -- the first version that has it
    last     bigint CHECK (last >= first), -- NULL: the newest version that was read has it
    files    jsonb, -- of a manifest that the newest version that was read has: what it names
    PRIMARY KEY (table_id, path, view, first),
    CHECK (files IS NULL OR kind = 'manifest' AND last IS NULL)
);
CREATE INDEX reach_newest ON harness.reach (table_id) WHERE last IS NULL AND kind <> 'file';
GRANT SELECT ON harness.reach TO harness_reader;
GRANT INSERT, UPDATE, DELETE ON harness.reach TO harness_worker;
