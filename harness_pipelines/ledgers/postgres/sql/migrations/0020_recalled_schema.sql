-- Each recalled row says which schema it was decoded with. Those of before were of the schema that they were recalled with,
-- or could not be recalled.
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT segment, schema_version FROM harness.overlays
        WHERE to_regclass('harness_buffer.' || quote_ident(segment)) IS NOT NULL
    LOOP
        EXECUTE format('ALTER TABLE harness_buffer.%I ADD COLUMN _schema_version integer NOT NULL DEFAULT %s',
                       one.segment, one.schema_version);
    END LOOP;
END
$$;
