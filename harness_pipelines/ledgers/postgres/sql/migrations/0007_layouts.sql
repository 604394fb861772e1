-- How the batch view is clustered: one row for each version that changed it. A version names the one that holds for it.
CREATE TABLE harness.layouts (
    table_id  integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    version   bigint NOT NULL,
    tree      text NOT NULL,                    -- the region tree's JSON
    digest    text NOT NULL,                    -- of the tree
    clustered jsonb NOT NULL,                   -- region -> the data sequence number up to which its files are clustered
    scores    jsonb NOT NULL DEFAULT '{}',      -- what was predicted, and what was measured before and after
    PRIMARY KEY (table_id, version)
);
ALTER TABLE harness.versions ADD COLUMN layout bigint;
-- What people asked to have written anew. Which files that still is, the files themselves tell.
CREATE TABLE harness.reclusters (
    request      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id     integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    paths        jsonb NOT NULL,                -- parts of the region tree, '' being all of it
    upto         bigint NOT NULL,               -- data sequence number of the newest file that is meant
    rebuild      boolean NOT NULL,              -- clustered files too
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at     timestamptz
);
CREATE INDEX open_reclusters ON harness.reclusters (table_id) WHERE ended_at IS NULL;
GRANT SELECT ON harness.reclusters TO harness_reader;
GRANT INSERT, UPDATE ON harness.reclusters TO harness_worker;
ALTER TABLE harness.moves ADD COLUMN parts jsonb NOT NULL DEFAULT '[]'; -- of the tree, for a move that answers a request
GRANT SELECT ON harness.layouts TO harness_reader;
GRANT INSERT ON harness.layouts TO harness_worker;
ALTER TABLE harness.moves DROP CONSTRAINT moves_stage_check;
ALTER TABLE harness.moves ADD CONSTRAINT moves_stage_check
    CHECK (stage IN ('ingest', 'tier', 'otree', 'compact', 'expire', 'revert'));
-- The batch view has one open move, whatever the shard.
CREATE UNIQUE INDEX one_open_move_of_the_batch_view ON harness.moves (table_id) WHERE stage = 'otree' AND state = 'PLANNED';
