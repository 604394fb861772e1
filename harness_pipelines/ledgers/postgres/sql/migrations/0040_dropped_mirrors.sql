-- What a dropped mirror was sent may be under way yet: expire keeps it for an hour more, and nobody else looks at the row.
ALTER TABLE harness.mirrors ADD COLUMN dropped_at timestamptz;

CREATE OR REPLACE VIEW harness.mirror_lags AS
WITH wanted AS (
    SELECT t.table_id, c ->> 'name' AS catalog, c ->> 'type' AS kind, c ->> 'uri' AS uri
    FROM harness.tables t, jsonb_array_elements(t.spec -> 'catalogs') c
), followed AS (
    SELECT * FROM harness.mirrors WHERE dropped_at IS NULL
)
SELECT table_id, catalog, w.kind, w.uri, w.table_id IS NOT NULL AS is_wanted, m.version, h.version AS head,
       m.trouble, m.trouble_since, m.mirrored_at, m.looked_at,
       coalesce(extract(epoch FROM clock_timestamp() - (
           SELECT v.committed_at FROM harness.versions v
           WHERE v.table_id = coalesce(w.table_id, m.table_id) AND v.version > coalesce(m.version, h.version - 1)
           ORDER BY v.version LIMIT 1)), 0)::float8 AS lag_s
FROM wanted w FULL JOIN followed m USING (table_id, catalog)
CROSS JOIN LATERAL (
    SELECT v.version FROM harness.versions v WHERE v.table_id = coalesce(w.table_id, m.table_id)
    ORDER BY v.version DESC LIMIT 1
) h;
