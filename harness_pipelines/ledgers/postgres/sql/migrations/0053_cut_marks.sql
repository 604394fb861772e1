-- Two digests of what a load of `harness serve` goes by: of the table, and of its state as of a version. With the same marks, all that
-- `cuts/newest` read of both before is still so. Where rows come in another order a mark differs without a change, and more is read
-- than need be.
--
-- It is inlined where it is asked for, as it has no settings of its own: a load waits for each part of a millisecond.

CREATE FUNCTION harness.cut_marks(t harness.tables, v harness.versions) RETURNS TABLE (table_mark bytea, state_mark bytea)
LANGUAGE sql STABLE AS $$
    SELECT sha256(convert_to(ROW(
               t.table_id, t.namespace, t.name, t.spec, t.cluster_id, t.topic, t.topic_id, t.stopped, t.retained_from,
               (SELECT string_agg(s::text, ',') FROM harness.schemas s WHERE s.table_id = t.table_id)
           )::text, 'UTF8')),
           sha256(convert_to(ROW(
               v,
               (SELECT string_agg(concat_ws(' ', i.partition, i.start, i.buffer_hi), ',')
                FROM harness.ingest_positions i WHERE i.table_id = t.table_id),
               (SELECT string_agg(s::text, ',') FROM harness.segments s WHERE s.table_id = t.table_id AND s.state <> 'retired')
           )::text, 'UTF8'))
$$;

REVOKE ALL ON FUNCTION harness.cut_marks FROM PUBLIC;
GRANT EXECUTE ON FUNCTION harness.cut_marks TO harness_reader;
