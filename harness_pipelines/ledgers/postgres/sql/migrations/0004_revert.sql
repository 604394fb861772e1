-- A revert is a move of its own. The moves that it takes back keep their state and name it; a revert that restores them
-- takes the name away again.
ALTER TABLE harness.moves DROP CONSTRAINT moves_stage_check;
ALTER TABLE harness.moves ADD CONSTRAINT moves_stage_check CHECK (stage IN ('ingest', 'tier', 'expire', 'revert'));
ALTER TABLE harness.moves ADD COLUMN undone_by bigint REFERENCES harness.moves;

-- The metadata of a revert names its move, and is written before the transaction that records it.
GRANT USAGE ON SEQUENCE harness.moves_move_id_seq TO harness_worker;
