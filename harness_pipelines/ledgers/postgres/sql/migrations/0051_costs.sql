-- What each stage of a table did on a day (UTC), and what that took. Nothing that is committed depends on it.

-- Moves, records and bytes are those of `harness.moves`, counted again until the day is over: who removes old moves takes
-- nothing from here. `taken_bytes` (of the values of records that ingest read) and `cpu_s` (of the threads of workers) are added
-- by workers every few seconds: one that is killed takes the last of them along. `first_move`: where counting begins.
CREATE TABLE harness.daily_costs (
    table_id    integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    day         date NOT NULL,
    stage       text NOT NULL,
    moves       bigint NOT NULL DEFAULT 0,
    records     bigint NOT NULL DEFAULT 0,
    bytes       bigint NOT NULL DEFAULT 0,
    taken_bytes bigint NOT NULL DEFAULT 0,
    cpu_s       float8 NOT NULL DEFAULT 0,
    first_move  bigint,
    counted_at  timestamptz,
    PRIMARY KEY (table_id, day, stage)
) WITH (fillfactor = 50);
GRANT SELECT ON harness.daily_costs TO harness_reader;
GRANT INSERT, UPDATE, DELETE ON harness.daily_costs TO harness_worker;
