-- Batch views that were made before there was a sample layer have none.
UPDATE harness.tables
SET spec = jsonb_set(spec, '{layout}', coalesce(spec -> 'layout', '{}') || '{"sample": 0}')
WHERE NOT coalesce(spec -> 'layout', '{}') ? 'sample';
