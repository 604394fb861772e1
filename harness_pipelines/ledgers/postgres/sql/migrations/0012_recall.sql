-- Rows of the lake that went back to Postgres: the tables that hold them are named by versions (`versions.overlays`).
CREATE TABLE harness.overlays (
    segment        text PRIMARY KEY,           -- table in the schema harness_buffer
    table_id       integer NOT NULL,
    move_id        bigint NOT NULL,            -- whose attempt made it; only its boundary commit names it
    attempt        integer NOT NULL,
    schema_version integer NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired_at     timestamptz                 -- nothing names it any more; it is dropped after a grace
);
CREATE INDEX overlays_of_table ON harness.overlays (table_id);
GRANT SELECT ON harness.overlays TO harness_reader;
GRANT INSERT, UPDATE, DELETE ON harness.overlays TO harness_worker;

-- What people asked to have recalled or released; otree takes it up.
CREATE TABLE harness.recalls (
    recall   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    act      text NOT NULL CHECK (act IN ('recall', 'release')),
    wanted   text,                             -- the `where` of a recall
    state    text NOT NULL DEFAULT 'asked' CHECK (state IN ('asked', 'done', 'cancelled', 'refused')),
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    asked_by text NOT NULL,
    ended_at timestamptz,
    move_id  bigint,                           -- that did it
    rows     bigint,
    bytes    bigint,
    detail   text,                             -- why it was refused
    CHECK ((act = 'recall') = (wanted IS NOT NULL)),
    CHECK ((state = 'asked') = (ended_at IS NULL))
);
CREATE INDEX open_recalls ON harness.recalls (table_id) WHERE state = 'asked';
GRANT SELECT ON harness.recalls TO harness_reader;
GRANT INSERT, UPDATE ON harness.recalls TO harness_worker;
ALTER TABLE harness.moves ADD COLUMN recall bigint REFERENCES harness.recalls; -- for a move that answers a request
