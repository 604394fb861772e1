-- What Spark reads is an immutable metadata file, by the name of its digest in a catalog that only reads: so Spark opens it
-- with the file access of the catalog's settings, on any store, where a path alone would always go through Hadoop's. The
-- catalog's name is that of the session's Spark catalog, which asks by `harness.pins`.
CREATE INDEX versions_stream_pin ON harness.versions (('t' || md5(stream_metadata)));
CREATE INDEX versions_batch_pin ON harness.versions (('t' || md5(batch_metadata)));

CREATE SCHEMA harness_pins;
CREATE VIEW harness_pins.iceberg_tables AS
SELECT current_setting('harness.pins', true) AS catalog_name, 'pin' AS table_namespace, 't' || md5(stream_metadata) AS table_name,
       stream_metadata AS metadata_location, NULL::text AS previous_metadata_location, 'TABLE' AS iceberg_type
FROM harness.versions
UNION ALL
SELECT current_setting('harness.pins', true), 'pin', 't' || md5(batch_metadata), batch_metadata, NULL, 'TABLE'
FROM harness.versions WHERE batch_metadata IS NOT NULL
UNION ALL
SELECT current_setting('harness.pins', true), 'pin', 't' || md5(metadata_location), metadata_location, NULL, 'TABLE'
FROM public.iceberg_tables WHERE metadata_location IS NOT NULL;
GRANT USAGE ON SCHEMA harness_pins TO harness_reader, harness_spark;
GRANT SELECT ON harness_pins.iceberg_tables TO harness_reader, harness_spark;

-- Folders of dropped tables whose files are to go. A row stays until nothing is listed in its folder.
CREATE TABLE harness.purges (
    folder   text PRIMARY KEY,
    name     text NOT NULL, -- of the table, with its namespace
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT SELECT ON harness.purges TO harness_reader;
