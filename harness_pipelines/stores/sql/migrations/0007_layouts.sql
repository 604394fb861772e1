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
GRANT SELECT ON harness.layouts TO harness_reader;
GRANT INSERT ON harness.layouts TO harness_worker;
ALTER TABLE harness.moves DROP CONSTRAINT moves_stage_check;
ALTER TABLE harness.moves ADD CONSTRAINT moves_stage_check
    CHECK (stage IN ('ingest', 'tier', 'otree', 'compact', 'expire', 'revert'));
-- The batch view has one open move, whatever the shard.
CREATE UNIQUE INDEX one_open_move_of_the_batch_view ON harness.moves (table_id) WHERE stage = 'otree' AND state = 'PLANNED';
