-- Foreign catalogs that follow the published versions. What is remembered of one is what expire must keep for it, and how
-- far it was seen: the server itself is asked for everything else.
CREATE TABLE harness.mirrors (
    table_id      integer NOT NULL REFERENCES harness.tables ON DELETE CASCADE,
    catalog       text NOT NULL, -- its name in the spec
    version       bigint,        -- the last that the server was seen to show
    holds         bigint[] NOT NULL DEFAULT '{}', -- every version that the server may show: seen there, or sent since
    registered    text[] NOT NULL DEFAULT '{}',   -- our metadata files that tables were registered with
    names         text[] NOT NULL DEFAULT '{}',   -- metadata files that the server named when last seen
    uuids         jsonb NOT NULL DEFAULT '{}',    -- view -> uuid of the table there
    trouble       text,
    trouble_since timestamptz,
    mirrored_at   timestamptz,   -- when `version` was first seen there
    looked_at     timestamptz,
    PRIMARY KEY (table_id, catalog)
) WITH (fillfactor = 50);
GRANT SELECT ON harness.mirrors TO harness_reader;
GRANT INSERT, UPDATE, DELETE ON harness.mirrors TO harness_worker;

-- How far each mirror of a spec, and each that a spec named once, is behind.
CREATE VIEW harness.mirror_lags AS
WITH wanted AS (
    SELECT t.table_id, c ->> 'name' AS catalog, c ->> 'type' AS kind, c ->> 'uri' AS uri
    FROM harness.tables t, jsonb_array_elements(t.spec -> 'catalogs') c
)
SELECT table_id, catalog, w.kind, w.uri, w.table_id IS NOT NULL AS is_wanted, m.version, h.version AS head,
       m.trouble, m.trouble_since, m.mirrored_at, m.looked_at,
       coalesce(extract(epoch FROM clock_timestamp() - (
           SELECT v.committed_at FROM harness.versions v
           WHERE v.table_id = coalesce(w.table_id, m.table_id) AND v.version > coalesce(m.version, h.version - 1)
           ORDER BY v.version LIMIT 1)), 0)::float8 AS lag_s
FROM wanted w FULL JOIN harness.mirrors m USING (table_id, catalog)
CROSS JOIN LATERAL (
    SELECT v.version FROM harness.versions v WHERE v.table_id = coalesce(w.table_id, m.table_id)
    ORDER BY v.version DESC LIMIT 1
) h;
GRANT SELECT ON harness.mirror_lags TO harness_reader;
