-- `harness reconcile` after a history was lost is a worker's, as all of it is. It notes what was lost.
GRANT INSERT ON harness.lost_moves TO harness_worker;

-- Where history was lost, numbers of moves go on from the clock. A worker may not set the sequence, which it could set back;
-- it may raise it, and not above what the clock can ask for.
CREATE FUNCTION harness.raise_move_ids(above bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN setval('harness.moves_move_id_seq', greatest(
    nextval('harness.moves_move_id_seq'),
    least(above, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + 86400000)));
REVOKE EXECUTE ON FUNCTION harness.raise_move_ids FROM PUBLIC;
GRANT EXECUTE ON FUNCTION harness.raise_move_ids TO harness_worker;
GRANT USAGE, UPDATE ON SEQUENCE harness.moves_move_id_seq TO harness_definer;

GRANT CREATE ON SCHEMA harness TO harness_definer; -- a function is given only to who could have made it there
ALTER FUNCTION harness.raise_move_ids OWNER TO harness_definer;
REVOKE CREATE ON SCHEMA harness FROM harness_definer;
